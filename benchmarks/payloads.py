"""The payloads of a benchmark, the same for us and for the peers. Standard library only: peers import it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

#: Bytes of `{"sent":<19 digits>,"text":""}`.
_FRAME = 38


def payload(size: int) -> dict[str, Any]:
    """A payload of `size` bytes as JSON without spaces (38 at least); `sent` is the monotonic time now."""
    return {"sent": _now(), "text": "x" * max(0, size - _FRAME)}


def _now() -> int:
    """Nanoseconds of the monotonic clock, always written with 19 digits so that payloads have one length."""
    return 1_000_000_000_000_000_000 + time.monotonic_ns()


def sent_of(payload: dict[str, Any]) -> int:
    """When it was published, in nanoseconds of the monotonic clock."""
    return int(payload["sent"]) - 1_000_000_000_000_000_000


async def batches(
    count: int, size: int, rate: float, batch: int = 1000
) -> AsyncIterator[list[dict[str, Any]]]:
    """`count` payloads: at once in batches, or one by one at `rate` a second if that is not 0."""
    if not rate:
        for start in range(0, count, batch):
            yield [payload(size) for _ in range(min(batch, count - start))]
        return
    began = time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield [payload(size)]


#: Seconds that an io handler waits, as for a small query.
IO_SECONDS = 0.002
_BLOCK = b"x" * 2000
#: Rounds of SHA-256 of 2,000 bytes in a cpu handler: about 100 us, all under the interpreter's lock.
CPU_ROUNDS = 80


def burn() -> None:
    """Work of a cpu handler."""
    for _ in range(CPU_ROUNDS):
        hashlib.sha256(_BLOCK).digest()
