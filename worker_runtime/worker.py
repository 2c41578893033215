"""One queue in one process: one receive loop, N handlers, one settler.

The order of things for one delivery: received and registered as outstanding, waiting, running, settled with
others in one call, and only the broker's answer frees its place. Nothing here starts a task, takes a lock
or makes a metric for a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from worker_runtime.brokers.base import (
    Action,
    BrokerError,
    BrokerRefusedError,
    Consumer,
    Delivery,
    Outcome,
    Settlement,
)
from worker_runtime.confirmed import Confirmed
from worker_runtime.deferred import Commit, CommitTimeoutError, Deferrals
from worker_runtime.execution import Execution, Failure, describe
from worker_runtime.fenced import note_fence
from worker_runtime.hooks import Hook
from worker_runtime.job import Job
from worker_runtime.keeping import BORNE
from worker_runtime.logs import current_delivery
from worker_runtime.message import Context
from worker_runtime.pausing import back_off, pause
from worker_runtime.rejection import rejection
from worker_runtime.state import QueueState
from worker_runtime.surprises import Surprises

#: Seconds between two questions whether a fence is still there.
FENCE_PAUSE = 1.0
#: Entries that one receive asks for at most: the limit of one broker transition.
LARGEST_RECEIVE = 1_000
#: A handler that never waits gives the loop a turn after this long, in seconds.
TURN = 0.002

log = logging.getLogger("queueworker.worker")

#: Renews everything of this queue now; True when the broker has answered.
Verify = Callable[[], Awaitable[bool]]


class Worker:
    """Runs one job. `verify` asks the renewal thread whether waiting deliveries are still ours."""

    def __init__(
        self,
        job: Job,
        state: QueueState,
        consumer: Consumer,
        verify: Verify,
        hooks: Sequence[Hook],
        resources: Mapping[str, Any],
    ) -> None:
        self.job = job
        self.state = state
        self._consumer = consumer
        self._verify = verify
        self._verifying = asyncio.Lock()
        covering = [hook for hook in hooks if hook.covers(job.groups)]
        self._pool = None if job.is_async else ThreadPoolExecutor(job.coroutines, f"queueworker {job.queue}")
        self._deferrals = Deferrals(state.deferred, job.commit_timeout)
        self._execution = Execution(job, covering, resources, self._pool, self._deferrals)
        self._buffer: list[Settlement] = []
        self._settling = 0
        self._confirmed = Confirmed(covering, self._execution, resources, self._note_progress)
        self._contexts: dict[int, Context] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._room = asyncio.Event()
        self._to_settle = asyncio.Event()
        self._progress = asyncio.Event()
        self._stop_asked = asyncio.Event()
        #: The same fact as a plain attribute, for the handlers to read once a message.
        self._halted = False
        self._extra = {"queue": job.queue}
        self._receiver: asyncio.Task[None] | None = None
        self._handlers: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._surprises = Surprises(job.queue)

    async def run(self) -> None:
        """Work until `stop` was called and nothing is outstanding. Raises only for a fault of the runtime
        itself; what was outstanding then stays with the broker and is recoverable."""
        self.state.phase = "receiving"
        self._receiver = asyncio.create_task(self._receive_loop(), name=f"receive {self.job.queue}")
        self._handlers = [
            asyncio.create_task(self._handle_loop(slot), name=f"handler {slot} {self.job.queue}")
            for slot in range(self.job.coroutines)
        ]
        self._tasks = [
            self._receiver,
            asyncio.create_task(self._settle_loop(), name=f"settle {self.job.queue}"),
            asyncio.create_task(self._confirmed.tell(), name=f"confirm {self.job.queue}"),
            asyncio.create_task(self._deferred_loop(), name=f"deferred {self.job.queue}"),
            *self._handlers,
        ]
        drain = asyncio.create_task(self._drain(), name=f"drain {self.job.queue}")
        everything = [drain, *self._tasks]
        try:
            while not drain.done():
                done, _ = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                    everything.remove(task)
        finally:
            self._execution.abandoned = True
            for task in [drain, *self._tasks]:
                task.cancel()
            await asyncio.gather(drain, *self._tasks, return_exceptions=True)
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Stop receiving, give back what never started, finish what runs; then `run` returns."""
        if self._stop_asked.is_set():
            return
        self.state.phase = "stopping"
        self._halted = True
        self._stop_asked.set()
        self._room.set()
        self._consumer.interrupt()

    def superseded(self, deliveries: Sequence[Delivery]) -> None:
        """Another worker has these. Cancels the handlers that run them, where the job wants that."""
        if not self.job.cancel_superseded:
            return
        lost = {id(delivery) for delivery in deliveries}
        for handler, delivery in zip(self._handlers, self.state.current, strict=True):
            if delivery is not None and id(delivery) in lost:
                handler.cancel()

    async def _drain(self) -> None:
        await self._stop_asked.wait()
        assert self._receiver is not None
        await asyncio.wait([self._receiver])
        self._release_waiting()
        while self.state.outstanding or len(self._confirmed):
            self._progress.clear()
            await self._progress.wait()

    def _release_waiting(self) -> None:
        waiting, lost = self.state.waiting, self.state.lost
        never_started = [delivery for delivery in waiting if id(delivery) not in lost]
        for delivery in waiting:
            if id(delivery) in lost:
                self._drop(delivery)
        waiting.clear()
        if never_started:
            # All at once: the broker puts the releases of one call back in their order.
            self._buffer.extend(Settlement(delivery, Action.RELEASE) for delivery in never_started)
            self._to_settle.set()
            log.info("gives back %d messages that never started", len(never_started), extra=self._extra)

    # -- receiving ---------------------------------------------------------------------------------

    async def _receive_loop(self) -> None:
        state, clock = self.state, self.state.clock
        late = state.trust_window / 2
        failures, faults, lost_at, refused = 0, 0, 0.0, False
        while not self._stop_asked.is_set():
            # Success hooks that lag behind hold receiving back, so that they cannot pile up without bound.
            limit = min(state.prefetch - max(len(state.outstanding), len(self._confirmed)), LARGEST_RECEIVE)
            if limit <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            state.silence.receive = started = clock()
            try:
                received = await self._consumer.receive(limit)
            except Exception as error:
                state.silence.receive = 0.0
                failures += 1
                if failures == 1:
                    lost_at = started
                if not isinstance(error, BrokerError):
                    # A fault of the runtime or of a broker that breaks its promise.
                    faults += 1
                    if faults > BORNE:
                        raise
                    log.error("receiving failed: %s", describe(error), exc_info=error, extra=self._extra)
                # One outage has many texts on its way; what a person has to mend is news.
                elif failures == 1 or refused != isinstance(error, BrokerRefusedError):
                    refused = isinstance(error, BrokerRefusedError)
                    log.warning("broker lost: %s", error, extra=self._extra)
                state.broker_problem = describe(error) if not isinstance(error, BrokerError) else str(error)
                await back_off(failures, self._stop_asked)
                continue
            state.silence.receive = 0.0
            if failures:
                log.info("broker back after %.1f s", clock() - lost_at, extra=self._extra)
                failures, faults, state.broker_problem = 0, 0, ""
            if received.poisoned:
                state.poisoned += received.poisoned
                log.warning(
                    "%d messages could not be decoded and were put aside, whole and with the reason",
                    received.poisoned,
                    extra=self._extra,
                )
            if received.crash_loops:
                state.dead_lettered += received.crash_loops
                log.error(
                    "%d messages were handed out too often without being settled and are dead letters now "
                    "(crash-loop)",
                    received.crash_loops,
                    extra=self._extra,
                )
            note_fence(state, received.fenced.reason if received.fenced else "")
            if received.deliveries:
                self._accept(received.deliveries, late=clock() - started > late)
                # The handlers that this woke begin before the next request is written.
                await asyncio.sleep(0)
            elif received.fenced:
                await pause(FENCE_PAUSE, self._stop_asked)

    def _accept(self, deliveries: Sequence[Delivery], late: bool) -> None:
        state = self.state
        outstanding = state.outstanding
        for delivery in deliveries:
            outstanding[id(delivery)] = delivery
        if late:
            # The loop was held up while the answer was on its way: nobody renewed these meanwhile.
            state.suspect_since = state.clock()
        state.received += len(deliveries)
        state.waiting.extend(deliveries)
        idle = self._idle
        for _ in range(min(len(deliveries), len(idle))):
            waiter = idle.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # -- handling ----------------------------------------------------------------------------------

    async def _handle_loop(self, slot: int) -> None:
        state, clock, buffer = self.state, self.state.clock, self._buffer
        waiting, current, lost = state.waiting, state.current, state.lost
        execution, contexts = self._execution, self._contexts
        durations, latencies = state.durations.observe, state.latencies.observe
        commit = Action.COMMIT
        half = max(1, state.prefetch // 2)
        turn_began = clock()
        while not self._halted:
            if not waiting:
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                turn_began = clock()
                continue
            started = clock()
            if not state.trusted(started):
                await self._regain_trust()
                continue
            delivery = waiting.popleft()
            if lost and id(delivery) in lost:
                self._drop(delivery)
                continue
            current[slot] = delivery
            state.running += 1
            current_delivery.set(delivery)
            latencies(started + state.wall_offset - delivery.timestamp)
            context = execution.context(delivery)
            result = await execution.run(delivery, context)
            ended = clock()
            current[slot] = None
            state.running -= 1
            durations(ended - started)
            if result is None:
                if context is not None:
                    contexts[id(delivery)] = context
                buffer.append(Settlement(delivery, commit))
                self._to_settle.set()
            elif isinstance(result, Failure):
                if context is not None and context.commit is not None:
                    self._deferrals.give_up(context.commit)
                if result.superseded:
                    state.superseded += 1
                    self._forget(delivery)
                else:
                    self._reject(delivery, result)
            else:
                if context is not None:
                    contexts[id(delivery)] = context
                self._deferrals.defer(result)
            if ended - turn_began > TURN or (self._settling == 0 and len(buffer) >= half):
                await asyncio.sleep(0)
                turn_began = clock()

    def _reject(self, delivery: Delivery, failure: Failure) -> None:
        self.state.handler_errors += 1
        self._buffer.append(rejection(self.job, delivery, failure))
        self._to_settle.set()

    async def _deferred_loop(self) -> None:
        """Settle what handlers decide after their return."""
        while True:
            decided = await self._deferrals.take()
            confirmed = [one for one in decided if one.error is None]
            if confirmed:
                self._buffer.extend(Settlement(one.delivery, Action.COMMIT) for one in confirmed)
                self._to_settle.set()
            for one in decided:
                if one.error is not None:
                    await self._fail_deferred(one, one.error)

    async def _fail_deferred(self, commit: Commit, error: BaseException) -> None:
        delivery = commit.delivery
        current_delivery.set(delivery)
        reason = describe(error)
        shown = None if isinstance(error, CommitTimeoutError) else error
        log.error("deferred commit failed: %s", reason, exc_info=shown, extra=self._extra)
        await self._execution.tell(error, self._contexts.pop(id(delivery), None))
        self._reject(delivery, Failure(reason, error))

    async def _regain_trust(self) -> None:
        """Wait until the broker has said which of the waiting deliveries are still ours."""
        async with self._verifying:
            state = self.state
            if state.trusted(state.clock()) or not state.waiting:
                return
            if not await self._verify():
                await pause(0.5, self._stop_asked)

    def _drop(self, delivery: Delivery) -> None:
        """Forget a delivery that another owner has: there is nothing to run and nothing to settle."""
        self.state.superseded += 1
        self._forget(delivery)
        log.info(
            "dropped before it started: another worker has it, or will be given it",
            extra={**self._extra, "message_id": delivery.pid},
        )

    def _forget(self, delivery: Delivery) -> None:
        self.state.outstanding.pop(id(delivery), None)
        if self.state.lost:
            self.state.lost.pop(id(delivery), None)
        self._note_progress()

    def _note_progress(self) -> None:
        """There may be room to receive, and less to wait for."""
        self._room.set()
        self._progress.set()

    # -- settling ----------------------------------------------------------------------------------

    async def _settle_loop(self) -> None:
        state, buffer = self.state, self._buffer
        faults = 0
        while True:
            if not buffer:
                self._to_settle.clear()
                await self._to_settle.wait()
                continue
            batch = buffer[:]
            buffer.clear()
            self._settling = len(batch)
            state.silence.settle = state.clock()
            try:
                await self._consumer.settle(batch, self._on_result)
            except Exception as error:
                # A consumer must not raise; if one does, nothing is known of what it did not answer.
                faults += 1
                if faults > BORNE:
                    raise
                log.error("settlement failed: %s", describe(error), exc_info=error, extra=self._extra)
            else:
                faults = 0
            for settlement in batch if self._settling else ():
                if id(settlement.delivery) in state.outstanding:
                    self._on_result(settlement, Outcome.UNKNOWN, "the broker gave no answer")
            self._settling = 0
            state.silence.settle = 0.0
            self._surprises.tell()

    def _on_result(self, settlement: Settlement, outcome: Outcome, text: str) -> None:
        state, delivery = self.state, settlement.delivery
        if state.outstanding.pop(id(delivery), None) is None:
            return
        if state.lost:
            state.lost.pop(id(delivery), None)
        self._settling -= 1
        context = self._contexts.pop(id(delivery), None) if self._contexts else None
        if outcome is Outcome.COMMITTED:
            state.committed += 1
            if self._confirmed.hooks:
                self._confirmed.add(delivery, context)
        elif outcome is Outcome.REJECTED:
            state.rejected += 1
            if settlement.action is Action.RETRY:
                state.retried += 1
            elif settlement.action is Action.DEAD:
                state.dead_lettered += 1
        elif outcome is Outcome.RELEASED:
            state.released += 1
        elif outcome is Outcome.SUPERSEDED:
            state.superseded += 1
            self._surprises.note(outcome, delivery.pid, text)
        elif outcome is Outcome.MISSING:
            state.missing += 1
            self._surprises.note(outcome, delivery.pid, text)
        else:
            state.unknown += 1
            self._surprises.note(outcome, delivery.pid, text)
        self._note_progress()
