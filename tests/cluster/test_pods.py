"""Pods that go: with a grace period, killed, and on a node that the control plane has lost."""

from __future__ import annotations

import pytest

from e2e.fixtures import wait_until
from tests.cluster.operators import Installed
from tests.cluster.story import SOON, Story, event_payloads, queueworker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def test_a_deleted_pod_finishes_what_runs_and_gives_back_the_rest(installed: Installed, story: Story) -> None:
    story.given_ready(queueworker(story.given_broker()))
    story.publish(event_payloads(400))
    wait_until(lambda: story.committed() > 20, "workers are busy", SOON)
    victim = story.pods()[0]["metadata"]["name"]
    story.kubectl("delete", "pod", victim, "--timeout=60s")
    reading = story.then_committed(400)
    assert sum(row.taken_over for row in reading.ledger.values()) == 0, "it left nothing to be taken over"
    assert set(story.handled().values()) == {1}


def test_a_killed_pod_loses_nothing(installed: Installed, story: Story) -> None:
    story.given_ready(queueworker(story.given_broker()))
    story.publish(event_payloads(400))
    wait_until(lambda: story.committed() > 20, "workers are busy", SOON)
    pid = "import os, signal; [os.kill(int(p), signal.SIGKILL) for p in os.listdir('/proc') if p.isdigit()]"
    victim = story.pods()[0]["metadata"]["name"]
    # Every process of the container at once: nothing in it can clean up.
    story.kubectl("exec", victim, "-c", "worker", "--", "python3", "-c", pid, check=False)
    story.kubectl("delete", "pod", victim, "--grace-period=0", "--force", "--wait=false")
    reading = story.then_committed(400)
    handled = story.handled()
    assert len(handled) == 400
    again = sum(handled.values()) - 400
    taken = sum(row.taken_over for row in reading.ledger.values())
    assert again <= taken, f"{again} ran twice, {taken} were taken over"
