"""An API server that cuts, refuses, is overloaded or falls silent in the middle of a change.

Each change ends as it should when the sickness is over. Meanwhile the operator says what is wrong, and asks
seldom.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import uuid4

import pytest

from e2e import network
from e2e.cluster import Cluster
from e2e.fixtures import Kubectl, wait_until
from tests.cluster.call_proxy import Before, Call, CallProxy, Fault, Says
from tests.cluster.operators import OperatorProcess
from tests.cluster.story import NAME, SOON, Body, Story, event_payloads, queueworker, with_version

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]

OVERLOADED = Says(429, "TooManyRequests", {"Retry-After": "3"})
FORBIDDEN = Says(403, "Forbidden")
BROKEN = Says(500, "InternalError")
GONE = Says(410, "Expired")
CONFLICT = Says(409, "Conflict")


@dataclass
class Ward:
    """One QueueWorker through many changes, and its operator behind a proxy."""

    story: Story
    proxy: CallProxy
    operator: OperatorProcess
    resource: Body
    version: int = 1
    published: int = 0
    told: Counter[str] = field(default_factory=Counter)
    before: dict[str, float] = field(default_factory=dict)

    def changes(self) -> None:
        """Another version is asked for."""
        self.version += 1
        self.told, self.before = Counter(self.story.event_reasons()), self.operator.metrics()
        self.story.apply(with_version(self.resource, f"v{self.version}"))

    def then_ends_well(self) -> None:
        """The change is over: one revision serves, it works, and each transition was told once."""
        asked = with_version(self.resource, f"v{self.version}")
        self.story.then_serves(asked)
        assert len(self.story.deployments()) == 1
        self.story.publish(event_payloads(10, f"{self.version}-"))
        self.published += 10
        self.story.then_committed(self.published)
        assert set(self.story.handled().values()) == {1}
        told = Counter(self.story.event_reasons()) - self.told
        assert (told["RolloutStarted"], told["Promoted"]) == (1, 1), told

    def passes(self, result: str) -> float:
        """How many ended so since the change was asked for."""
        name = f'queueworker_operator_reconcile_total{{result="{result}"}}'
        return self.operator.metrics()[name] - self.before[name]

    @contextmanager
    def sick(self, rule: Before) -> Iterator[None]:
        self.proxy.before = rule
        try:
            yield
        finally:
            self.proxy.before = lambda _: None


@pytest.fixture(scope="module")
def ward(
    rested: None, cluster: Cluster, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ward]:
    namespace, folder = f"qw-{uuid4().hex[:10]}", tmp_path_factory.mktemp("sick")
    kubectl("create", "namespace", namespace)
    node = network.address_of(network.node_containers(cluster.engine, cluster.name)[0], version=4)
    story = Story(kubectl.into(namespace), node)
    try:
        with CallProxy(kubectl, folder) as proxy:
            operator = OperatorProcess.of(proxy.kubeconfig, namespace, folder / "operator.log")
            operator.start()
            try:
                resource = queueworker(story.given_broker(), replicas=1, shutdownSeconds=5)
                story.given_ready(resource)
                yield Ward(story, proxy, operator, resource)
            finally:
                operator.stop()
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false", check=False)


def test_watches_that_break_again_and_again(ward: Ward) -> None:
    began = time.monotonic()
    ward.changes()
    for _ in range(4):
        wait_until(lambda: ward.proxy.cut_watches() > 0, "streams are open", SOON)
    ward.then_ends_well()
    watches = [call for call in ward.proxy.since(began) if call.is_watch]
    assert len(watches) <= 3 * 12


def test_versions_that_are_gone_for_watches_and_pages(ward: Ward) -> None:
    """Lists come in pages of one; a second page is too late three times, and so is each watch once."""
    gone: Counter[str] = Counter()

    def rule(call: Call) -> Says | None:
        what = "watch" if call.is_watch else "page" if "continue" in call.query else ""
        if not what or gone[what] >= 3:
            return None
        gone[what] += 1
        return GONE

    ward.proxy.page = 1
    try:
        with ward.sick(rule):
            ward.changes()
            wait_until(lambda: ward.proxy.open_watches() == 3, "every stream is open", SOON)
            ward.proxy.cut_watches()
            ward.then_ends_well()
            wait_until(lambda: gone == {"watch": 3, "page": 3}, "each was told so", SOON)
    finally:
        ward.proxy.page = None
    assert not [row for row in ward.operator.rows if row["level"] == "error"]


def test_conflicts_of_the_status_and_of_every_kind_of_write(ward: Ward) -> None:
    refused: Counter[str] = Counter()

    def rule(call: Call) -> Says | None:
        what = f"{call.method} {call.kind}"
        if not call.writes or call.kind == "events" or refused[what] >= 2:
            return None
        refused[what] += 1
        return CONFLICT

    with ward.sick(rule):
        ward.changes()
        ward.then_ends_well()
    assert {"PATCH queueworkers/status", "PATCH deployments", "DELETE deployments"} <= set(refused)
    assert ward.passes("conflict") >= sum(refused.values())


def test_an_overload_that_says_when_to_come_again(ward: Ward) -> None:
    """Everything but the Lease is refused for some seconds."""

    def looks(since: float) -> list[Call]:
        return [call for call in ward.proxy.since(since) if str(call) == f"GET queueworkers {NAME}"]

    began = time.monotonic()
    with ward.sick(lambda call: None if call.kind == "leases" else OVERLOADED):
        ward.changes()
        wait_until(lambda: len(looks(began)) >= 4, "it comes again", SOON)
        asked = [call for call in ward.proxy.since(began) if call.kind != "leases"]
        assert ward.passes("unavailable") >= 3
    times = [call.at for call in looks(began)[:4]]
    assert all(later - earlier >= 3 for earlier, later in pairwise(times)), "it is left alone for so long"
    assert len(asked) <= 40, Counter(map(str, asked))
    assert any("429 TooManyRequests" in str(row) for row in ward.operator.rows)
    ward.then_ends_well()


def test_rights_that_are_taken_away(ward: Ward) -> None:
    """It says so as soon as a list is refused, and asks for no restart, which would not bring them back."""
    with ward.sick(lambda call: None if call.kind == "leases" else FORBIDDEN):
        ward.changes()
        wait_until(lambda: ward.passes("refused") >= 1, "it is counted", SOON)

        def says_so() -> bool:
            status, text = ward.operator.asked("/readyz")
            return status == 503 and "may not be listed" in text and "Forbidden" in text

        wait_until(says_so, "it is not ready, and says why", SOON)
        assert ward.operator.asked("/livez") == (200, "ok\n")
    ward.then_ends_well()
    wait_until(lambda: ward.operator.asked("/readyz") == (200, "ok\n"), "it is ready again", SOON)


def test_errors_of_the_server_for_ten_seconds(ward: Ward) -> None:
    began = time.monotonic()
    with ward.sick(lambda _: BROKEN):
        ward.changes()
        time.sleep(10)
        asked = ward.proxy.since(began)
    assert len(asked) <= 60, Counter(map(str, asked))
    assert any("500 InternalError" in str(row) for row in ward.operator.rows)
    ward.then_ends_well()


def test_a_silence_of_twenty_seconds(ward: Ward) -> None:
    """Longer than the Lease: nobody knows whether another acts meanwhile."""
    began = time.monotonic()
    with ward.sick(lambda _: Fault.HANG):
        ward.changes()
        wait_until(lambda: ward.operator.asked("/readyz")[0] == 503, "it is not ready", SOON)
        assert ward.operator.asked("/livez")[0] == 200
        time.sleep(max(0.0, began + 20 - time.monotonic()))
        asked = ward.proxy.since(began)
    assert len(asked) <= 40, Counter(map(str, asked))
    ward.then_ends_well()
    assert "the Lease was not renewed" in ward.operator.log
    assert "the Lease was lost" in ward.operator.log
    wait_until(lambda: ward.operator.asked("/readyz") == (200, "ok\n"), "it is ready again", SOON)
    assert ward.story.condition("Ready", NAME)["status"] == "True"
