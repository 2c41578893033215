"""When the regular work of an idle process is done.

Each wake-up of an idle process costs its neighbours on the machine, so the loops of one thread wake together.
Each process has an offset of its own, so that a hundred of them do not wake at once.
"""

from __future__ import annotations

import asyncio
import random
import time

_OFFSET = random.uniform(0.0, 60.0)


async def until_next(period: float) -> None:
    """Sleep until the next multiple of `period` seconds after this process's offset, at least half of it and
    at most one and a half. Loops of one thread whose periods are multiples of each other wake together."""
    left = period - (time.monotonic() - _OFFSET) % period
    await asyncio.sleep(left if left > period / 2 else left + period)
