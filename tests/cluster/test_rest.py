"""What the operator does about resources at rest, which it judges by one list of everything."""

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
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.apiserver import ApiServer, connect, queueworkers
from queueworker_operator.observe.audits import JobAudits
from queueworker_operator.observe.checks import BrokerChecks
from queueworker_operator.observe.cluster import look, look_at_shelf
from queueworker_operator.observe.queues import QueueReadings
from queueworker_operator.observe.samples import WorkerSamples
from queueworker_operator.observe.shelf import Shelf
from queueworker_operator.plan.facts import BrokerCheck, QueueFacts, Workers
from tests.cluster.operators import OperatorProcess
from tests.cluster.story import NAME, SOON, Story, queueworker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]


def _now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[ApiServer]:
    async with await connect({"KUBECONFIG": str(cluster.kubeconfig)}) as server:
        yield server


async def test_the_list_says_what_a_look_says(
    operator_process: OperatorProcess, story: Story, api: ApiServer
) -> None:
    await asyncio.to_thread(story.given_ready, queueworker(story.given_broker(), replicas=1))
    # Whoever observes is alone, so that nothing moves between the two.
    operator_process.stop()
    checks, queues = BrokerChecks(_now), QueueReadings(_now)
    samples, audits = WorkerSamples(_now), JobAudits(_now)
    shelf = Shelf(api, (story.kubectl.namespace,), _now)
    assert len(await shelf.fill()) == 1
    found = shelf.find(story.kubectl.namespace, NAME)
    assert found is not None
    shelved, observed_at = found
    resource = shelved.calm()
    assert isinstance(resource, QueueWorker)
    assert resource.metadata.uid == (await api.get(queueworkers(*_key(story))))["metadata"]["uid"]
    listed = await look_at_shelf(api, checks, queues, resource, shelved, observed_at, _now)
    looked = await look(
        api,
        checks,
        queues,
        samples,
        audits,
        resource,
        None,
        partial(render, epoch=1),
        partial(audit_body, resource.metadata, resource.spec),
        _now,
    )
    await checks.close()
    await queues.close()
    await samples.close()
    await audits.close()
    assert listed is not None
    assert isinstance(listed.facts.workers, Workers)
    assert isinstance(looked.facts.workers, Workers)
    assert listed.facts.workers.revisions == looked.facts.workers.revisions
    assert [one.ready for one in listed.facts.workers.revisions] == [1]
    assert listed.facts.workers.observed_at == observed_at < looked.facts.workers.observed_at
    assert listed.made == looked.made
    assert isinstance(listed.facts.broker, BrokerCheck)
    assert isinstance(listed.facts.queue, QueueFacts)


def test_what_somebody_changed_while_no_operator_ran_is_put_back(
    operator_process: OperatorProcess, story: Story
) -> None:
    story.given_ready(queueworker(story.given_broker(), replicas=1))
    (deployment,) = story.deployments()
    operator_process.stop()
    name = deployment["metadata"]["name"]
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    story.kubectl("set", "image", f"deployment/{name}", "worker=example.invalid/other:1")
    operator_process.start()

    def image_now() -> str:
        return str(story.deployments()[0]["spec"]["template"]["spec"]["containers"][0]["image"])

    wait_until(lambda: image_now() == image, "the image is put back", SOON)


def _key(story: Story) -> tuple[str, str]:
    return story.kubectl.namespace, NAME
