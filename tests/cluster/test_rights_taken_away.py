"""An operator that loses its rights in the middle of a canary, and gets them back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.fixtures import Kubectl, wait_until
from tests.cluster.operators import HOME, Installed
from tests.cluster.story import SOON, Story, event_payloads, with_version
from tests.cluster.test_canary import PAUSE, arm, in_steps, then_at

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]

#: Not over before the rights are gone, on a busy machine either.
PAUSE_SECONDS = 40


@contextmanager
def without_rights(kubectl: Kubectl) -> Iterator[None]:
    """The operator's ClusterRole grants nothing inside the block. The Lease is granted by another role."""
    bindings = kubectl.json("get", "clusterrolebindings")["items"]
    ours = [b for b in bindings if any(s.get("namespace") == HOME for s in b.get("subjects") or ())]
    (name,) = {binding["roleRef"]["name"] for binding in ours}
    rules = kubectl.json("get", "clusterrole", name)["rules"]

    def grant(given: list[Any]) -> None:
        patch = json.dumps({"rules": given})
        kubectl("patch", "clusterrole", name, "--type=merge", "--patch", patch)

    grant([])
    try:
        yield
    finally:
        grant(rules)


def is_ready(operator: Installed) -> bool:
    (pod,) = operator.kubectl.json("get", "pods")["items"]
    return any((c["type"], c["status"]) == ("Ready", "True") for c in pod["status"]["conditions"])


def test_nothing_changes_without_rights_and_all_goes_on_with_them(
    installed: Installed, kubectl: Kubectl, story: Story
) -> None:
    steps = (arm(4), {"pause": {"durationSeconds": PAUSE_SECONDS}}, arm(20), PAUSE)
    first = in_steps(story.given_broker(), *steps, replicas=1)
    story.given_ready(first)
    wait_until(lambda: is_ready(installed), "the operator is ready", SOON)
    (pod,) = installed.pods()
    story.apply(with_version(first, "v2"))
    then_at(story, "Paused", "3/5")

    with without_rights(kubectl):
        began, before, told = time.monotonic(), story.versions(), story.event_reasons()
        assert len(before) == 3, "the stable revision and the canary"
        story.publish(event_payloads(50))
        story.then_committed(50)
        refused = 'queueworker_operator_reconcile_total{result="refused"}'
        wait_until(lambda: installed.metrics()[refused] >= 1, "it counts refusals", SOON)
        assert "forbidden" in installed.log()
        wait_until(lambda: not is_ready(installed), "it is not ready", SOON)
        time.sleep(max(0.0, began + PAUSE_SECONDS + 5 - time.monotonic()))  # it would have gone on by now
        assert story.versions() == before
        assert story.event_reasons() == told

    then_at(story, "Paused", "5/5")
    wait_until(lambda: is_ready(installed), "it is ready again", SOON)
    assert installed.pods() == [pod]
    (body,) = installed.kubectl.json("get", "pods")["items"]
    assert body["status"]["containerStatuses"][0]["restartCount"] == 0, "nobody had to start it again"
