"""`kubectl queueworker`, found by kubectl on the path, beside the operator of the chart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.operators import Installed
from tests.cluster.story import NAME, Story, queueworker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def plugin(story: Story, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(story.kubectl.kubeconfig),
    }
    return subprocess.run(
        [story.kubectl.program, "queueworker", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_plugin_shows_pods_and_says_what_stops_a_worker(installed: Installed, story: Story) -> None:
    namespace = story.kubectl.namespace
    revision = story.given_ready(queueworker(story.given_broker()))

    shown = plugin(story, "get", NAME, "-n", namespace)
    assert shown.returncode == 0, shown.stderr
    assert f"{namespace}/{NAME}  nothing to do  Serving" in shown.stdout
    assert f"{revision}  Stable  2/2 ready" in shown.stdout
    assert all(f"{pod['metadata']['name']}  ready" in shown.stdout for pod in story.pods())
    page = plugin(story, "report", NAME, "-n", namespace)
    assert page.returncode == 0, page.stderr
    texts = (revision, "nothing to do</strong> (Serving)", "RolloutStarted")
    assert all(text in page.stdout for text in texts)
    assert all(f"{pod['metadata']['name']} ready" in page.stdout for pod in story.pods())
    everywhere = json.loads(plugin(story, "get", "-A", "--json").stdout)
    assert (namespace, NAME) in {(one["namespace"], one["name"]) for one in everywhere}
    assert plugin(story, "why", NAME, "-n", namespace).returncode == 0

    # A Secret that is not there: somebody has to make it.
    waiting = queueworker(name="waits", broker={"redis": {"secretRef": {"name": "nowhere", "key": "url"}}})
    story.apply(waiting)
    story.then_condition("BrokerReachable", "False", "SecretNotFound", name="waits")
    told = plugin(story, "why", "waits", "-n", namespace)
    assert told.returncode == 4, told.stdout
    assert "nowhere" in told.stdout

    missing = plugin(story, "why", "nobody", "-n", namespace)
    assert missing.returncode == 1
    assert f"there is no QueueWorker nobody in namespace {namespace}" in missing.stderr
