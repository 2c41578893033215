"""What a resync waits for, and what waits for it: real brokers, the whole controller, and a stand-in for the
API server."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from queueworker_operator.act.executor import Executor, Verified
from queueworker_operator.api.parse import parse
from queueworker_operator.observe.cluster import Look, made_of
from queueworker_operator.plan.actions import ApplyRevision
from queueworker_operator.plan.facts import Facts
from queueworker_operator.run.controller import Controller
from queueworker_operator.run.lease import Lease
from queueworker_operator.run.metrics import OperatorMetrics
from tests.operator.api_stand_in import served
from tests.operator.resources import NOBODY_LOOKED, START, body
from worker_runtime.brokers.redis.server import EmbeddedRedis

SECONDS = 60.0
Body = dict[str, Any]


class Cluster:
    """Some QueueWorkers, and Deployments of which none has workers. It keeps what is written."""

    def __init__(self, resources: list[Body]) -> None:
        self.metrics = OperatorMetrics()
        #: Names whose status was written, each with the resyncs that were done then.
        self.written: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        #: Deployments that were compared with what they should be, likewise.
        self.compared: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self._objects: dict[str, dict[str, Body]] = {"deployments": {}, "leases": {}}
        self._objects["queueworkers"] = {one["metadata"]["name"]: one for one in resources}
        self._versions = itertools.count(5)

    def resyncs(self) -> float:
        return self.metrics.registry.get_sample_value("queueworker_operator_resyncs_total") or 0.0

    def without_a_write(self) -> float:
        """Passes that ended so."""
        name, labels = "queueworker_operator_reconcile_total", {"result": "unchanged"}
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def at_rest(self) -> list[Body]:
        everybody = self._objects["queueworkers"].values()
        return [one for one in everybody if one.get("status", {}).get("rollout", {}).get("stage") == "Idle"]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.Event().wait()
        _, _, path = request.path.partition("/namespaces/workers/")
        kind, _, name = path.removesuffix("/status").partition("/")
        there = self._objects.get(kind, {})
        if request.method == "GET" and not name:
            items = list(there.values())
            return web.json_response({"items": items, "metadata": {"resourceVersion": "9"}})
        if request.method == "GET":
            if name not in there:
                return web.json_response({"reason": "NotFound", "message": "not there"}, status=404)
            return web.json_response(there[name])
        given = await request.json()
        if request.query.get("dryRun"):
            if name in there:
                self.compared.put_nowait((name, self.resyncs()))
            return web.json_response(there.get(name, given))
        if path.endswith("/status"):
            self.written.put_nowait((name, self.resyncs()))
            given = merged(there[name], {"status": given["status"]})
        elif kind == "deployments":
            given["metadata"] |= {"uid": name, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
            given["status"] = {"observedGeneration": 1}
        given["metadata"]["resourceVersion"] = str(next(self._versions))
        if kind in self._objects:
            there[name or given["metadata"]["name"]] = given
        return web.json_response(given)


def merged(before: Body, patch: Body) -> Body:
    """As RFC 7386 has it."""
    found = before | {name: value for name, value in patch.items() if not isinstance(value, dict)}
    for name, value in patch.items():
        if isinstance(value, dict):
            kept = before.get(name)
            found[name] = merged(kept if isinstance(kept, dict) else {}, value)
    return {name: value for name, value in found.items() if value is not None}


def resource(name: str, url: str) -> Body:
    changes = {"metadata__uid": name, "spec__queue__name": name, "spec__broker__redis__url": url}
    given = body(name, spec__replicas=0, **changes)
    given["metadata"]["resourceVersion"] = "4"
    return given


@asynccontextmanager
async def operated(cluster: Cluster, folder: Path) -> AsyncIterator[None]:
    """An operator that holds its Lease, with new metrics."""
    metrics = cluster.metrics = OperatorMetrics()
    async with served(cluster.answer, folder) as api:
        lease = Lease(api, "workers", "operator", "me", clock=asyncio.get_running_loop().time)
        await lease.acquire()
        controller = Controller(
            api, lease, metrics, namespaces=("workers",), resync_seconds=45, instance="me"
        )
        acting = asyncio.create_task(controller.act())
        yield
        acting.cancel()
        with suppress(asyncio.CancelledError):
            await acting


async def until(happened: Callable[[], object]) -> None:
    """Nobody tells of it."""
    async with asyncio.timeout(SECONDS):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_resource_counts_as_looked_at_when_its_broker_has_answered_and_not_before(
    tmp_path: Path,
) -> None:
    with EmbeddedRedis() as broker:
        broker.send(signal.SIGSTOP)
        try:
            cluster = Cluster([resource("silent", broker.url)])
            async with operated(cluster, tmp_path):
                await until(cluster.without_a_write)
                assert cluster.resyncs() == 0, "nothing is known of its broker, not even that it is silent"
                broker.send(signal.SIGCONT)
                assert await asyncio.wait_for(cluster.written.get(), SECONDS) == ("silent", 0)
                await until(cluster.resyncs)
        finally:
            broker.send(signal.SIGCONT)


async def test_after_a_restart_each_deployment_is_compared_once_and_only_after_the_first_resync(
    tmp_path: Path,
) -> None:
    with EmbeddedRedis() as broker:
        cluster = Cluster([resource(f"q{number}", broker.url) for number in range(30)])
        async with operated(cluster, tmp_path):
            await until(lambda: len(cluster.at_rest()) == 30)
        cluster.compared = asyncio.Queue()
        async with operated(cluster, tmp_path):
            async with asyncio.timeout(SECONDS):
                compared = [await cluster.compared.get() for _ in range(30)]
        assert len({name for name, _ in compared}) == 30
        assert {resyncs for _, resyncs in compared} == {1}
        assert cluster.compared.empty()


async def test_a_deployment_that_was_just_made_is_known_and_compared_with_nothing(tmp_path: Path) -> None:
    given = resource("new", "redis://nowhere")
    cluster, parsed = Cluster([given]), parse(given)
    (name, revision), *_ = made_of(parsed).items()
    nothing = Look(Facts(NOBODY_LOOKED, NOBODY_LOOKED, NOBODY_LOOKED), {}, {name: revision})
    async with served(cluster.answer, tmp_path) as api:
        lease = Lease(api, "workers", "operator", "me", clock=asyncio.get_running_loop().time)
        await lease.acquire()
        executor = Executor(api, lease, lambda: START, "me", given, parsed, nothing)
        await executor.run((ApplyRevision(revision, 0),))
        known = await executor.put_back({})
    assert known == {name: Verified(name, 1)}
    assert cluster.compared.empty()
