"""Waiting that a stop ends early."""

from __future__ import annotations

import asyncio
import random

#: The longest pause between two attempts to reach a broker that is away, in seconds.
LONGEST_BACKOFF = 5.0


async def pause(seconds: float, until: asyncio.Event) -> None:
    """Wait that many seconds, or return at once when `until` is set."""
    try:
        async with asyncio.timeout(seconds):
            await until.wait()
    except TimeoutError:
        pass


async def back_off(failures: int, until: asyncio.Event) -> None:
    """Pause after so many failures in a row, from 0.2 s up, each time twice as long, and never exactly."""
    backoff = min(LONGEST_BACKOFF, 0.1 * 2 ** min(failures, 10))
    await pause(backoff * random.uniform(0.5, 1.0), until)
