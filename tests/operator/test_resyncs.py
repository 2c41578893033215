"""When a resync counts as done: real brokers, the whole controller, and a stand-in for the API server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from queueworker_operator.apiserver import ApiServer
from queueworker_operator.run.controller import Controller
from queueworker_operator.run.lease import Lease
from queueworker_operator.run.metrics import OperatorMetrics
from tests.operator.api_stand_in import served
from tests.operator.resources import body
from worker_runtime.brokers.redis.server import EmbeddedRedis

SECONDS = 60.0
SILENT, HEALTHY = "silent", "healthy"


@pytest.fixture
def silent() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as one:
        one.send(signal.SIGSTOP)
        yield one
        one.send(signal.SIGCONT)


@pytest.fixture
def healthy() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as one:
        yield one


class Cluster:
    """Some QueueWorkers without Deployments. A status that is written is told and not kept."""

    def __init__(self, resources: list[dict[str, Any]], metrics: OperatorMetrics) -> None:
        self.resources = {one["metadata"]["name"]: one for one in resources}
        self._metrics = metrics
        self._lease: dict[str, Any] | None = None
        #: Names whose status was written, each with the resyncs that were done then.
        self.written: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind, _, name = request.path.removesuffix("/status").rpartition("/")
        if request.query.get("watch"):
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.Event().wait()
        if request.method in ("POST", "PUT"):
            given = await request.json()
            given["metadata"]["resourceVersion"] = "1"
            self._lease = given if "leases" in request.path else self._lease
            return web.json_response(given)
        if kind.endswith("leases") and self._lease is not None:
            return web.json_response(self._lease)
        if request.method == "PATCH" and request.path.endswith("/status"):
            self.written.put_nowait((name, self.resyncs()))
            return web.json_response(self.resources[name])
        if request.method == "PATCH":
            return web.json_response(await request.json())
        if name in self.resources and kind.endswith("queueworkers"):
            return web.json_response(self.resources[name])
        if name in ("queueworkers", "deployments", "pods", "controllerrevisions"):
            items = list(self.resources.values()) if name == "queueworkers" else []
            return web.json_response({"items": items, "metadata": {"resourceVersion": "9"}})
        return web.json_response({"reason": "NotFound", "message": "not there"}, status=404)

    def resyncs(self) -> float:
        return self._metrics.registry.get_sample_value("queueworker_operator_resyncs_total") or 0.0

    def without_a_write(self) -> float:
        """Passes that ended so."""
        name, labels = "queueworker_operator_reconcile_total", {"result": "unchanged"}
        return self._metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running(api: ApiServer, metrics: OperatorMetrics) -> AsyncIterator[None]:
    """A controller that holds its Lease."""
    lease = Lease(api, "workers", "operator", "me", clock=asyncio.get_running_loop().time)
    await lease.acquire()
    controller = Controller(api, lease, metrics, namespaces=("workers",), resync_seconds=45, instance="me")
    acting = asyncio.create_task(controller.act())
    yield
    acting.cancel()
    with suppress(asyncio.CancelledError):
        await acting


@pytest.fixture
async def cluster(silent: EmbeddedRedis, healthy: EmbeddedRedis, tmp_path: Path) -> AsyncIterator[Cluster]:
    metrics = OperatorMetrics()
    resources = []
    for name, url in ((SILENT, silent.url), (HEALTHY, healthy.url)):
        changes = {"metadata__uid": name, "spec__queue__name": name, "spec__broker__redis__url": url}
        resources.append(body(name, **changes))
        resources[-1]["metadata"]["resourceVersion"] = "4"
    cluster = Cluster(resources, metrics)
    async with served(cluster.answer, tmp_path) as api, running(api, metrics):
        yield cluster


async def test_a_resource_counts_as_looked_at_when_its_broker_has_answered_and_not_before(
    cluster: Cluster, silent: EmbeddedRedis
) -> None:
    name, _ = await asyncio.wait_for(cluster.written.get(), SECONDS)
    assert name == HEALTHY, "the other one is being waited for, and holds up nobody"
    async with asyncio.timeout(SECONDS):
        while not cluster.without_a_write():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert cluster.resyncs() == 0, "nothing is known of the silent broker yet, not even that it is silent"
    silent.send(signal.SIGCONT)
    async with asyncio.timeout(SECONDS):
        while name != SILENT:
            name, resyncs = await cluster.written.get()
    assert resyncs == 0, "its answer was not waited for in vain: it led to a look at once"
    async with asyncio.timeout(SECONDS):
        while not cluster.resyncs():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
