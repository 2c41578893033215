"""Publishing into a queue's stream: everything at once, each message confirmed by the stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from worker_runtime.brokers.base import (
    BrokerError,
    BrokerFullError,
    BrokerRefusedError,
    BrokerUnavailableError,
    PayloadRefusedError,
    QueueUnusableError,
)
from worker_runtime.brokers.nats.answers import Reply
from worker_runtime.brokers.nats.api import read_answer, read_pub_ack
from worker_runtime.brokers.nats.dead import RESERVED
from worker_runtime.brokers.nats.link import FORBIDDEN, NOBODY, Link
from worker_runtime.brokers.nats.names import QueueNames
from worker_runtime.brokers.nats.topology import check_identity
from worker_runtime.brokers.nats.wire import LostReplyError, Request
from worker_runtime.envelope import encode_envelopes, new_pid

#: Unconfirmed messages at once at most, and about this many bytes.
_CHUNK = 1000
_CHUNK_BYTES = 4 * 1024 * 1024
#: Seconds that the first look at a queue's stream may take.
_LOOK = 2.0
#: Seconds between two tries while nobody receives anything.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
#: So that a publish which is repeated within the stream's window is stored once.
#: The stream is named, so that one of somebody else that takes the subject by chance refuses the message.
_HEADERS = b"NATS/1.0\r\nNats-Expected-Stream: %b\r\nNats-Msg-Id: %b\r\n\r\n"


class NatsPublisher:
    """Implements `Publisher`."""

    def __init__(
        self,
        names_of: Callable[[str], QueueNames],
        link: Link,
        patience: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`patience` in seconds: how long an absent server is waited for."""
        self._names_of = names_of
        self._link = link
        self._patience = patience
        self._clock = clock
        #: Queues whose stream was looked at, or may not be.
        self._seen: set[str] = set()

    def verify(self, queue: str) -> None:
        """See `Publisher.verify`."""
        self._names_of(queue)

    async def publish_many(self, queue: str, payloads: Sequence[bytes]) -> Sequence[str]:
        """Publish raw JSON payloads in order and return their pids. Nothing is published when one of them is
        refused (PayloadRefusedError). When an answer is lost, BrokerUnavailableError says how many were
        confirmed; it is not tried again."""
        names = self._names_of(queue)
        if not payloads:
            return []
        pids = [new_pid() for _ in payloads]
        now, stream = int(self._clock()), names.stream.encode()
        requests: list[Request] = [
            (names.normal, _HEADERS % (stream, pid.encode()), envelope)
            for pid, envelope in zip(pids, encode_envelopes(queue, now, pids, payloads), strict=True)
        ]
        wire = await self._link.opened(self._patience)
        if queue not in self._seen:
            await self._look(queue, names)
        limit = wire.max_payload - RESERVED
        for index, (_, headers, body) in enumerate(requests):
            size = len(headers) + len(body)
            if size > limit:
                refusal = PayloadRefusedError(
                    f"the payload has {len(payloads[index])} bytes, {size} with its envelope, and NATS at"
                    f" {wire.name} takes {limit} (max_payload without {RESERVED} for the reason of a dead"
                    " letter); store large data elsewhere and publish a reference to it, or raise max_payload"
                )
                refusal.index = index
                raise refusal
        confirmed = 0
        for chunk in _chunks(requests):
            await self._publish(queue, chunk, confirmed, len(pids))
            confirmed += len(chunk)
        return pids

    async def _look(self, queue: str, names: QueueNames) -> None:
        """Subjects carry no namespace, so the stream alone says whose queue it is: asked once for each queue.
        A producer needs no right to ask; one that may not is believed. Raises QueueUnusableError."""
        replies: list[Reply] = []
        asked: Request = (f"$JS.API.STREAM.INFO.{names.stream}", b"", b"")
        try:
            await self._link.ask([asked], lambda _, reply: replies.append(reply), _LOOK, harmless=True)
            for reply in replies:
                if reply.status != FORBIDDEN:
                    info = read_answer(reply, self._link.name, f"describe the stream {names.stream}")
                    check_identity(names, info["config"], self._link.name)
                self._seen.add(queue)
        except QueueUnusableError:
            raise
        except BrokerError:
            pass  # The publish learns what is wrong; the next one asks again.

    async def _publish(self, queue: str, chunk: Sequence[Request], before: int, total: int) -> None:
        """While the server says of the whole chunk that nobody received it, it is sent again: its servers
        may be electing a leader."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self._patience, _FIRST_PAUSE
        while True:
            replies: dict[int, Reply] = {}
            try:
                await self._link.ask(chunk, replies.__setitem__)
            except BrokerUnavailableError as error:
                text = f"{error}; of {total} messages for {queue}, {before} are published, the others are not"
                raise _confirming(BrokerUnavailableError(text), range(before)) from None
            nobody = sum(reply.status == NOBODY for reply in replies.values())
            if nobody < len(chunk) or loop.time() + pause > until:
                break
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        self._judge(queue, replies, len(chunk), before, total)

    def _judge(self, queue: str, replies: Mapping[int, Reply], asked: int, before: int, total: int) -> None:
        confirmed = list(range(before))
        refusal: BrokerError | None = None
        for index, reply in replies.items():
            try:
                read_pub_ack(reply, self._link.name, f"publish to {queue}")
            except BrokerError as error:
                refusal = refusal or error
            else:
                confirmed.append(before + index)
        lost = asked - len(replies)
        known = f"of {total} messages for {queue}, {len(confirmed)} are published"
        if lost:
            text = f"NATS at {self._link.name} did not confirm {lost} messages; {known}, {lost} may be, the"
            raise _confirming(LostReplyError(f"{text} others are not"), confirmed)
        if refusal is not None:
            if isinstance(refusal, BrokerUnavailableError):
                self._link.move_on()
            kinds = (BrokerUnavailableError, BrokerFullError, BrokerRefusedError)
            kind = next(one for one in kinds if isinstance(refusal, one))
            raise _confirming(kind(f"{refusal}; {known}"), confirmed)

    async def close(self) -> None:
        await self._link.close()


def _confirming(error: BrokerError, confirmed: Iterable[int]) -> BrokerError:
    error.confirmed = frozenset(confirmed)
    return error


def _chunks(requests: Sequence[Request]) -> list[list[Request]]:
    chunks: list[list[Request]] = []
    size = 0
    for request in requests:
        if not chunks or len(chunks[-1]) >= _CHUNK or size + len(request[2]) > _CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(request)
        size += len(request[2])
    return chunks
