"""Whether a queue holds anything that only this protocol can read: the question before older workers take
over, and before a revision may go.

One reading is a fact of one moment. A queue that must stay empty is read again and again for the time that
is asked for; whatever moves meanwhile, however short, starts that time anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from worker_runtime.brokers.base import BrokerRefusedError, Inspector, QueueReading, Role

#: Seconds between two readings.
SAMPLE = 0.25


@dataclass(frozen=True, slots=True)
class Emptiness:
    """`why` says what stands against it; empty when the queue is empty and was still for long enough."""

    empty: bool
    why: str
    reading: QueueReading
    #: How long nothing private was there and nothing moved, seconds, as far as it was watched.
    quiet_for: float = 0.0
    #: How often the queue was read.
    readings: int = 1


async def verify_empty(
    inspector: Inspector,
    queue: str,
    quiet: float = 0.0,
    limit: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Emptiness:
    """Read the queue until it is proven empty or proven not to be. Never waits for work to finish: anything
    private ends it at once. `quiet` in seconds; it has to be longer than the workers' blocking time, or a
    move that is on its way can arrive later. Activity starts the quiet time anew, for `limit` seconds
    at most (default: ten times `quiet` and a minute). Raises BrokerError; a server that is not known to be
    the primary proves nothing and is refused."""
    began = clock()
    until = began + (quiet * 10 + 60 if limit is None else limit)
    reading = await inspector.read(queue)
    still_since, readings = clock(), 1
    while True:
        _primary(reading)
        if reading.private:
            return Emptiness(False, _what_is_left(reading), reading, readings=readings)
        quiet_for = clock() - still_since
        if quiet_for >= quiet:
            return Emptiness(True, "", reading, quiet_for, readings)
        if clock() >= until:
            why = f"something moved again and again: it was never still for {quiet:g} s"
            return Emptiness(False, why, reading, quiet_for, readings)
        await sleep(min(SAMPLE, quiet - quiet_for))
        after = await inspector.read(queue)
        readings += 1
        if _marks(after) != _marks(reading):
            still_since = clock()
        reading = after


def _marks(reading: QueueReading) -> tuple[object, ...]:
    """What changes when a worker of this protocol does anything, even between two readings."""
    return (reading.server, reading.private, reading.poison, tuple(sorted(reading.ledger.items(), key=str)))


def _what_is_left(reading: QueueReading) -> str:
    places = {
        "in staging": reading.staging,
        f"reserved in {len(reading.reservations)} reservations": reading.reserved,
        f"owned by {len(reading.owners)} workers": reading.owned,
        "delayed": reading.delayed,
    }
    return ", ".join(f"{count:,} {place}" for place, count in places.items() if count)


def _primary(reading: QueueReading) -> None:
    if reading.role is Role.REPLICA:
        raise BrokerRefusedError(
            f"Redis at {reading.server} is a replica: it lags behind, so its reading of {reading.queue}"
            " proves nothing; point the URL at the primary"
        )
    if reading.role is Role.UNKNOWN:
        raise BrokerRefusedError(
            f"Redis at {reading.server} does not tell this user whether it is the primary, so its reading of"
            f" {reading.queue} proves nothing; allow the user the command ROLE (+role)"
        )
