"""An operator that is killed in the middle of a change, and one that does not know that it was replaced."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.fixtures import wait_until
from tests.cluster.operators import OperatorProcess
from tests.cluster.story import SOON, Story, event_payloads, queueworker, with_version

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def test_a_change_survives_the_operators_death_at_every_step(
    operator_process: OperatorProcess, story: Story
) -> None:
    resource = queueworker(story.given_broker())
    old = story.given_ready(resource)
    changed = with_version(resource, "v2")

    with story.publishing(event_payloads(300), pause=0.2):
        story.apply(changed)
        wait_until(lambda: len(story.deployments()) == 2, "the new revision is created", SOON)
        operator_process.kill()
        operator_process.start()
        wait_until(
            lambda: any(d["spec"]["replicas"] < 2 for d in story.deployments()) or None,
            "the old revision shrinks",
            SOON,
        )
        operator_process.kill()
        operator_process.start()
        new = story.then_serves(changed)

    assert new != old
    assert len(story.deployments()) == 1
    story.then_committed(300)
    assert set(story.handled().values()) == {1}
    assert story.event_reasons().count("RolloutStarted") == 2, "once for each of two changes"


def test_a_deletion_survives_the_operators_death(operator_process: OperatorProcess, story: Story) -> None:
    story.given_ready(queueworker(story.given_broker()))
    operator_process.kill()
    story.kubectl("delete", "queueworker", "stats-usage", "--wait=false")
    wait_until(lambda: "deletionTimestamp" in story.resource()["metadata"], "it waits for its operator", SOON)
    operator_process.start()
    story.then_gone()
    assert not [p for p in story.pods() if p["status"]["phase"] not in ("Succeeded", "Failed")]


def test_the_successor_marks_the_children_before_it_changes_any(
    operator_process: OperatorProcess, story: Story
) -> None:
    story.given_ready(queueworker(story.given_broker(), replicas=1))

    def epoch() -> int:
        return int(story.deployments()[0]["metadata"]["annotations"]["queueworker.dev/epoch"])

    first = epoch()
    operator_process.kill()
    operator_process.start()
    story.kubectl("scale", "queueworker/stats-usage", "--replicas=2")
    wait_until(lambda: story.deployments()[0]["spec"]["replicas"] == 2, "scaled by the successor", SOON)
    assert epoch() > first
    lease = story.kubectl.json("get", "lease", "queueworker-operator")["spec"]
    assert lease["leaseTransitions"] == epoch()


def patch_lease(story: Story, **spec: Any) -> None:
    """Not read and replaced: the holder renews it in between."""
    patch = json.dumps({"spec": spec})
    story.kubectl("patch", "lease", "queueworker-operator", "--type", "merge", "--patch", patch)


def test_an_operator_that_was_replaced_does_nothing(operator_process: OperatorProcess, story: Story) -> None:
    story.given_ready(queueworker(story.given_broker(), replicas=1))
    transitions = story.kubectl.json("get", "lease", "queueworker-operator")["spec"]["leaseTransitions"]
    patch_lease(story, holderIdentity="another", leaseTransitions=transitions + 1, leaseDurationSeconds=3600)
    wait_until(lambda: "the Lease was lost" in operator_process.log, "it notices", SOON)

    story.kubectl("scale", "queueworker/stats-usage", "--replicas=3")
    lease = story.kubectl.json("get", "lease", "queueworker-operator")
    wait_until(lambda: "waits for the Lease" in operator_process.log, "it waits", SOON)
    assert story.deployments()[0]["spec"]["replicas"] == 1
    assert story.kubectl.json("get", "lease", "queueworker-operator") == lease, "it leaves the Lease alone"

    patch_lease(story, holderIdentity="")
    wait_until(lambda: story.deployments()[0]["spec"]["replicas"] == 3, "it acts again", SOON)


def test_a_stop_lets_the_next_one_in_at_once(operator_process: OperatorProcess, story: Story) -> None:
    story.given_ready(queueworker(story.given_broker(), replicas=1))
    assert operator_process.stop() == 0
    assert story.kubectl.json("get", "lease", "queueworker-operator")["spec"]["holderIdentity"] == ""


def test_health_and_metrics_tell_what_is_true(operator_process: OperatorProcess, story: Story) -> None:
    story.given_ready(queueworker(story.given_broker(), replicas=1))
    get, metrics = operator_process.asked, operator_process.metrics
    assert get("/livez") == (200, "ok\n")
    assert get("/readyz") == (200, "ok\n")
    now = metrics()
    assert now["queueworker_operator_lease_held"] == 1
    assert now['queueworker_operator_reconcile_total{result="changed"}'] >= 1
    assert now["queueworker_operator_last_list_age_seconds"] < 60
    # It is the number at the last full list, which may be from before the resource.
    wait_until(lambda: metrics()["queueworker_operator_queueworkers"] == 1, "the resource is counted", SOON)

    patch_lease(story, holderIdentity="another", leaseDurationSeconds=3600)
    wait_until(lambda: get("/readyz") == (503, "the Lease is not held\n"), "it is not ready", SOON)
    assert get("/livez")[0] == 200, "a restart would not bring the Lease back"
