"""Two operators on one namespace: one acts, and one that stood still acts no more when it wakes up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.fixtures import Kubectl, wait_until
from tests.cluster.call_proxy import Call, CallProxy, Fault
from tests.cluster.operators import OperatorProcess
from tests.cluster.story import SOON, Story, event_payloads, queueworker, with_version

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]


@dataclass(frozen=True)
class Candidate:
    """An operator behind a proxy of its own, which knows what it wrote."""

    proxy: CallProxy
    operator: OperatorProcess

    @property
    def has_lease(self) -> bool:
        return self.operator.metrics()["queueworker_operator_lease_held"] == 1

    def writes_since(self, at: float) -> list[str]:
        return [str(call) for call in self.proxy.since(at) if call.writes]


@pytest.fixture
def two(
    rested: None, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> Iterator[tuple[Candidate, Candidate]]:
    with CallProxy(kubectl, tmp_path / "one") as first, CallProxy(kubectl, tmp_path / "two") as second:
        both = tuple(
            Candidate(proxy, OperatorProcess.of(proxy.kubeconfig, namespace, tmp_path / f"{name}.log"))
            for name, proxy in (("one", first), ("two", second))
        )
        one, other = both
        one.operator.start()
        try:
            wait_until(lambda: "holds the Lease" in one.operator.log, "the first has the Lease", SOON)
            other.operator.start()
            yield one, other
        finally:
            for candidate in both:
                if candidate.operator.runs:
                    candidate.operator.stop()


def test_one_acts_and_the_one_that_stood_still_changes_nothing_any_more(
    two: tuple[Candidate, Candidate], story: Story
) -> None:
    one, other = two
    resource = queueworker(story.given_broker(), replicas=1, shutdownSeconds=5)
    story.given_ready(resource)
    wait_until(lambda: "waits for the Lease" in other.operator.log, "the second waits", SOON)
    assert one.writes_since(0)
    assert not other.writes_since(0)

    held: list[Call] = []

    def hold(call: Call) -> Fault | None:
        """The request by which the old revision is to lose its worker stays on the way."""
        if held or call.kind != "deployments" or b"/spec/replicas" not in call.body:
            return None
        held.append(call)
        return Fault.HOLD

    def answers() -> list[int]:
        return [status for call, status in one.proxy.written if call in held]

    one.proxy.before = hold
    second = with_version(resource, "v2")
    with story.publishing(event_payloads(200), pause=0.2):
        story.apply(second)
        wait_until(lambda: bool(held), "the first is about to shrink the old revision", SOON)
        with one.operator.standing_still():
            wait_until(lambda: other.has_lease, "the second takes over", SOON)
            old = held[0].path
            wait_until(lambda: old in [call.path for call, _ in other.proxy.written], "it writes", SOON)
            one.proxy.let_go()
            wait_until(lambda: answers() != [], "what was held arrives", SOON)
            assert answers()[0] in (409, 422), "it names a version that the second has replaced"
            new = story.then_serves(second)
            awake = time.monotonic()

        wait_until(lambda: "the Lease was lost" in one.operator.log, "the first notices", SOON)
        assert not one.has_lease
        third = with_version(resource, "v3")
        story.apply(third)
        assert story.then_serves(third) != new
    assert not one.writes_since(awake)
    assert len(story.deployments()) == 1
    story.then_committed(200)
    assert set(story.handled().values()) == {1}
