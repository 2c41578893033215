"""A QueueWorker from the first apply to the last drained worker, with the operator of the chart."""

from __future__ import annotations

import pytest

from e2e.fixtures import wait_until
from queueworker_operator.api.names import LABEL_WORKER
from tests.cluster.operators import Installed
from tests.cluster.story import (
    NAME,
    QUEUE,
    SOON,
    Story,
    event_payloads,
    queueworker,
    with_version,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def test_workers_consume_and_follow_the_scale_subresource(installed: Installed, story: Story) -> None:
    resource = queueworker(story.given_broker())
    revision = story.given_ready(resource)
    assert story.has_finalizer()
    assert story.condition("Available")["status"] == "True"
    assert {"RolloutStarted", "Promoted"} <= set(story.event_reasons())

    story.publish(event_payloads(100))
    reading = story.then_committed(100)
    assert set(reading.ledger) == {revision}, "the books name the revision that the operator gave"
    assert set(story.handled().values()) == {1}

    story.kubectl("scale", f"queueworker/{NAME}", "--replicas=3")
    wait_until(lambda: story.resource()["status"].get("availableReplicas") == 3, "three are available", SOON)
    story.kubectl("scale", f"queueworker/{NAME}", "--replicas=0")
    wait_until(lambda: not story.pods(), "all pods are gone", SOON)
    shown = story.kubectl("get", "qw", NAME, "-o", "wide").stdout
    assert QUEUE in shown
    scale = story.kubectl.json("get", "queueworker", NAME, "--subresource=scale")
    assert scale["spec"].get("replicas", 0) == 0
    assert scale["status"]["selector"] == f"{LABEL_WORKER}={NAME}"


def test_a_change_of_version_rolls_and_loses_nothing(installed: Installed, story: Story) -> None:
    resource = queueworker(story.given_broker())
    old = story.given_ready(resource)
    least_available = []

    with story.publishing(event_payloads(300), pause=0.15):
        wait_until(lambda: story.by_version().get("v1", 0) > 10, "the first version works", SOON)
        story.apply(with_version(resource, "v2"))

        def rolled() -> bool:
            serving = sum(d.get("status", {}).get("availableReplicas", 0) for d in story.deployments())
            least_available.append(serving)
            body = story.resource()
            stable = body["status"].get("stable", {}).get("revision")
            return stable not in (None, old) and body["status"]["rollout"]["stage"] == "Idle"

        wait_until(rolled, "the second version serves alone", SOON)
    new = story.then_serves(resource)
    assert new != old
    assert min(least_available) >= 2, f"available workers over the change: {least_available}"
    assert [d["metadata"]["name"] for d in story.deployments()] == [
        story.resource()["status"]["stable"]["deployment"]
    ]

    reading = story.then_committed(300)
    assert set(reading.ledger) == {old, new}
    assert set(story.handled().values()) == {1}, "nobody was stopped in the middle of a job"
    assert story.by_version().keys() == {"v1", "v2"}
    assert "RevisionRetired" in story.event_reasons() or story.event_reasons().count("Promoted") == 2


def test_going_back_uses_the_same_revision(installed: Installed, story: Story) -> None:
    resource = queueworker(story.given_broker(), replicas=1)
    first = story.given_ready(resource)
    assert story.given_ready(with_version(resource, "v2")) != first
    assert story.given_ready(resource) == first


def test_deletion_drains_and_lets_go(installed: Installed, story: Story) -> None:
    resource = queueworker(story.given_broker())
    story.given_ready(resource)
    story.publish(event_payloads(400))
    wait_until(lambda: story.committed() > 20, "workers are busy", SOON)

    story.kubectl("delete", "queueworker", NAME, "--wait=false")
    story.then_gone()
    alive = [p for p in story.pods() if p["status"]["phase"] not in ("Succeeded", "Failed")]
    assert not alive, "the resource went before its last worker had stopped"
    wait_until(lambda: not story.deployments(), "its Deployments are collected", SOON)

    reading = story.reading()
    committed = sum(row.committed for row in reading.ledger.values())
    assert reading.private == 0, reading
    assert reading.fences == {}, "they are lifted at the end"
    assert committed + reading.ready == 400, f"settled or given back, nothing else: {reading}"
    assert set(story.handled().values()) <= {1}
    assert len(story.handled()) == committed, "what ran was settled, what never ran went back"


def test_two_resources_in_a_namespace_do_not_touch_each_other(installed: Installed, story: Story) -> None:
    url = story.given_broker()
    one, two = queueworker(url, "one", replicas=1), queueworker(url, "two", replicas=1)
    story.given_ready(one)
    story.given_ready(two)
    story.kubectl("delete", "queueworker", "one", "--timeout=90s")
    assert story.then_serves(two)
    assert len(story.pods("two")) == 1


def test_a_bare_template_runs_where_pod_security_is_restricted(installed: Installed, story: Story) -> None:
    resource = queueworker(story.given_broker(), replicas=1)
    policy = "pod-security.kubernetes.io/enforce=restricted"
    story.kubectl("label", "namespace", story.kubectl.namespace, policy)
    story.given_ready(resource)
    story.publish(event_payloads(10))
    story.then_committed(10)
