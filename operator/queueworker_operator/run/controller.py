"""One pass: observe, plan, act, one status write. And the resync that makes every key due by listing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from queueworker_operator.act.children import render
from queueworker_operator.act.executor import Executor, SupersededError, Verified
from queueworker_operator.api.parse import NotAQueueWorkerError, parse
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.apiserver import (
    ApiError,
    ApiServer,
    ConflictError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    queueworkers,
)
from queueworker_operator.observe.checks import BrokerChecks
from queueworker_operator.observe.cluster import look
from queueworker_operator.observe.neighbours import Neighbours
from queueworker_operator.observe.queues import QueueReadings
from queueworker_operator.observe.samples import WorkerSamples
from queueworker_operator.plan.facts import Refusal
from queueworker_operator.plan.planner import plan, seconds_until_next
from queueworker_operator.run.lease import Lease, LeaseLostError
from queueworker_operator.run.metrics import OperatorMetrics
from queueworker_operator.run.queue import Key, TryAgain, WorkQueue
from worker_runtime.brokers.base import BrokerError

log = logging.getLogger(__name__)


class ResourceMissingError(Exception):
    """The API server does not know the QueueWorker kind."""


class Controller:
    """Reconciles while the Lease is held. Keys may be reported at any time."""

    def __init__(
        self,
        api: ApiServer,
        lease: Lease,
        metrics: OperatorMetrics,
        *,
        namespaces: tuple[str, ...],
        resync_seconds: float,
        instance: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._lease, self._metrics, self._clock = api, lease, metrics, clock
        self._namespaces, self._resync_seconds, self._instance = namespaces, resync_seconds, instance
        self._checks, self._queues = BrokerChecks(clock), QueueReadings(clock)
        self._samples = WorkerSamples(clock)
        self._queue: WorkQueue | None = None
        self._refusals: dict[Key, Refusal] = {}
        self._verified: dict[Key, dict[str, Verified]] = {}
        self._neighbours = Neighbours()
        #: By the running loop's clock; -inf before the first.
        self.last_list = -math.inf
        self.last_event = -math.inf

    @property
    def waiting(self) -> int:
        return self._queue.waiting if self._queue else 0

    @property
    def running(self) -> int:
        return self._queue.running if self._queue else 0

    def report(self, namespace: str, name: str) -> None:
        """Something about this QueueWorker changed."""
        self.last_event = asyncio.get_running_loop().time()
        if self._queue is not None:
            self._queue.add(Key(namespace, name))

    async def check_resource(self) -> None:
        """Raise ResourceMissingError unless QueueWorkers can be listed."""
        try:
            await self._list()
        except NotFoundError:
            raise ResourceMissingError(
                "the API server knows no QueueWorkers: waiting for the chart queueworker-crds"
            ) from None

    async def act(self) -> None:
        """Reconcile until cancelled or until the Lease is lost; nothing is under way when this returns."""
        self._queue = WorkQueue(self._pass, self._failed)
        keeping = asyncio.ensure_future(self._lease.keep())
        resyncing = asyncio.ensure_future(self._resync())
        try:
            await asyncio.wait({keeping, resyncing}, return_when=asyncio.FIRST_COMPLETED)
            if resyncing.done():
                resyncing.result()
        finally:
            queue, self._queue = self._queue, None
            for task in (keeping, resyncing):
                task.cancel()
            await asyncio.gather(keeping, resyncing, return_exceptions=True)
            await queue.close()
            await self._queues.close()
            await self._samples.close()

    async def _resync(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                keys = await self._list()
            except (UnavailableError, ApiError) as error:
                log.warning("QueueWorkers cannot be listed", extra={"error": str(error)})
            else:
                self.last_list = loop.time()
                self._metrics.resources.set(len(keys))
                for key in keys:
                    if self._queue is not None:
                        self._queue.add(key)
                self._refusals = {k: r for k, r in self._refusals.items() if k in keys}
                self._verified = {k: v for k, v in self._verified.items() if k in keys}
            await asyncio.sleep(self._resync_seconds)

    async def _list(self) -> set[Key]:
        keys = set()
        neighbours = Neighbours()
        for namespace in self._namespaces or ("",):
            async for body in self._api.each(queueworkers(namespace)):
                keys.add(Key(body["metadata"]["namespace"], body["metadata"]["name"]))
                neighbours.add(body)
        self._neighbours = neighbours
        return keys

    async def _pass(self, key: Key) -> float | None:
        with self._metrics.seconds.time():
            return await self._reconcile(key)

    async def _reconcile(self, key: Key) -> float | None:
        body = await self._api.find(queueworkers(*key))
        if body is None:
            self._samples.forget(f"{key.namespace}/{key.name}")
            return None
        try:
            resource = parse(body)
        except NotAQueueWorkerError as error:
            log.error("cannot be read", extra={"queueworker": str(key), "error": str(error)})
            return None
        seen = await look(
            self._api,
            self._checks,
            self._queues,
            self._samples,
            resource,
            self._refusals.get(key),
            lambda owner, revision, replicas: render(owner, revision, replicas, self._lease.epoch),
            self._clock,
            self._neighbours.revisions_beside(body),
        )
        decided = plan(resource, seen.facts, self._clock())
        executor = Executor(self._api, self._lease, self._clock, self._instance, body, resource, seen)
        try:
            await executor.run(decided.actions)
            if isinstance(resource, QueueWorker) and resource.metadata.deletion_timestamp is None:
                self._verified[key] = await executor.put_back(self._verified.get(key, {}))
        except (ConflictError, LeaseLostError, SupersededError) as error:
            self._metrics.passes.labels("conflict").inc()
            log.debug("once more", extra={"queueworker": str(key), "error": str(error)})
            raise TryAgain from error
        finally:
            self._metrics.writes.inc(executor.wrote)
        self._remember(key, executor.refusal)
        self._metrics.passes.labels("changed" if executor.wrote else "unchanged").inc()
        return seconds_until_next(decided, seen.facts, executor.refusal)

    def _remember(self, key: Key, refusal: Refusal | None) -> None:
        """A template that is only refused in earnest is refused until an attempt is accepted."""
        if refusal is None:
            self._refusals.pop(key, None)
            return
        self._refusals[key] = refusal

    def _failed(self, key: Key, error: Exception, delay: float) -> None:
        fields: dict[str, Any] = {"queueworker": str(key), "retry_seconds": round(delay, 1)}
        if isinstance(error, TryAgain):
            log.warning("conflicts again and again: %s", error.__cause__, extra=fields)
        elif isinstance(error, (UnavailableError, TimeoutError)):
            self._metrics.passes.labels("unavailable").inc()
            log.warning("a pass could not be finished: %s", error or "its deadline passed", extra=fields)
        elif isinstance(error, BrokerError):
            self._metrics.passes.labels("broker").inc()
            log.warning("the broker did not do what was decided: %s", error, extra=fields)
        elif isinstance(error, ApiError):
            self._metrics.passes.labels("refused" if isinstance(error, RefusedError) else "error").inc()
            log.error("the API server refused: %s", error, extra=fields)
        else:
            self._metrics.passes.labels("error").inc()
            log.error("a pass failed", exc_info=error, extra=fields)
