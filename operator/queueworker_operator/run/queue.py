"""The work queue: which key is looked at next.

A key is in at most one pass at a time. Reports that come while it waits melt into one; a report that comes
during its pass leads to exactly one more. A key that was added patiently, since it is its turn and not since
something happened to it, lets the others go first; among equals the one goes first that was not looked at for
the longest time, so that a key that is looked at again and again holds up none. A pass that fails is tried
again after 1, 2, 4 ... 300 s, each with jitter.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from queueworker_operator.run.slots import Slots


class Key(NamedTuple):
    """Which QueueWorker."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class TryAgain(Exception):
    """A pass ended early for a reason that is nobody's fault, such as a conflict: once more, silently."""


class Later(NamedTuple):
    """When a key is to be looked at again. `patient`: since it is its turn then, after all others that are
    due. Not `looked`: this pass saw nothing of it, and takes no turn from the next one."""

    seconds: float
    patient: bool = False
    looked: bool = True


#: Says when the key is to be looked at again, as a number in so many seconds; None: only when it is reported.
Pass = Callable[[Key], Awaitable[Later | float | None]]
#: Told of each pass that failed, with the seconds until the next try.
OnFailure = Callable[[Key, Exception, float], None]

CONCURRENCY = 16
PASS_SECONDS = 60.0
BACKOFF_SECONDS, BACKOFF_LIMIT = 1.0, 300.0
#: After a conflict; twice as long for each further one in a row, up to the limit.
AGAIN_SECONDS, AGAIN_LIMIT = 0.3, 30.0
#: So many conflicts in a row are no coincidence, and are told like a failure.
AGAIN_TOLD = 8
#: A report of a key that fails does not wait for the whole backoff, but never makes it spin either.
REPORTED_AFTER_FAILURE_SECONDS = 1.0


@dataclass(slots=True)
class _Entry:
    due: float
    timer: asyncio.TimerHandle | None = None
    running: bool = False
    #: In a pass of its own accord, or waiting for it: others go first.
    patient: bool = False
    #: Reported during its pass, and whether only patiently.
    again: bool = False
    again_patient: bool = False
    #: When the last pass began that saw anything of it.
    looked_at: float = -math.inf
    failures: int = 0
    conflicts: int = 0
    #: After a failure no report brings the next try before this.
    not_before: float = field(default=float("-inf"))


class WorkQueue:
    """Runs `work` for each key that was added and is due. Times are those of the running event loop."""

    def __init__(
        self,
        work: Pass,
        on_failure: OnFailure,
        *,
        concurrency: int = CONCURRENCY,
        pass_seconds: float = PASS_SECONDS,
        backoff_seconds: float = BACKOFF_SECONDS,
        jitter: Callable[[], float] = random.random,
        wait_of: Callable[[Exception], float] = lambda _: 0.0,
    ) -> None:
        """`wait_of` says of a failure for how many seconds whoever is asked wants to be left alone."""
        self._work, self._on_failure, self._jitter, self._wait_of = work, on_failure, jitter, wait_of
        self._pass_seconds, self._backoff_seconds = pass_seconds, backoff_seconds
        self._slots = Slots(concurrency)
        self._entries: dict[Key, _Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._waiting = self._running = 0

    @property
    def waiting(self) -> int:
        """Keys that are due and wait for a free slot."""
        return self._waiting

    @property
    def running(self) -> int:
        """Passes under way."""
        return self._running

    def add(self, key: Key, after: float = 0.0, *, patient: bool = False) -> None:
        """Look at a key in `after` seconds, or earlier if that was planned already. `patient`: after those
        that are due and are not."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + after
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(due, patient=patient)
            self._arm(key, entry)
            return
        due = max(due, entry.not_before)
        if entry.running:
            entry.again_patient = patient and (entry.again_patient or not entry.again)
            entry.again = True
            if not patient:
                self._slots.hurry(key)
        elif entry.timer is not None and due < entry.due:
            entry.timer.cancel()
            entry.due, entry.patient = due, patient
            self._arm(key, entry)
        elif not patient:
            entry.patient = False

    async def close(self) -> None:
        """Start nothing more and end what runs; returns when nothing runs."""
        self._closed = True
        for entry in self._entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._entries.clear()

    def _arm(self, key: Key, entry: _Entry) -> None:
        entry.timer = asyncio.get_running_loop().call_at(entry.due, self._start, key, entry)

    def _start(self, key: Key, entry: _Entry) -> None:
        entry.timer, entry.running = None, True
        task = asyncio.ensure_future(self._run(key, entry))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: Key, entry: _Entry) -> None:
        self._waiting += 1
        try:
            await self._slots.take(key, patient=entry.patient, since=entry.looked_at)
        finally:
            self._waiting -= 1
        self._running += 1
        began = asyncio.get_running_loop().time()
        entry.again = False  # what was reported before the pass began is seen by it
        try:
            later = await self._pass(key, entry)
        finally:
            self._running -= 1
            self._slots.give_back()
        if later is None or later.looked:
            entry.looked_at = began
        self._finish(key, entry, later)

    async def _pass(self, key: Key, entry: _Entry) -> Later | None:
        try:
            async with asyncio.timeout(self._pass_seconds):
                later = await self._work(key)
        except TryAgain as conflict:
            entry.conflicts += 1
            exponential = min(AGAIN_SECONDS * 2.0 ** min(entry.conflicts - 1, 16), AGAIN_LIMIT)
            delay = exponential * (0.5 + self._jitter())
            if entry.conflicts % AGAIN_TOLD == 0:
                self._on_failure(key, conflict, delay)
            return Later(delay)
        except Exception as error:
            entry.conflicts = 0
            entry.failures += 1
            wait = self._wait_of(error)
            pause = max(REPORTED_AFTER_FAILURE_SECONDS, wait)
            entry.not_before = asyncio.get_running_loop().time() + pause
            exponential = self._backoff_seconds * 2.0 ** min(entry.failures - 1, 16)
            delay = max(wait, min(exponential, BACKOFF_LIMIT) * (0.5 + self._jitter() / 2))
            self._on_failure(key, error, delay)
            return Later(delay)
        entry.failures, entry.conflicts, entry.not_before = 0, 0, float("-inf")
        return Later(later) if isinstance(later, float | int) else later

    def _finish(self, key: Key, entry: _Entry, later: Later | None) -> None:
        entry.running = False
        if self._closed:
            return
        now = asyncio.get_running_loop().time()
        if entry.again:
            soonest = max(now, entry.not_before)
            entry.due = soonest if later is None else min(soonest, now + later.seconds)
            entry.patient = entry.again_patient
        elif later is None:
            del self._entries[key]
            return
        else:
            entry.due, entry.patient = now + later.seconds, later.patient
        self._arm(key, entry)
