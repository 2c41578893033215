"""The verbs of `kubectl queueworker` on a cluster, beside the operator of the chart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from queueworker_operator.api.names import GROUP, GROUP_VERSION, PLUGIN_MANAGER, PLURAL
from tests.cluster.operators import Installed
from tests.cluster.story import NAME, Story, queueworker, with_version
from tests.cluster.test_plugin import plugin

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def verb(story: Story, *arguments: str, wait: bool = True) -> str:
    """What a verb prints that ends with code 0."""
    waiting = ("--wait", "--timeout", "110") if wait else ()
    done = plugin(story, *arguments, "-n", story.kubectl.namespace, *waiting)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_change_is_held_paused_aborted_brought_out_and_rolled_back_by_verbs(
    installed: Installed, story: Story
) -> None:
    steps = [{"setCanaryScale": {"replicas": 1}}, {"pause": {}}, {"pause": {}}]
    one = queueworker(
        story.given_broker(),
        replicas=1,
        shutdownSeconds=5,
        rollout={"strategy": "Canary", "steps": steps},
        rollback={"quietSeconds": 3},
    )
    first = story.given_ready(one)

    held = verb(story, "hold", NAME, "--reason", "a night", wait=False)
    assert 'wrote spec.hold: {"reason": "a night"}' in held
    story.apply(with_version(one, "v2"))
    story.then_condition("Ready", "False", "Held")
    assert "(PauseStep)" in verb(story, "release", NAME)

    assert "then: done (Paused)" in verb(story, "pause", NAME)
    a_tool_applies(story, {"paused": True}, "argocd")
    resumed = verb(story, "resume", NAME)
    assert "spec.paused is also written by argocd, which may put it back" in resumed
    assert "(PauseStep)" in resumed

    shown = verb(story, "abort", NAME, "--dry-run", wait=False)
    assert "would write spec.request: Abort" in shown
    assert "request" not in story.resource()["spec"]
    assert "then: done (RolloutAborted)" in verb(story, "abort", NAME)
    assert story.resource()["status"]["stable"]["revision"] == first
    again = plugin(story, "abort", NAME, "-n", story.kubectl.namespace)
    assert again.returncode == 5
    assert "no change is under way that could be aborted" in again.stderr

    retried = json.loads(verb(story, "retry", NAME, "--json"))
    assert (retried["code"], retried["reason"]) == (0, "PauseStep")
    at = story.resource()["status"]["rollout"]["step"]
    assert "(PauseStep)" in verb(story, "skip", NAME)
    assert story.resource()["status"]["rollout"]["step"] != at
    assert "(Serving)" in verb(story, "promote", NAME)
    second = story.resource()["status"]["stable"]["revision"]
    assert second != first
    assert "then: done (RolledBack)" in verb(story, "rollback", NAME, "--to", first)
    body = story.kubectl.json("get", "queueworker", NAME, "--show-managed-fields")
    assert body["status"]["stable"]["revision"] == first
    assert PLUGIN_MANAGER in {entry["manager"] for entry in body["metadata"]["managedFields"]}


def test_the_right_that_misses_is_named(story: Story, tmp_path: Path) -> None:
    # Nobody has to act on it: the API server's answer is all that this is about.
    story.apply(queueworker("redis://nowhere:6379/0"))
    kubeconfig = str(as_account(story, "default", tmp_path))
    blind = plugin(story, "pause", NAME, "-n", story.kubectl.namespace, "--kubeconfig", kubeconfig)
    assert blind.returncode == 2
    assert _misses(story, "get") in blind.stderr

    rules = [{"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get"]}]
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": story.kubectl.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"}
    api, metadata = {"apiVersion": "rbac.authorization.k8s.io/v1"}, {"metadata": {"name": "looks"}}
    story.kubectl.apply(
        {**api, **metadata, "kind": "Role", "rules": rules},
        {**api, **metadata, "kind": "RoleBinding", "subjects": [subject], "roleRef": reference},
    )
    looking = plugin(story, "pause", NAME, "-n", story.kubectl.namespace, "--kubeconfig", kubeconfig)
    assert looking.returncode == 2
    assert _misses(story, "patch") in looking.stderr
    assert not story.resource()["spec"].get("paused")


def a_tool_applies(story: Story, spec: dict[str, object], manager: str) -> None:
    """As GitOps tools do: its own fields only, server-side, whoever had them before."""
    mine = {
        "apiVersion": GROUP_VERSION,
        "kind": "QueueWorker",
        "metadata": {"name": NAME},
        "spec": spec,
    }
    arguments = ("--server-side", "--force-conflicts", "--field-manager", manager, "--filename", "-")
    story.kubectl("apply", *arguments, stdin=json.dumps(mine))


def as_account(story: Story, account: str, folder: Path) -> Path:
    """A kubeconfig with the rights of a service account."""
    config = yaml.safe_load(story.kubectl.kubeconfig.read_text())
    token = story.kubectl("create", "token", account).stdout.strip()
    for user in config["users"]:
        user["user"] = {"token": token}
    written = folder / "kubeconfig"
    written.write_text(yaml.safe_dump(config))
    written.chmod(0o600)
    return written


def _misses(story: Story, right: str) -> str:
    return f"right to {right} {PLURAL}.{GROUP} in namespace {story.kubectl.namespace}"
