"""Publishing, as producers of the same wire format do: LPUSH of envelopes onto the ready list."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from worker_runtime.brokers.base import (
    BrokerError,
    BrokerFullError,
    BrokerRefusedError,
    BrokerUnavailableError,
    Timing,
)
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.links import QueueLinks
from worker_runtime.brokers.redis.wire import LostReplyError
from worker_runtime.envelope import encode_envelopes, new_pid

#: One LPUSH takes at most this many messages and about this many bytes.
_CHUNK = 1000
_CHUNK_BYTES = 4 * 1024 * 1024


class RedisPublisher:
    """Implements `Publisher`. `keys_of` refuses a queue that cannot be used before anything is sent."""

    def __init__(
        self,
        keys_of: Callable[[str], QueueKeys],
        timing: Timing,
        make_link: Callable[[QueueKeys], Link],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._timing = timing
        self._clock = clock
        self._links = QueueLinks(keys_of, make_link)

    def verify(self, queue: str) -> None:
        """See `Publisher.verify`."""
        self._links.of(queue)

    async def publish_many(self, queue: str, payloads: Sequence[bytes]) -> Sequence[str]:
        """Publish raw JSON payloads in order and return their pids. Nothing is published when one of them is
        refused (PayloadRefusedError). When an answer is lost, BrokerUnavailableError says how many were
        confirmed; it is not tried again, since that could publish twice."""
        if not payloads:
            return []
        keys, link = self._links.of(queue)
        pids = [new_pid() for _ in payloads]
        now = int(self._clock())
        envelopes = encode_envelopes(queue, now, pids, payloads)
        confirmed = 0
        for chunk in _chunks(envelopes):
            try:
                await link.call(
                    ("LPUSH", keys.ready, *chunk), "publish", patience=self._timing.command_timeout
                )
            except BrokerError as error:
                raise _told(error, len(chunk), confirmed, len(pids), queue) from None
            confirmed += len(chunk)
        return pids

    async def close(self) -> None:
        await self._links.close()


def _told(error: BrokerError, asked: int, before: int, total: int, queue: str) -> BrokerError:
    """The same error with what became of the messages."""
    maybe = f" the next {asked} may be," if isinstance(error, LostReplyError) else ""
    text = f"{error}; of {total} messages for {queue}, {before} are published,{maybe} the others are not"
    kinds = (LostReplyError, BrokerUnavailableError, BrokerFullError, BrokerRefusedError)
    told = next((kind(text) for kind in kinds if isinstance(error, kind)), error)
    told.confirmed = frozenset(range(before))
    return told


def _chunks(envelopes: Sequence[bytes]) -> list[list[bytes]]:
    chunks: list[list[bytes]] = []
    size = 0
    for envelope in envelopes:
        if not chunks or len(chunks[-1]) >= _CHUNK or size + len(envelope) > _CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(envelope)
        size += len(envelope)
    return chunks
