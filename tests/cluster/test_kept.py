"""Revisions that are kept on a cluster, and the request that goes back to one."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.fixtures import wait_until
from queueworker_operator.api.names import LABEL_WORKER
from tests.cluster.operators import Installed
from tests.cluster.story import LONG, NAME, SOON, Story, queueworker, with_version

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def kept(story: Story) -> dict[str, Any]:
    items = story.kubectl.json("get", "controllerrevisions", "-l", f"{LABEL_WORKER}={NAME}")["items"]
    return {item["metadata"]["name"]: item for item in items}


@pytest.mark.parametrize(
    "killed", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["seen through", "killed"]
)
def test_a_rollback_makes_a_kept_revision_again(installed: Installed, story: Story, killed: bool) -> None:
    one = queueworker(story.given_broker(), replicas=1, rollback={"quietSeconds": 3})
    first = story.given_ready(one)
    two = with_version(one, "v2")
    second = story.given_ready(two)
    wait_until(lambda: len(story.deployments()) == 1, "the Deployment of the first is gone", SOON)
    assert story.resource()["status"]["kept"] == [second, first]
    numbers = {name: item["revision"] for name, item in kept(story).items()}
    assert sorted(numbers.values()) == [1, 2]

    two["spec"]["request"] = {"id": "1", "action": "Rollback", "revision": first}
    story.apply(two)
    if killed:
        wait_until(lambda: story.resource()["status"]["rollout"].get("leaving"), "the second is to go", SOON)
        installed.kill()
    story.then_condition("Ready", "False", "RolledBack", LONG)
    assert story.resource()["status"]["stable"]["revision"] == first
    wait_until(lambda: len(story.deployments()) == 1, "the second has left", SOON)
    (left,) = story.deployments()
    assert kept(story)[left["metadata"]["name"]]["revision"] == 3, "it served last"

    two["spec"]["request"] = {"id": "2", "action": "Retry"}
    story.apply(two)
    assert story.then_serves(two) == second

    story.kubectl("delete", "queueworker", NAME, "--timeout=90s")
    wait_until(lambda: not kept(story), "what was kept goes with the resource", SOON)
