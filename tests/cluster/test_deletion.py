"""The end of a QueueWorker on a cluster: workers that live on, a lost broker, a namespace that goes."""

from __future__ import annotations

import pytest

from e2e.fixtures import wait_until
from tests.cluster.operators import Installed
from tests.cluster.story import BROKER, LONG, NAME, SOON, Story, event_payloads, queueworker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]

ORPHAN = '{"spec": {"deletion": {"policy": "Orphan"}}}'


def test_orphans_live_on_and_are_adopted_by_the_next_of_the_name(installed: Installed, story: Story) -> None:
    resource = queueworker(story.given_broker(), replicas=1)
    revision = story.given_ready(resource)
    before = {pod["metadata"]["name"] for pod in story.pods()}

    story.kubectl("delete", "queueworker", NAME, "--cascade=orphan", "--timeout=90s")
    assert len(story.deployments()) == 1
    assert story.given_ready(resource) == revision
    story.kubectl("patch", "queueworker", NAME, "--type=merge", "--patch", ORPHAN)
    story.kubectl("delete", "queueworker", NAME, "--timeout=90s")
    (left,) = story.deployments()
    assert not left["metadata"].get("ownerReferences")
    story.publish(event_payloads(20))
    story.then_committed(20)

    assert story.given_ready(resource) == revision
    assert {pod["metadata"]["name"] for pod in story.pods()} == before, "they are the same workers"
    (adopted,) = story.deployments()
    assert [one["name"] for one in adopted["metadata"]["ownerReferences"]] == [NAME]


def test_a_deletion_without_its_broker_waits_until_somebody_says_orphan(
    installed: Installed, story: Story
) -> None:
    story.given_ready(queueworker(story.given_broker(), replicas=1))
    story.kubectl("scale", f"deployment/{BROKER}", "--replicas=0")
    story.kubectl("delete", "queueworker", NAME, "--wait=false")

    told = story.then_condition("Ready", "False", "Deleting")
    assert story.deployments()[0]["spec"]["replicas"] == 1, "nobody is stopped before the proof"
    wait_until(
        lambda: "spec.deletion.policy to Orphan" in story.condition("Ready").get("message", ""),
        f"the way out is named; first it said {told}",
        SOON,
    )
    story.kubectl("patch", "queueworker", NAME, "--type=merge", "--patch", ORPHAN)
    story.then_gone()
    assert [one["spec"]["replicas"] for one in story.deployments()] == [1]


def test_a_namespace_goes_with_everything_in_it(installed: Installed, story: Story) -> None:
    """Deployments, pods, the Secret and the broker vanish in any order, and no events can be posted."""
    url = story.given_broker()
    story.given_secret("broker-url", url=url)
    resource = queueworker(replicas=1, broker={"redis": {"secretRef": {"name": "broker-url"}}})
    story.given_ready(resource)
    story.kubectl("delete", "namespace", story.kubectl.namespace, "--wait=false")
    wait_until(lambda: not story.exists("namespace", story.kubectl.namespace), "the namespace is gone", LONG)
