"""The watch over the main loop: whom it wakes, and what it tells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import pytest

from worker_runtime.brokers.base import Delivery
from worker_runtime.renewal import Heartbeat
from worker_runtime.state import QueueState

PATIENCE = 60.0


class MainLoop:
    """Counts what it is asked, and answers when told to."""

    def __init__(self) -> None:
        self.answers = True
        self.asked = 0
        self.left: list[Callable[[], None]] = []

    def ask(self, call: Callable[[], None]) -> None:
        self.asked += 1
        if self.answers:
            call()
        else:
            self.left.append(call)


async def looks(state: QueueState, main: MainLoop, until: Callable[[int], bool]) -> None:
    """Run the watch until it has looked so often."""
    count, enough = 0, asyncio.Event()

    def states() -> list[QueueState]:
        nonlocal count
        count += 1
        if until(count):
            enough.set()
        return [state]

    watch = asyncio.create_task(Heartbeat(states, main.ask).watch())
    try:
        await asyncio.wait_for(enough.wait(), PATIENCE)
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def test_a_loop_that_waits_for_work_is_left_alone() -> None:
    state, main = QueueState("q", "job", 1, 1, 60.0), MainLoop()
    # It does not grow old, however long the looks take.
    state.silence.receive = state.clock() + 100.0
    await looks(state, main, lambda count: count > 3)
    assert main.asked == 0


@pytest.mark.parametrize("why", ["work", "no receive", "an old receive", "a settlement"])
async def test_any_other_is_asked(why: str) -> None:
    state, main = QueueState("q", "job", 1, 1, 60.0), MainLoop()
    # A receive that never grows old unless that is the reason.
    state.silence.receive = state.clock() + (-100.0 if why == "an old receive" else 100.0)
    if why == "work":
        state.outstanding[1] = Delivery("p", "q", b"1", 0.0, 0, None)
    elif why == "no receive":
        state.silence.receive = 0.0
    elif why == "a settlement":
        state.silence.settle = state.clock()
    await looks(state, main, lambda _: main.asked > 0)


async def test_a_stall_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    state, main = QueueState("q", "job", 1, 1, 60.0), MainLoop()
    state.outstanding[1] = state.current[0] = Delivery("p", "q", b"1", 0.0, 0, None)
    main.answers = False

    def told(what: str) -> int:
        """Of the main loop: that this process got no turn, which may be true, is told apart."""
        said = [record.getMessage() for record in caplog.records]
        return sum(what in one for one in said if "whole process" not in one)

    noticed = 0

    def enough(count: int) -> bool:
        nonlocal noticed
        noticed = noticed or (count if told("has stood still for") else 0)
        if noticed and count > noticed + 1 and main.left:
            main.left.pop()()
            main.answers = True
        return told("runs again after a stall of") > 0

    with caplog.at_level(logging.WARNING):
        await looks(state, main, enough)
    assert (told("event loop has stood still for"), told("event loop runs again")) == (1, 1)
    assert told("job handles message p") == 2
    assert state.problem == ""
