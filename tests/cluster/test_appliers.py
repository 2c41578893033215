"""Those who apply the resource again and again beside a person, an autoscaler and the operator: Helm, and a
GitOps tool that applies on the server's side."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from e2e.fixtures import Helm, wait_until
from tests.cluster.operators import Installed
from tests.cluster.story import NAME, SOON, Body, Story, queueworker, with_version
from tests.cluster.test_canary import ONE, PAUSE, numbers, then_at

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]

GITOPS = ("--server-side", "--field-manager=argocd-controller")


def manifest(url: str) -> Body:
    """As it is in a repository: what others set is left out."""
    resource = queueworker(url, rollout={"strategy": "Canary", "steps": [ONE, PAUSE]})
    del resource["spec"]["replicas"]
    return resource


def chart(directory: Path, url: str) -> Path:
    (directory / "templates").mkdir(parents=True)
    (directory / "Chart.yaml").write_text("apiVersion: v2\nname: mails\nversion: 0.1.0\n")
    resource = with_version(manifest(url), "{{ .Values.version }}")
    (directory / "templates" / "queueworker.yaml").write_text(json.dumps(resource))
    return directory


def patch(story: Story, **spec: object) -> None:
    """A person sets a field."""
    text = json.dumps({"spec": spec})
    story.kubectl("patch", "qw", NAME, "--type=merge", "--field-manager=somebody", "--patch", text)


def still(story: Story, seconds: float) -> bool:
    """Nobody writes the resource, its Deployments or events meanwhile."""
    before = story.versions(), len(story.event_reasons())
    time.sleep(seconds)
    return before == (story.versions(), len(story.event_reasons()))


def test_helm_upgrades_beside_an_autoscaler_and_a_person(
    installed: Installed, story: Story, helm: Helm, tmp_path: Path
) -> None:
    made = chart(tmp_path / "mails", story.given_broker())
    release = ("upgrade", "--install", "mails", made, "--namespace", story.kubectl.namespace)

    helm(*release, "--set", "version=v1")
    story.kubectl("wait", "--for=condition=Ready", f"qw/{NAME}", "--timeout=90s")
    first = story.resource()["status"]["stable"]["revision"]
    story.kubectl("scale", f"qw/{NAME}", "--replicas=2")
    patch(story, paused=True)

    helm(*release, "--set", "version=v2")
    story.then_condition("Ready", "False", "Paused")
    spec = story.resource()["spec"]
    assert (spec["replicas"], spec["paused"]) == (2, True), "what others own stays"
    patch(story, paused=False)
    then_at(story, "Paused", "2/2")
    assert numbers(story) == {"Stable p20": 1, "Canary p20": 1}

    patch(story, request={"id": "1", "action": "Promote"})
    helm(*release, "--set", "version=v2")
    story.kubectl("wait", "--for=condition=Ready", f"qw/{NAME}", "--timeout=120s", timeout=150)
    body = story.resource()
    assert body["spec"]["request"] == {"id": "1", "action": "Promote"}
    assert body["spec"]["replicas"] == 2
    assert body["status"]["stable"]["revision"] != first
    assert body["status"]["observedGeneration"] == body["metadata"]["generation"]

    helm("uninstall", "mails", "--namespace", story.kubectl.namespace)
    story.then_gone()


def test_who_applies_the_same_all_the_time_changes_nothing(installed: Installed, story: Story) -> None:
    resource = manifest(story.given_broker())

    def apply(one: Body) -> None:
        story.kubectl("apply", *GITOPS, "--filename", "-", stdin=json.dumps(one))

    def difference(one: Body) -> str:
        """As `kubectl diff` shows it; empty where there is none."""
        return story.kubectl("diff", *GITOPS, "--filename", "-", stdin=json.dumps(one), check=False).stdout

    apply(resource)
    story.then_serves(resource)
    story.kubectl("scale", f"qw/{NAME}", "--replicas=2")
    story.then_serves(resource)
    assert difference(resource) == ""
    second = with_version(resource, "v2")
    assert "v2" in difference(second)

    apply(second)
    then_at(story, "Paused", "2/2")
    wait_until(lambda: still(story, 2), "the last transition is over", SOON)

    def apply_each_second(seconds: float) -> None:
        for _ in range(round(seconds)):
            apply(second)
            time.sleep(1)  # a tool that looks this often is what is shown

    story.then_nobody_writes(5, apply_each_second)
    assert difference(second) == "", "neither defaults nor what others own show as drift"

    # Somebody edits a worker beside it: that is put back once, while the tool goes on.
    rows = story.resource()["status"]["revisions"]
    child = next(row["deployment"] for row in rows if row["role"] == "Canary")
    image = second["spec"]["template"]["spec"]["containers"][0]["image"]
    generation = story.kubectl.json("get", "deployment", child)["metadata"]["generation"]
    story.kubectl("set", "image", f"deployment/{child}", "worker=example.invalid/other:1")

    def put_back() -> bool:
        apply(second)
        found = story.kubectl.json("get", "deployment", child)
        return bool(found["spec"]["template"]["spec"]["containers"][0]["image"] == image)

    wait_until(put_back, "the image is put back", SOON)
    then_at(story, "Paused", "2/2")
    wait_until(lambda: still(story, 2), "the last transition is over", SOON)
    after = story.kubectl.json("get", "deployment", child)["metadata"]["generation"]
    assert after == generation + 2, "one edit, one answer"

    patch(story, request={"id": "1", "action": "Promote"})
    apply(second)
    story.then_serves(second)
    spec = story.resource()["spec"]
    assert (spec["replicas"], spec["request"]) == (2, {"id": "1", "action": "Promote"})
    assert difference(second) == ""
