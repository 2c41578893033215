"""Loops that have no end: run again when one fails, given up when one fails again and again.

A loop that dies unseen is worse than a process that dies: it looks alive and does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from worker_runtime.execution import describe

#: Faults of one loop that are borne within `WINDOW`; one more gives it up.
BORNE = 4
#: In seconds.
WINDOW = 60.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0

log = logging.getLogger("queueworker.keeping")


async def keep_going(
    make: Callable[[], Awaitable[None]],
    name: str,
    give_up: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run what `make` makes until it returns, again after each exception. The fifth within a minute calls
    `give_up` with a line that says why, and is the end. `clock` is monotonic."""
    faults: deque[float] = deque()
    while True:
        try:
            await make()
            return
        except Exception as error:
            log.error("%s failed: %s", name, describe(error), exc_info=error)
            faults.append(clock())
            while faults[0] < faults[-1] - WINDOW:
                faults.popleft()
            if len(faults) > BORNE:
                times = f"{len(faults)} times within {WINDOW:.0f} s"
                give_up(f"{name} failed {times}, the last time with {describe(error)}")
                return
        await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (len(faults) - 1)))
