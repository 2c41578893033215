"""What an operator still sends after it was replaced is refused by the API server, whatever it believes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial

import pytest

from e2e.cluster import Cluster
from e2e.fixtures import wait_until
from queueworker_operator.act.audits import audit_body
from queueworker_operator.act.children import render
from queueworker_operator.act.executor import Executor, SupersededError
from queueworker_operator.api.parse import parse
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.apiserver import ApiServer, ConflictError, connect, queueworkers
from queueworker_operator.observe.audits import JobAudits
from queueworker_operator.observe.checks import BrokerChecks
from queueworker_operator.observe.cluster import look
from queueworker_operator.observe.queues import QueueReadings
from queueworker_operator.observe.samples import WorkerSamples
from queueworker_operator.plan.actions import RetireRevision, WriteStatus
from queueworker_operator.run.lease import Lease
from tests.cluster.operators import OperatorProcess
from tests.cluster.story import NAME, SOON, Story, queueworker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def _now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[ApiServer]:
    async with await connect({"KUBECONFIG": str(cluster.kubeconfig)}) as server:
        yield server


async def _old_operator(api: ApiServer, namespace: str) -> Executor:
    """An operator that has looked, holds a Lease of its own, and is about to act."""
    lease = Lease(api, namespace, "an-older-lease", "old", clock=asyncio.get_running_loop().time)
    await lease.acquire()
    body = await api.get(queueworkers(namespace, NAME))
    resource = parse(body)
    assert isinstance(resource, QueueWorker)
    seen = await look(
        api,
        BrokerChecks(_now),
        QueueReadings(_now),
        WorkerSamples(_now),
        JobAudits(_now),
        resource,
        None,
        lambda owner, revision, replicas: render(owner, revision, replicas, lease.epoch),
        partial(audit_body, resource.metadata, resource.spec),
        _now,
    )
    return Executor(api, lease, _now, "old", body, resource, seen)


def _retire(old: Executor) -> RetireRevision:
    (child,) = old.look.children.values()
    return RetireRevision(child.facts.name, child.facts.deployment)


async def test_a_write_that_was_decided_before_the_successor_wrote_is_refused(
    operator_process: OperatorProcess, story: Story, api: ApiServer
) -> None:
    await asyncio.to_thread(story.given_ready, queueworker(story.given_broker(), replicas=1))
    old = await _old_operator(api, story.kubectl.namespace)
    await asyncio.to_thread(story.kubectl, "scale", f"queueworker/{NAME}", "--replicas=2")
    await asyncio.to_thread(
        wait_until, lambda: story.deployments()[0]["spec"]["replicas"] == 2, "the successor writes", SOON
    )
    with pytest.raises(ConflictError):
        await old.run((_retire(old),))
    with pytest.raises(ConflictError):
        await old.run((WriteStatus(old.resource.status.model_copy(update={"replicas": 7})),))
    assert story.deployments()[0]["spec"]["replicas"] == 2
    assert story.resource()["status"]["replicas"] != 7


async def test_an_operator_that_meets_a_later_epoch_stops(
    operator_process: OperatorProcess, story: Story, api: ApiServer
) -> None:
    await asyncio.to_thread(story.given_ready, queueworker(story.given_broker(), replicas=1))
    name = story.deployments()[0]["metadata"]["name"]
    story.kubectl("annotate", "deployment", name, "--overwrite", "queueworker.dev/epoch=99")
    old = await _old_operator(api, story.kubectl.namespace)
    assert old.lease.held
    with pytest.raises(SupersededError):
        await old.run((_retire(old),))
    assert not old.lease.held
    assert story.deployments()[0]["spec"]["replicas"] == 1
