"""Messages that were handed over and are sent in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

import msgspec
from pydantic import BaseModel

from worker_runtime.brokers.base import (
    BrokerError,
    BrokerFullError,
    BrokerUnavailableError,
    PayloadRefusedError,
    Publisher,
)

#: Unsent messages at most; a producer that is faster than the broker waits.
CAPACITY = 10_000
#: Messages that go to the broker in one call.
BATCH = 1_000
#: How often `close` tries to send the rest to a broker that does not answer.
CLOSING_ATTEMPTS = 3

log = logging.getLogger("queueworker.outbox")


def encode_payload(payload: Any) -> bytes:
    """The payload's JSON. `bytes` are taken as JSON already. Raises PayloadRefusedError."""
    if isinstance(payload, bytes):
        return payload
    try:
        if isinstance(payload, BaseModel):
            return payload.model_dump_json().encode()
        return msgspec.json.encode(payload)
    except Exception as error:
        raise PayloadRefusedError(
            f"A payload of type {type(payload).__name__} cannot be written as JSON: {error}. Use a pydantic "
            "model, a dataclass, a msgspec.Struct, dict, list, or bytes that hold JSON."
        ) from error


class Outbox:
    """A bounded buffer with one sender. Order is kept within each queue."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._unsent: dict[str, list[bytes]] = {}
        self._count = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._refused = 0
        self._sender = asyncio.create_task(self._send(), name="queueworker outbox")

    async def put(self, queue: str, payload: bytes) -> None:
        while self._count >= CAPACITY:
            self._room.clear()
            await self._room.wait()
        self._unsent.setdefault(queue, []).append(payload)
        self._count += 1
        self._changed.set()

    async def close(self) -> None:
        """Send the rest. Raises BrokerError when some could not be sent."""
        self._closing = True
        self._changed.set()
        await self._sender
        lost = self._count + self._refused
        if lost:
            raise BrokerUnavailableError(
                f"{lost} enqueued messages were not confirmed by the broker before the app closed."
            )

    async def _send(self) -> None:
        failures = 0
        size = BATCH
        while True:
            if not self._unsent:
                if self._closing:
                    return
                self._changed.clear()
                await self._changed.wait()
                continue
            queue, payloads = next(iter(self._unsent.items()))
            batch = payloads[:size]
            try:
                await self._publisher.publish_many(queue, batch)
            except PayloadRefusedError as error:
                if len(batch) > 1:  # Nothing of it is published. Which one is it?
                    size = len(batch) // 2
                    continue
                self._refused += 1
                log.error("an enqueued message was refused: %s", error, extra={"queue": queue})
            except (BrokerUnavailableError, BrokerFullError) as error:
                self._sent(queue, error.confirmed)
                failures += 1
                if failures == 1:
                    log.warning("enqueued messages wait for the broker: %s", error, extra={"queue": queue})
                if self._closing and failures >= CLOSING_ATTEMPTS:
                    return
                await asyncio.sleep(min(0.1 * 2**failures, 5.0))
                continue
            except BrokerError as error:
                refused = len(batch) - len(error.confirmed)
                self._refused += refused
                log.error("%d enqueued messages were refused: %s", refused, error, extra={"queue": queue})
            failures = 0
            size = min(BATCH, size * 2)
            self._sent(queue, range(len(batch)))

    def _sent(self, queue: str, indexes: Collection[int]) -> None:
        """These of the queue's unsent messages need nothing more."""
        if not indexes:
            return
        gone = set(indexes)
        payloads = [one for index, one in enumerate(self._unsent[queue]) if index not in gone]
        if payloads:
            self._unsent[queue] = payloads
        else:
            del self._unsent[queue]
        self._count -= len(gone)
        self._room.set()
