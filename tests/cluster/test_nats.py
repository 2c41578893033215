"""The example on NATS JetStream: credentials from Secrets, a queue that somebody makes, a new version."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from e2e.fixtures import wait_until
from e2e.natsimage import NATS_IMAGE
from tests.cluster.operators import Installed
from tests.cluster.story import LONG, SOON, Body, Story, event_payloads, with_version
from worker_runtime.brokers.base import QueueReading

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]

EXAMPLE: Body = yaml.safe_load(Path("examples/queueworker-nats.yaml").read_text())
USER, PASSWORD = "usage", "s3cret-of-nats"


def given_nats(story: Story) -> str:
    """A server that wants a password; its URL without one, for pods and for this machine."""
    container: Body = {
        "name": "nats",
        "image": NATS_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--jetstream", "--store_dir", "/data", "--user", USER, "--pass", PASSWORD],
        "ports": [{"containerPort": 4222}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "readinessProbe": {"tcpSocket": {"port": 4222}, "periodSeconds": 1},
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "securityContext": {"fsGroup": 65532},
    }
    host, port = story.given_server("nats", spec, 4222)
    story.url = f"nats://{USER}:{PASSWORD}@{host}:{port}"
    return f"nats://{host}:{port}"


def run_command_of(message: str, url: str, directory: Path) -> None:
    """What the condition says, to the letter."""
    (command,) = re.findall(r"`(queueworker provision [^`]+)`", message)
    (directory / "username").write_text(USER)
    (directory / "password").write_text(PASSWORD)
    environ = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "QUEUEWORKER_BROKER_URL": url,
        "QUEUEWORKER_NATS_CREDENTIALS": str(directory),
    }
    done = subprocess.run(shlex.split(command), env=os.environ | environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def then_done(story: Story, number: int) -> QueueReading:
    """Wait until so many have left the queue, and check that nothing is left in it."""
    wait_until(lambda: story.reading().success >= number, f"{number} jobs done", LONG)
    wait_until(lambda: not story.reading().owned, "everything is settled", SOON)
    reading = story.reading()
    assert (reading.ready, reading.dead, reading.success) == (0, 0, number), reading
    return reading


def test_the_example_on_nats(installed: Installed, story: Story, tmp_path: Path) -> None:
    url = given_nats(story)
    story.given_secret("usage-nats", url=url)
    story.given_secret("usage-nats-login", username=USER, password="not yet")
    story.apply(EXAMPLE)
    assert PASSWORD not in story.then_condition("BrokerReachable", "False", "AuthenticationFailed")
    story.given_secret("usage-nats-login", username=USER, password=PASSWORD)
    message = story.then_condition("QueueProvisioned", "False", "QueueNotProvisioned")
    assert "Secret usage-nats" in message
    assert not story.deployments(), "no worker starts before the queue is there"
    run_command_of(message, url, tmp_path)

    old = story.then_serves(EXAMPLE)
    story.then_condition("QueueProvisioned", "True", "Provisioned")
    story.then_condition("PriorityDrained", "True", "PriorityEmpty")
    story.publish(event_payloads(200, "a"))
    then_done(story, 200)

    # A worker that runs keeps its connection; the operator sees at its next look that new ones would fail.
    story.given_secret("usage-nats-login", username=USER, password="changed")
    story.then_condition("BrokerReachable", "False", "AuthenticationFailed")
    newer = with_version(EXAMPLE, "v2")
    story.apply(newer)
    story.publish(event_payloads(50, "b"))
    then_done(story, 250)
    assert {worker.revision for worker in story.reading().workers} == {old}
    story.given_secret("usage-nats-login", username=USER, password=PASSWORD)
    new = story.then_serves(newer)
    assert new != old
    story.publish(event_payloads(200, "c"))
    assert new in {worker.revision for worker in then_done(story, 450).workers}

    shown = story.kubectl("get", "queueworker,deployments,pods,events", "-o", "yaml").stdout
    mine = [part for part in yaml.safe_load(shown)["items"] if "nats" not in part["metadata"]["name"]]
    assert mine
    assert PASSWORD not in yaml.safe_dump(mine), "nothing that we wrote shows it"
    assert PASSWORD not in installed.log()
    workers = f"deployment/{story.deployments()[0]['metadata']['name']}"
    assert PASSWORD not in story.kubectl("logs", workers).stdout
