"""A node that the control plane has lost, while its workers still reach the broker."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from e2e import network, programs
from e2e.cluster import Cluster
from e2e.fixtures import Helm, Kubectl, wait_until
from e2e.progress import plain
from tests.cluster.older import older_worker
from tests.cluster.operators import HOME, install
from tests.cluster.story import BROKER, LONG, SOON, Body, Story, event_payloads, queueworker

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


def _on(resource: Body, node: str) -> Body:
    """Its workers run there, and have little time to stop."""
    resource["spec"]["shutdownSeconds"] = 3
    pod = resource["spec"]["template"]["spec"]
    pod |= {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 6}
    # One that stands still is not to be started again by its node.
    patient = {"exec": {"command": ["true"]}, "timeoutSeconds": 10, "failureThreshold": 60}
    pod["containers"][0]["livenessProbe"] = patient
    return resource


def _signal(cluster: Cluster, node: str, pod: str, name: str) -> None:
    """To every process of a pod, from its node: the control plane need not reach it."""
    find = f"grep -lzx HOSTNAME={pod} /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
    cluster.engine.docker("exec", node, "sh", "-c", f"kill -{name} $({find})")


def _stand_still(cluster: Cluster, story: Story, node: str, pod: str, revision: str) -> None:
    """Stop a pod at a moment when it owns deliveries."""

    def owns() -> bool:
        _signal(cluster, node, pod, "STOP")
        owned = story.reading().owned_by.get(revision, {})
        if any(count for worker, count in owned.items() if worker.startswith(pod)):
            return True
        _signal(cluster, node, pod, "CONT")
        return False

    wait_until(owns, f"{pod} stands still with work of its own", SOON)


def test_a_revision_on_a_lost_node_leaves_for_an_older_one_and_reserves_no_more(
    three_node_cluster: Cluster, apart: tuple[Story, str]
) -> None:
    """One worker of it goes on, another stands still with work that only the operator can recover."""
    cluster, (story, lost) = three_node_cluster, apart
    kept = story.kubectl.json("get", "pods", "-l", f"app={BROKER}")["items"][0]["spec"]["nodeName"]
    steps = [{"setCanaryScale": {"replicas": 2}}, {"pause": {}}]
    rollout = {"strategy": "Canary", "steps": steps}
    old = story.given_ready(_on(older_worker(story, rollout=rollout, replicas=3), kept))
    new = _on(queueworker(story.url, rollout=rollout, replicas=3), lost)
    story.apply(new)
    wait_until(lambda: story.stage() == "Paused", "two workers of the canary serve", LONG)
    leaving = story.resource()["status"]["rollout"]["target"]
    theirs = sorted(pod["metadata"]["name"] for pod in story.pods() if pod["spec"]["nodeName"] == lost)
    assert len(theirs) == 2

    # Enough for minutes: who stands still has to have work, long after its node is lost.
    events = event_payloads(6000)
    with story.publishing(events, pause=0.2):
        network.partition(cluster.engine, cluster.name, lost)
        wait_until(lambda: _ready(story.kubectl, lost) == "Unknown", f"{lost} is lost", LONG)
        claimed = story.reading().ledger[leaving].claimed
        wait_until(lambda: story.reading().ledger[leaving].claimed > claimed, "they still take work", SOON)
        _stand_still(cluster, story, lost, theirs[0], leaving)

        story.apply(new | {"spec": new["spec"] | {"request": {"id": "1", "action": "Abort"}}})
        wait_until(lambda: leaving in story.reading().fences, "it is fenced", SOON)
        fenced = story.reading()
        # What was reserved before the fence may still be claimed, and nothing else.
        most = fenced.ledger[leaving].claimed + fenced.reserved
        wait_until(lambda: story.stage() in ("Retire", "Idle"), "the proof", LONG)
        proven = story.reading()
        assert proven.private == 0, "nothing is left that only they could read"
        assert proven.ledger[leaving].taken_over > 0, "what stood still was recovered"
        story.then_condition("Ready", "False", "RolloutAborted", LONG)
        assert _ready(story.kubectl, lost) == "Unknown"
        assert story.resource()["status"]["stable"]["revision"] == old
        names = {pod["metadata"]["name"] for pod in story.pods()}
        assert set(theirs) <= names, "the cluster cannot know that they have stopped"

    _signal(cluster, lost, theirs[0], "CONT")
    wait_until(
        lambda: any(one.host == theirs[0] for one in story.reading().workers), "it is back on the list", SOON
    )
    story.publish(event_payloads(100, "late"))
    wait_until(lambda: len(story.handled()) == len(events) + 100, "the older workers handle everything", LONG)
    network.heal(cluster.engine, cluster.name, lost)
    wait_until(lambda: not set(theirs) & {pod["metadata"]["name"] for pod in story.pods()}, "they go", LONG)
    wait_until(lambda: story.reading().processing == 0, "everything is settled", SOON)

    reading = story.reading()
    row = reading.ledger[leaving]
    assert row.claimed <= most, "it took something after the fence"
    assert row.committed == proven.ledger[leaving].committed, "what was taken over is not settled twice"
    assert row.claimed == row.committed + row.rejected + row.released + row.taken_over
    assert reading.private == reading.ready == reading.failed == reading.dead == 0
    again = [event for event, times in story.handled().items() if times > 1]
    assert len(again) <= row.taken_over
    assert {pod["metadata"]["name"] for pod in story.pods()} == names - set(theirs), "nothing starts again"
    assert story.stage() == "Idle"
