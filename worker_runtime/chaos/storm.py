"""One run: publish, run workers, do them harm, wait until the queue is empty, judge."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from worker_runtime.brokers.base import Broker, BrokerUnavailableError, Place, QueueReading
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.chaos.ground import Ground
from worker_runtime.chaos.patience import patiently
from worker_runtime.chaos.plan import REVISIONS, TIMING, Plan
from worker_runtime.chaos.record import read_account
from worker_runtime.chaos.verdict import Published, Verdict
from worker_runtime.chaos.workers import Nursery

#: Messages that are kept ready for the workers.
_BACKLOG = 400
_BATCH = 200
#: Seconds that undisturbed workers have for the rest.
_DRAIN = 180.0
#: Seconds for which the broker may be away before that ends the run.
_AWAY = 60.0
#: Seconds between two looks at the queue.
_LOOK = 0.5

_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True)
class Wishes:
    """`minutes` or `kills`, whichever comes first, ends the harm."""

    minutes: float | None
    kills: int | None
    workers: int
    seed: int
    #: Do harm to the servers as well, as far as that loses nothing.
    server_faults: bool = False


@dataclass(slots=True)
class Progress:
    """Counts so far."""

    began: float
    phase: str = "storm"
    kills: int = 0
    #: Of those, whole groups of a supervisor and its worker processes.
    group_kills: int = 0
    pauses: int = 0
    #: Of those, longer than the expiry.
    long_pauses: int = 0
    cuts: int = 0
    flushes: int = 0
    #: Faults of servers, as `Ground.faults` calls them.
    failovers: int = 0
    published: int = 0
    success: int = 0
    private: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    progress: Progress
    #: Of the harm alone, without the drain.
    storm_seconds: float
    seconds: float
    #: Killed with at least one message in hand whose settlement they had not heard of.
    caught: int
    verdict: Verdict
    #: As the ground calls them.
    forgets: str
    server_faults: str
    #: One line for each lost message: its pid, where the broker has it, the record's last line.
    whereabouts: list[str] = field(default_factory=list)


class Storm:
    """`on_progress` is called about twice a second."""

    def __init__(
        self,
        plan: Plan,
        wishes: Wishes,
        ground: Ground,
        on_progress: Callable[[Progress], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._wishes = wishes
        self._ground = ground
        self._queue = plan.queue
        self._on_progress = on_progress
        self._clock = clock
        self._chance = random.Random(wishes.seed)
        self._broker: Broker = broker_from_url(plan.url, plan.namespace, TIMING)
        self._published = Published()
        self._next = 0
        #: `_next` when the queue was last looked at.
        self._next_seen = 0
        self._seen_at = clock()
        self._started = 0
        self._killed: set[str] = set()
        self._ended_by_themselves: list[str] = []
        self._over = asyncio.Event()
        self.progress = Progress(clock())

    def stop(self) -> None:
        """End the harm now; the drain and the verdict follow."""
        self._over.set()

    async def run(self) -> Result:
        """Raises BrokerError when the broker fails the run itself, NurseryError when no worker can start."""
        if self._wishes.server_faults:
            self._fault_interval = await self._ground.fault_interval()
        await self._ground.prepare()
        await self._patiently(lambda: self._broker.check(self._queue))
        self._inspector = self._broker.inspector()
        self._publisher = self._broker.publisher()
        try:
            async with Nursery(self._plan) as nursery:
                storm_seconds = await self._storm_and_drain(nursery)
            reading = await self._patiently(lambda: self._inspector.read(self._queue))
            with self._plan.record_path.open(encoding="utf-8", errors="replace") as lines:
                account = read_account(lines)
            verdict = await self._ground.judge(account, self._published, reading)
            if self._ended_by_themselves:
                text = f"{len(self._ended_by_themselves)} workers ended by themselves"
                text += f": {', '.join(self._ended_by_themselves[:5])}"
                verdict = replace(verdict, faults=[*verdict.faults, text])
            return Result(
                self.progress,
                storm_seconds,
                self._clock() - self.progress.began,
                sum(1 for name in self._killed if account.in_hand[name] > 0),
                verdict,
                self._ground.forgets,
                self._ground.faults,
                [
                    await self._whereabouts(number, account.last.get(number, ""))
                    for number in verdict.lost[:20]
                ],
            )
        finally:
            await self._publisher.close()
            await self._inspector.close()

    async def _storm_and_drain(self, nursery: Nursery) -> float:
        began = self._clock()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._end_in_time())
            tasks.create_task(self._publish_and_look())
            if self._ground.forgets:
                tasks.create_task(self._make_it_forget())
            tasks.create_task(self._supervised(nursery))
            if self._wishes.server_faults:
                tasks.create_task(self._harm_servers())
            for _ in range(self._wishes.workers):
                tasks.create_task(self._slot(nursery))
        storm_seconds = self._clock() - began
        self.progress.phase = "drain"
        await self._drain(nursery)
        return storm_seconds

    # the harm

    async def _slot(self, nursery: Nursery) -> None:
        """One worker after the other, each of them killed at some moment."""
        while not self._over.is_set():
            self._started += 1
            name = f"k{self._started}"
            pid = await nursery.start(self._chance.choice(REVISIONS), name, self._chance.getrandbits(32))
            try:
                await self._torment(pid)
            finally:
                ended = await nursery.killed(pid)
            if not ended:
                self._ended_by_themselves.append(name)
                continue
            self._killed.add(name)
            self._count_kill()

    async def _torment(self, pid: int) -> None:
        await self._pause(self._chance.uniform(0.02, 0.35))
        fate = self._chance.random()
        if fate < 0.12:
            for _ in range(self._chance.randint(1, 5)):
                os.kill(pid, signal.SIGUSR1)
                self.progress.cuts += 1
                await self._pause(self._chance.uniform(0.0, 0.2))
        elif fate < 0.20:
            # Sometimes longer than the expiry: then others take its work over while it sleeps.
            long = self._chance.random() < 0.3
            os.kill(pid, signal.SIGSTOP)
            self.progress.pauses += 1
            self.progress.long_pauses += long
            await self._pause(self._chance.uniform(1.1, 1.8) * TIMING.expiry if long else 0.1)
            if self._chance.random() < 0.8:
                os.kill(pid, signal.SIGCONT)
                await self._pause(self._chance.uniform(0.05, 0.4))

    async def _supervised(self, nursery: Nursery) -> None:
        """A whole `queueworker run`, killed with its worker processes, again and again."""
        while not self._over.is_set():
            self._started += 1
            revision, name = self._chance.choice(REVISIONS), f"s{self._started}"
            pid = await nursery.start_supervised(revision, name)
            try:
                await self._pause(self._chance.uniform(1.0, 8.0))
            finally:
                ended = await nursery.killed(pid, group=True)
            if not ended:
                self._ended_by_themselves.append(name)
                continue
            self.progress.group_kills += 1
            self._count_kill()

    async def _make_it_forget(self) -> None:
        while not self._over.is_set():
            await self._pause(self._chance.uniform(0.1, 2.0))
            await self._ground.forget()
            self.progress.flushes += 1

    async def _harm_servers(self) -> None:
        # The first one, too, may come soon after one of somebody else, or of a run before this.
        await self._pause(self._fault_interval)
        while not self._over.is_set():
            with contextlib.suppress(BrokerUnavailableError):
                self.progress.failovers += await self._ground.fault()
            await self._pause(self._fault_interval * self._chance.uniform(1.0, 1.5))

    def _count_kill(self) -> None:
        self.progress.kills += 1
        if self._wishes.kills is not None and self.progress.kills >= self._wishes.kills:
            self._over.set()

    async def _end_in_time(self) -> None:
        minutes = self._wishes.minutes
        await self._pause(None if minutes is None else minutes * 60)
        self._over.set()

    async def _pause(self, seconds: float | None) -> None:
        """Ends early with the storm."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    # the work

    async def _publish_and_look(self) -> None:
        while not self._over.is_set():
            reading = await self._look()
            while reading is not None and reading.ready + self._next - self._next_seen < _BACKLOG:
                await self._publish()
            await self._pause(_LOOK if reading is None or reading.ready > _BACKLOG else 0.1)

    async def _publish(self) -> None:
        numbers = range(self._next, self._next + _BATCH)
        self._next = numbers.stop
        try:
            pids = await self._publisher.publish_many(
                self._queue, [b'{"n":%d}' % number for number in numbers]
            )
        except BrokerUnavailableError:
            self._published.doubtful.update(numbers)
        else:
            self._published.confirmed.update(zip(numbers, pids, strict=True))
        self.progress.published = self._next

    async def _patiently(self, ask: Callable[[], Awaitable[_Told]]) -> _Told:
        return await patiently(ask, _AWAY, self._clock)

    async def _look(self) -> QueueReading | None:
        try:
            reading = await self._inspector.read(self._queue)
        except BrokerUnavailableError:
            if self._clock() > self._seen_at + _AWAY:
                raise
            return None
        self._seen_at = self._clock()
        self._next_seen = self._next
        self.progress.success, self.progress.private = reading.success, reading.private
        self._on_progress(self.progress)
        return reading

    # the end

    async def _drain(self, nursery: Nursery) -> None:
        """Workers that nobody disturbs, until nothing is left or the time is over; then a graceful stop."""
        names = [f"d{n}" for n in range(min(4, self._wishes.workers))]
        pids = [await nursery.start(REVISIONS[0], name, n) for n, name in enumerate(names)]
        maintenance = self._broker.maintenance(max_takeovers=0)
        until = self._clock() + _DRAIN
        try:
            while True:
                reading = await self._look()
                if reading is not None and not reading.ready + reading.private + reading.processing:
                    break
                if self._clock() > until:
                    break
                await maintenance.promote(self._queue, everything=True)
                await asyncio.sleep(0.1)
        finally:
            await maintenance.close()
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
            for name, pid in zip(names, pids, strict=True):
                # SIGTERM may come before a worker is there to answer it.
                if await nursery.ended(pid) not in (0, -signal.SIGTERM):
                    self._ended_by_themselves.append(name)

    async def _whereabouts(self, number: int, last: str) -> str:
        pid = self._published.confirmed[number]
        found = await self._patiently(lambda: self._inspector.find(self._queue, pid))
        place = "nowhere" if found.place is Place.NOWHERE else found.place.value
        return f"{pid} (number {number}): {place}; last line of the record: {last or 'none'}"
