"""A node that the control plane has lost, while its workers still reach the broker."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from e2e import network, programs
from e2e.cluster import Cluster
from e2e.fixtures import Helm, Kubectl, wait_until
from e2e.progress import plain
from tests.cluster.operators import HOME, install
from tests.cluster.story import LONG, SOON, Story, event_payloads, queueworker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]


def _ready(kubectl: Kubectl, node: str) -> str:
    conditions = kubectl.json("get", "node", node)["status"]["conditions"]
    return str(next(c["status"] for c in conditions if c["type"] == "Ready"))


@pytest.fixture
def apart(three_node_cluster: Cluster) -> Iterator[tuple[Story, str]]:
    """A story whose broker is on one worker node, and the name of the other: no operator runs there."""
    cluster = three_node_cluster
    kubectl = Kubectl(cluster.kubectl, cluster.kubeconfig)
    operator = install(cluster, Helm(programs.tool("helm", plain()), cluster.kubeconfig), HOME, [])
    home = operator.kubectl.json("get", "pods")["items"][0]["spec"]["nodeName"]
    nodes = [n for n in network.node_containers(cluster.engine, cluster.name) if n.role != "control-plane"]
    lost = next(n for n in nodes if n.name != home)
    kept = next(n for n in nodes if n is not lost)
    namespace = f"qw-{uuid4().hex[:10]}"
    kubectl("create", "namespace", namespace)
    story = Story(kubectl.into(namespace), network.address_of(kept, version=4))
    story.given_broker(on_node=kept.name)
    try:
        yield story, lost.name
    finally:
        network.heal(cluster.engine, cluster.name, lost.name)
        kubectl("delete", "namespace", namespace, "--wait=false", check=False)


def test_workers_on_a_lost_node_go_on_and_nothing_runs_twice(
    three_node_cluster: Cluster, apart: tuple[Story, str]
) -> None:
    cluster, (story, lost) = three_node_cluster, apart
    resource = queueworker(story.url)
    resource["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": lost}
    story.given_ready(resource)
    before = {pod["metadata"]["uid"] for pod in story.pods()}
    story.publish(event_payloads(50, "before"))
    story.then_committed(50)

    network.partition(cluster.engine, cluster.name, lost)
    wait_until(lambda: _ready(story.kubectl, lost) == "Unknown", f"{lost} is lost", LONG)
    story.then_condition("Available", "False", "MinimumReplicasUnavailable")
    story.publish(event_payloads(200, "during"))
    reading = story.then_committed(250)
    assert set(story.handled().values()) == {1}, "nobody took over what was still renewed"
    assert sum(row.taken_over for row in reading.ledger.values()) == 0
    assert {pod["metadata"]["uid"] for pod in story.pods()} == before, "no worker was replaced"

    network.heal(cluster.engine, cluster.name, lost)
    wait_until(lambda: _ready(story.kubectl, lost) == "True", f"{lost} is back", LONG)
    story.then_condition("Available", "True", "MinimumReplicasAvailable", seconds=SOON)
    assert {pod["metadata"]["uid"] for pod in story.pods()} == before
    story.publish(event_payloads(20, "after"))
    story.then_committed(270)
    assert set(story.handled().values()) == {1}
