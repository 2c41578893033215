"""A HorizontalPodAutoscaler beside the operator. None of its metrics can be read here; a number below its
least is raised all the same."""

from __future__ import annotations

import time

import pytest

from e2e.fixtures import wait_until
from tests.cluster.operators import Installed
from tests.cluster.story import LONG, NAME, SOON, Body, Story, queueworker, with_version
from tests.cluster.test_canary import ONE, PAUSE, asks, numbers, then_at

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]

#: How often the autoscaler looks.
SYNC_SECONDS = 15.0


def autoscaler(least: int, kind: str, name: str) -> Body:
    group = "queueworker.dev/v1alpha1" if kind == "QueueWorker" else "apps/v1"
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "workers"},
        "spec": {
            "scaleTargetRef": {"apiVersion": group, "kind": kind, "name": name},
            "minReplicas": least,
            "maxReplicas": 6,
        },
    }


def test_one_on_the_resource_scales_it_in_a_canary_too_and_one_on_a_child_is_told(
    installed: Installed, story: Story
) -> None:
    first = queueworker(story.given_broker(), rollout={"strategy": "Canary", "steps": [ONE, PAUSE]})
    # The autoscaler owns it.
    del first["spec"]["replicas"]
    story.given_ready(first)
    story.kubectl.apply(autoscaler(2, "QueueWorker", NAME))
    wait_until(lambda: story.resource()["spec"]["replicas"] == 2, "it is scaled", SOON)
    story.then_serves(first)

    second = with_version(first, "v2")
    story.apply(second)
    then_at(story, "Paused", "2/2")
    assert numbers(story) == {"Stable p20": 1, "Canary p20": 1}
    story.kubectl.apply(autoscaler(3, "QueueWorker", NAME))
    wait_until(lambda: numbers(story) == {"Stable p20": 2, "Canary p20": 1}, "it is split anew", SOON)
    then_at(story, "Paused", "2/2")
    story.apply(asks(second, "1", "Promote"))
    story.then_serves(second)
    assert [one["spec"]["replicas"] for one in story.deployments()] == [3]

    story.kubectl("delete", "hpa", "workers")
    story.kubectl("scale", f"queueworker/{NAME}", "--replicas=1")
    story.then_serves(second)
    (child,) = story.deployments()
    name = child["metadata"]["name"]
    story.kubectl.apply(autoscaler(2, "Deployment", name))
    message = story.then_condition("Stalled", "True", "ForeignAutoscaler")
    assert name in message
    assert story.condition("Ready")["reason"] == "ForeignAutoscaler"
    wait_until(lambda: story.resource()["status"]["availableReplicas"] == 2, "its number stays", SOON)

    def still(seconds: float) -> bool:
        before = story.versions()
        time.sleep(seconds)
        return story.versions() == before

    wait_until(lambda: still(2), "the last transition is over", SOON)
    story.then_nobody_writes(SYNC_SECONDS + 3)  # over a look of the autoscaler and a list of the operator
    assert story.event_reasons().count("ForeignAutoscaler") == 1

    story.kubectl("delete", "hpa", "workers")
    story.kubectl("scale", f"deployment/{name}", "--replicas=4")
    # Not the other way round: it may serve before it was scaled.
    wait_until(
        lambda: [one["spec"]["replicas"] for one in story.deployments()] == [1],
        "the number is put back",
        LONG,
    )
    story.then_condition("Ready", "True", "Serving", LONG)
