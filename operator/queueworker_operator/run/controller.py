"""One pass: observe, plan, act, one status write. And the resync that makes every key due by listing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from queueworker_operator.act.audits import audit_body
from queueworker_operator.act.children import render
from queueworker_operator.act.executor import Executor, SupersededError, Verified
from queueworker_operator.api.parse import NotAQueueWorkerError, parse
from queueworker_operator.api.types import InvalidQueueWorker, QueueWorker
from queueworker_operator.apiserver import (
    ApiError,
    ApiServer,
    Body,
    ConflictError,
    GoneError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    queueworkers,
)
from queueworker_operator.observe.audits import JobAudits
from queueworker_operator.observe.checks import Asker, BrokerChecks
from queueworker_operator.observe.cluster import Look, look, look_at_shelf
from queueworker_operator.observe.queues import QueueReadings
from queueworker_operator.observe.samples import WorkerSamples
from queueworker_operator.observe.shelf import CALM, Shelf
from queueworker_operator.plan.actions import Plan, StartAudit
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict, Refusal, Unknown
from queueworker_operator.plan.planner import BLOCKED, plan, seconds_until_next
from queueworker_operator.run.lease import Lease, LeaseLostError
from queueworker_operator.run.metrics import OperatorMetrics
from queueworker_operator.run.pace import Pace
from queueworker_operator.run.queue import Key, Later, TryAgain, WorkQueue
from queueworker_operator.run.round import Round
from queueworker_operator.run.watch import Watches
from worker_runtime.brokers.base import BrokerError

log = logging.getLogger(__name__)

#: The first list waits for the watches so long, and two lists are at least so far apart, in seconds.
WATCHES_SECONDS, BETWEEN_LISTS = 5.0, 1.0
#: Of a resource whose broker has not answered the first check yet: nothing was seen. The next look comes with
#: the answer, or that there is none; this long after the last one at any rate.
_AWAITS_BROKER = Later(10.0, patient=True, looked=False)
#: Of a resource at rest of which a new list is about to tell, which makes it due: nothing was seen. A look of
#: its own would cost the API server more than its part of the list, just when that is slow.
_AWAITS_LIST = Later(5.0, patient=True, looked=False)
#: A list is waited for from so long before it is due, for so long at most, in seconds.
LIST_SOON_SECONDS, LIST_LATE_SECONDS = 1.0, 10.0
#: Deployments that nobody has compared with what they should be yet are compared at this pace: so many at
#: once, and so many more a second. A comparison is a request that costs the API server as much as a write.
COMPARED_AT_ONCE, COMPARED_PER_SECOND = 20.0, 10.0


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
        self._checks, self._queues = BrokerChecks(clock, news=self._broker_news), QueueReadings(clock)
        self._samples, self._audits = WorkerSamples(clock), JobAudits(clock)
        self._queue: WorkQueue | None = None
        self._refusals: dict[Key, Refusal] = {}
        self._verified: dict[Key, dict[str, Verified]] = {}
        self._shelf = Shelf(api, namespaces, clock)
        self._missed = asyncio.Event()
        #: By the running loop's clock; no longer than this is waited for it.
        self._list_due = -math.inf
        self._comparing = Pace(COMPARED_AT_ONCE, COMPARED_PER_SECOND)
        #: When it is whose turn, by the running loop's clock. None has one before the first resync is over:
        #: what there is to do comes first. Those wait until then.
        self._turns: dict[Key, float] = {}
        self._turnless: set[Key] | None = set()
        self._round = Round()
        #: By the running loop's clock; -inf before the first.
        self.last_list = -math.inf
        self.last_event = -math.inf
        #: When a list was answered, be it with a refusal, which `refused` has then; empty after a list.
        self.last_answer = -math.inf
        self.refused = ""

    @property
    def waiting(self) -> int:
        return self._queue.waiting if self._queue else 0

    @property
    def running(self) -> int:
        return self._queue.running if self._queue else 0

    def report(self, namespace: str, name: str) -> None:
        """Something about this QueueWorker changed."""
        self.last_event = asyncio.get_running_loop().time()
        self._shelf.report(namespace, name)
        if self._queue is not None:
            self._queue.add(Key(namespace, name))

    def _broker_news(self, asker: Asker) -> None:
        """The check of its broker says something else. Many are told the same, and nobody waits for it."""
        if self._queue is not None:
            self._queue.add(Key(*asker), patient=True)

    async def check_resource(self) -> None:
        """Raise ResourceMissingError unless QueueWorkers can be listed."""
        try:
            for namespace in self._namespaces or ("",):
                await self._api.version(queueworkers(namespace))
        except NotFoundError:
            raise ResourceMissingError(
                "the API server knows no QueueWorkers: waiting for the chart queueworker-crds"
            ) from None

    async def act(self) -> None:
        """Reconcile until cancelled or until the Lease is lost; nothing is under way when this returns."""
        self._queue = WorkQueue(self._pass, self._failed, wait_of=_wait_of)
        watches = Watches(self._api, self._namespaces, self.report, self._missed.set)
        keeping = asyncio.ensure_future(self._lease.keep())
        working = [asyncio.ensure_future(one) for one in (watches.run(), self._resync(watches))]
        parts = {keeping, *working}
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in working:
                if part.done():
                    part.result()
        finally:
            queue, self._queue = self._queue, None
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await queue.close()
            await self._checks.close()
            await self._queues.close()
            await self._samples.close()
            await self._audits.close()

    async def _resync(self, watches: Watches) -> None:
        loop = asyncio.get_running_loop()
        await watches.begun(WATCHES_SECONDS)
        while True:
            self._missed.clear()
            began = self._list_due = loop.time()
            try:
                keys = {Key(*name) for name in await self._shelf.fill()}
            except (UnavailableError, ApiError) as error:
                log.warning("QueueWorkers and their workers cannot be listed", extra={"error": str(error)})
                if isinstance(error, RefusedError):
                    self.last_answer, self.refused = loop.time(), str(error)
                elif isinstance(error, GoneError):
                    self._missed.set()
            else:
                self.last_list = self.last_answer = loop.time()
                self.refused = ""
                self._metrics.resources.set(len(keys))
                self._round.begin(keys, began)
                for key in keys:
                    if self._queue is not None:
                        self._queue.add(key, patient=True)
                self._refusals = {k: r for k, r in self._refusals.items() if k in keys}
                self._verified = {k: v for k, v in self._verified.items() if k in keys}
                self._turns = {k: turn for k, turn in self._turns.items() if k in keys}
            self._list_due = began + self._resync_seconds
            await asyncio.sleep(BETWEEN_LISTS)
            with contextlib.suppress(TimeoutError):
                left = began + self._resync_seconds - loop.time()
                await asyncio.wait_for(self._missed.wait(), max(0.0, left))

    async def _pass(self, key: Key) -> Later | None:
        later: Later | None = None
        try:
            with self._metrics.seconds.time():
                later = await self._reconcile(key)
            return later
        finally:
            if later is None or later.looked:
                self._looked_at(key)

    def _looked_at(self, key: Key) -> None:
        took = self._round.looked_at(key, asyncio.get_running_loop().time())
        if took is None:
            return
        self._metrics.resync_seconds.set(took)
        self._metrics.resyncs.inc()
        turnless, self._turnless = self._turnless, None
        for other in turnless or ():
            if self._queue is not None:
                self._queue.add(other, max(0.0, self._seconds_to_turn(other)), patient=True)

    async def _reconcile(self, key: Key) -> Later | None:
        try:
            at_rest = await self._at_rest(key)
            return at_rest if at_rest is not None else await self._look_and_act(key)
        except GoneError as error:
            # A list whose pages came too late: once more from its beginning.
            raise TryAgain from error
        except NotAQueueWorkerError as error:
            log.error("cannot be read", extra={"queueworker": str(key), "error": str(error)})
            return None

    async def _at_rest(self, key: Key) -> Later | None:
        """When to look again if the last list shows that nothing is to be done; else None. Writes nothing:
        whatever there is to do is decided by a look of its own."""
        found = self._shelf.find(*key)
        if found is None:
            return _AWAITS_LIST if self._shelf.is_old(*key) and self._is_list_near() else None
        shelved, observed_at = found
        resource = shelved.calm()
        if resource is None:
            return None
        seen = await look_at_shelf(
            self._api,
            self._checks,
            self._queues,
            resource,
            shelved,
            observed_at,
            self._clock,
            self._shelf.neighbours.revisions_beside(shelved.body),
        )
        if seen is None:
            return None
        if _awaits_broker(resource, seen):
            self._metrics.passes.labels("unchanged").inc()
            return _AWAITS_BROKER
        decided = plan(resource, seen.facts, self._clock())
        if decided.actions:
            return None
        delay = _seconds_at_rest(decided, seen)
        if not self._is_compared(key, seen):
            left = self._seconds_to_turn(key)
            if left <= 0:
                return None
            delay = min(delay, left)
        self._metrics.passes.labels("unchanged").inc()
        return Later(delay, patient=True)

    def _is_list_near(self) -> bool:
        late = asyncio.get_running_loop().time() - self._list_due
        return -LIST_SOON_SECONDS <= late < LIST_LATE_SECONDS

    async def _look_and_act(self, key: Key) -> Later | None:
        body = await self._api.find(queueworkers(*key))
        if body is None:
            self._samples.forget(f"{key.namespace}/{key.name}")
            self._audits.forget(f"{key.namespace}/{key.name}")
            return None
        resource = parse(body)
        seen = await look(
            self._api,
            self._checks,
            self._queues,
            self._samples,
            self._audits,
            resource,
            self._refusals.get(key),
            lambda owner, revision, replicas: render(owner, revision, replicas, self._lease.epoch),
            partial(_audit_of, resource),
            self._clock,
            self._shelf.neighbours.revisions_beside(body),
        )
        # What a list says is older than this from here on, and one that is younger is a neighbour at once.
        self._shelf.report(*key)
        self._shelf.neighbours.add(body)
        if _awaits_broker(resource, seen):
            self._metrics.passes.labels("unchanged").inc()
            return _AWAITS_BROKER
        decided = plan(resource, seen.facts, self._clock())
        executor = Executor(self._api, self._lease, self._clock, self._instance, body, resource, seen)
        try:
            await executor.run(decided.actions)
            if self._may_compare(key, resource, seen):
                self._verified[key] = await executor.put_back(self._verified.get(key, {}))
        except (ConflictError, LeaseLostError, SupersededError) as error:
            self._metrics.passes.labels("conflict").inc()
            log.debug("once more", extra={"queueworker": str(key), "error": str(error)})
            raise TryAgain from error
        finally:
            self._metrics.writes.inc(executor.wrote)
        self._remember(key, executor.refusal)
        if executor.audit_refused is not None:
            self._audits.refused(key.namespace, key.name, *executor.audit_refused)
        self._metrics.passes.labels("changed" if executor.wrote else "unchanged").inc()
        if (
            decided.status.rollout is not None
            and decided.status.rollout.stage in CALM
            and not executor.refusal
        ):
            return Later(_seconds_at_rest(decided, seen), patient=_is_silent(seen))
        return Later(seconds_until_next(decided, seen.facts, executor.refusal))

    def _may_compare(self, key: Key, resource: QueueWorker | InvalidQueueWorker, seen: Look) -> bool:
        """Whether to undo in this pass what somebody changed: yes, but Deployments that were never compared
        wait for their turn."""
        if not isinstance(resource, QueueWorker) or resource.metadata.deletion_timestamp is not None:
            return False
        known = self._verified.get(key, {})
        if any(name in seen.children and name not in known for name in seen.made):
            if self._seconds_to_turn(key) > 0:
                return False
            del self._turns[key]
        return True

    def _seconds_to_turn(self, key: Key) -> float:
        """How long its comparison has to wait; each has a turn of its own, so that none asks in vain."""
        if self._turnless is not None:
            self._turnless.add(key)
            return math.inf
        now = asyncio.get_running_loop().time()
        if key not in self._turns:
            self._turns[key] = self._comparing.turn(now)
        return self._turns[key] - now

    def _is_compared(self, key: Key, seen: Look) -> bool:
        """Whether every Deployment that the spec asks for was found as we made it, and is of that generation
        still."""
        known = self._verified.get(key, {})
        for name in seen.made:
            child = seen.children[name]
            if child.facts.conflict or not child.facts.owned:
                continue
            if child.mislabelled or known.get(name) != Verified(child.uid, child.generation):
                return False
        return True

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


def _is_silent(seen: Look) -> bool:
    """Whether the broker does not answer. It is asked on and on, and its answer leads to a look."""
    broker = seen.facts.broker
    return isinstance(broker, BrokerCheck) and broker.verdict is BrokerVerdict.TIMEOUT


def _seconds_at_rest(decided: Plan, seen: Look) -> float:
    """Until the next look at a resource that is on no way: while its broker is silent, nothing goes on."""
    return max(decided.requeue_after, BLOCKED) if _is_silent(seen) else decided.requeue_after


def _wait_of(error: Exception) -> float:
    return error.wait_seconds if isinstance(error, UnavailableError) else 0.0


def _audit_of(resource: QueueWorker | InvalidQueueWorker, action: StartAudit) -> Body:
    assert isinstance(resource, QueueWorker), "only a usable resource is analysed"
    return audit_body(resource.metadata, resource.spec, action)


def _awaits_broker(resource: QueueWorker | InvalidQueueWorker, seen: Look) -> bool:
    """Whether the first answer of its broker, or that there is none, will be known in a moment: until then
    what the status says stands."""
    return isinstance(resource, QueueWorker) and isinstance(seen.facts.broker, Unknown)
