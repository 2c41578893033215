"""How a run asks servers that it is doing harm to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from worker_runtime.brokers.base import BrokerUnavailableError

_Told = TypeVar("_Told")


async def patiently(
    ask: Callable[[], Awaitable[_Told]], seconds: float, clock: Callable[[], float] = time.monotonic
) -> _Told:
    """Servers that have no leader yet, or a new one, may leave a question without an answer: it is asked
    again for that long, and the last BrokerUnavailableError raised then. Only for what may be asked twice."""
    until = clock() + seconds
    while True:
        try:
            return await ask()
        except BrokerUnavailableError:
            if clock() > until:
                raise
        await asyncio.sleep(0.2)
