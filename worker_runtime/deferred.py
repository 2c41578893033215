"""Commits that come after the handler has returned, from any thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable
from typing import Any

from worker_runtime.brokers.base import Delivery


class CommitTimeoutError(Exception):
    """A message was neither confirmed nor failed in time."""


class CommitFailedError(Exception):
    """What `Commit.fail` makes of a plain text."""


class Commit:
    """The promise of a handler to say later whether its message is done.

    A handler that takes a parameter of this type returns as soon as the message is in its buffer. The slot
    of the handler is free then; the delivery stays outstanding (renewed, and counted against prefetch) until
    `confirm` or `fail` is called, from any thread, once. The first call decides, every later one changes
    nothing and returns False; so does one that comes after the job's `commit_timeout`.
    """

    __slots__ = ("_deferrals", "_future", "deadline", "decided", "delivery", "error", "returned")

    def __init__(self, deferrals: Deferrals, delivery: Delivery) -> None:
        self._deferrals = deferrals
        self._future: Any = None
        self.delivery = delivery
        self.deadline = 0.0
        self.decided = False
        self.returned = False
        self.error: BaseException | None = None

    def confirm(self) -> bool:
        """The work is durable: commit the message. False when this came too late to count."""
        return self._deferrals.decide(self, None)

    def fail(self, error: BaseException | str) -> bool:
        """The work could not be made durable: treat the message as if the handler had raised this error."""
        if not isinstance(error, BaseException):
            error = CommitFailedError(error)
        return self._deferrals.decide(self, error)

    @property
    def done(self) -> bool:
        """Whether it is decided."""
        return self.decided

    def follow(self, result: Awaitable[Any] | concurrent.futures.Future[Any]) -> None:
        """Let a future decide: done is confirmed, an exception or a cancellation is a failure."""
        if isinstance(result, concurrent.futures.Future):
            self._future = result
        else:
            self._future = asyncio.ensure_future(result)
        self._future.add_done_callback(self._followed)

    def _followed(self, future: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
        if future.cancelled():
            self.fail(asyncio.CancelledError())
            return
        error = future.exception()
        if error is None:
            self.confirm()
        else:
            self.fail(error)


class Deferrals:
    """The open commits of one job in one process. All but `decide` belong to the worker's loop; the lock is
    held for a few assignments."""

    def __init__(self, open_: dict[int, Any], timeout: float) -> None:
        self._open: dict[int, Commit] = open_
        self._timeout = timeout
        self._ready: list[Commit] = []
        self._lock = threading.Lock()
        self._wake = asyncio.Event()
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def new(self, delivery: Delivery) -> Commit:
        return Commit(self, delivery)

    def defer(self, commit: Commit) -> None:
        """Its handler has returned. Must be called on the worker's loop."""
        self._loop = loop = asyncio.get_running_loop()
        commit.deadline = loop.time() + self._timeout
        self._open[id(commit.delivery)] = commit
        with self._lock:
            commit.returned = True
            if commit.decided:
                self._ready.append(commit)
            elif len(self._open) > 1:
                return  # the deadline that is waited for is an earlier one
        self._wake.set()

    def give_up(self, commit: Commit) -> None:
        """Its handler raised: whoever still holds the handle decides nothing any more."""
        with self._lock:
            commit.decided = True

    def decide(self, commit: Commit, error: BaseException | None) -> bool:
        """From any thread. True for the first decision."""
        with self._lock:
            if commit.decided:
                return False
            commit.decided = True
            commit.error = error
            if not commit.returned:
                return True
            self._ready.append(commit)
            wake, self._woken = not self._woken, True
        if wake and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                pass  # the loop is closed: the process ends, and the delivery is recovered by others
        return True

    async def take(self) -> list[Commit]:
        """The next ones that are decided, or whose time is over; at least one."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now = loop.time()
            with self._lock:
                self._woken = False
                taken, self._ready = self._ready, []
                for commit in self._open.values():  # in the order of their deadlines
                    if commit.deadline > now:
                        break
                    if not commit.decided:
                        commit.decided = True
                        commit.error = CommitTimeoutError(
                            f"neither confirmed nor failed within {self._timeout:g} s after its handler"
                        )
                        taken.append(commit)
            for commit in taken:
                self._open.pop(id(commit.delivery), None)
            if taken:
                return taken
            first = next(iter(self._open.values()), None)
            try:
                async with asyncio.timeout(None if first is None else max(0.0, first.deadline - now)):
                    await self._wake.wait()
            except TimeoutError:
                pass
