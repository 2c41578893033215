"""Who owns which field: others' fields survive, ours are put back, and nothing is written without need."""

from __future__ import annotations

import json
import time

import pytest

from e2e.fixtures import wait_until
from tests.cluster.operators import Installed
from tests.cluster.story import NAME, SOON, Story, event_payloads, queueworker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]

#: The chart's operator lists everything this often.
RESYNC_SECONDS = 15.0


def test_fields_of_other_managers_survive_and_ours_are_put_back(installed: Installed, story: Story) -> None:
    resource = queueworker(story.given_broker(), replicas=1)
    story.given_ready(resource)
    (deployment,) = story.deployments()
    name = deployment["metadata"]["name"]
    metadata = {"name": name, "labels": {"team": "billing"}, "annotations": {"example.com/owner": "someone"}}
    foreign = json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})
    apply = ("apply", "--server-side", "--field-manager=billing", "--validate=false", "--filename", "-")
    story.kubectl(*apply, stdin=foreign)

    # Somebody scales the child and another changes its image: both are ours.
    story.kubectl("scale", f"deployment/{name}", "--replicas=3")
    wait_until(lambda: story.deployments()[0]["spec"]["replicas"] == 1, "the number is put back", SOON)
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    story.kubectl("set", "image", f"deployment/{name}", "worker=example.invalid/other:1")

    def image_now() -> str:
        return str(story.deployments()[0]["spec"]["template"]["spec"]["containers"][0]["image"])

    wait_until(lambda: image_now() == image, "the image is put back", SOON)

    # The operator writes the child once more, for a reason of its own.
    story.kubectl("scale", f"queueworker/{NAME}", "--replicas=2")
    wait_until(lambda: story.deployments()[0]["spec"]["replicas"] == 2, "scaled", SOON)
    after = story.deployments()[0]["metadata"]
    assert after["labels"]["team"] == "billing"
    assert after["annotations"]["example.com/owner"] == "someone"
    assert after["uid"] == deployment["metadata"]["uid"], "it is still the same Deployment"


def test_a_child_that_lost_its_owner_is_adopted(installed: Installed, story: Story) -> None:
    story.given_ready(queueworker(story.given_broker(), replicas=1))
    name = story.deployments()[0]["metadata"]["name"]
    patch = '[{"op": "remove", "path": "/metadata/ownerReferences"}]'
    story.kubectl("patch", "deployment", name, "--type=json", "--patch", patch)

    def owner() -> str:
        references = story.deployments()[0]["metadata"].get("ownerReferences", [])
        return next((r["name"] for r in references if r.get("controller")), "")

    wait_until(lambda: owner() == NAME, "the child has its controller again", SOON)


def test_a_foreign_deployment_with_our_name_is_never_touched(installed: Installed, story: Story) -> None:
    resource = queueworker(story.given_broker(), replicas=1)
    story.given_ready(resource)
    name = story.deployments()[0]["metadata"]["name"]
    story.kubectl("delete", "queueworker", NAME, "--timeout=90s")
    wait_until(lambda: not story.deployments(), "its Deployment is collected", SOON)
    labels = {"app": "somebody-else"}
    pause = {"name": "sleep", "image": "queueworker/redis:dev", "imagePullPolicy": "IfNotPresent"}
    story.kubectl.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [pause]}},
            },
        }
    )
    before = story.kubectl.json("get", "deployment", name)
    story.apply(resource)
    message = story.then_condition("Stalled", "True", "NameConflict")
    assert name in message
    after = story.kubectl.json("get", "deployment", name)
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("labels") == before["metadata"].get("labels")


def test_nothing_is_written_when_nothing_changed(installed: Installed, story: Story) -> None:
    story.given_ready(queueworker(story.given_broker()))
    story.publish(event_payloads(20))
    story.then_committed(20)

    def still(seconds: float) -> bool:
        before = story.versions()
        time.sleep(seconds)
        return story.versions() == before

    wait_until(lambda: still(3), "the last transition is over", SOON)
    story.then_nobody_writes(2 * RESYNC_SECONDS + 5)  # over two resyncs
