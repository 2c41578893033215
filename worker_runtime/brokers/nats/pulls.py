"""Taking messages from the consumer: one pull at a time over one inbox that lives as long as the connection.

A pull asks for `limit` messages at once or, when none is there, waits for the first one and ends with what
else is there then. Only a pull's end carries its name; messages arrive under the subject of the stream, so
whatever arrives is kept, also between two calls and after a call that was cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from worker_runtime.brokers.base import BrokerError, BrokerRefusedError, BrokerUnavailableError
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.answers import Reply
from worker_runtime.brokers.nats.link import NOBODY, Link
from worker_runtime.brokers.nats.names import DURABLE, QueueNames
from worker_runtime.brokers.nats.receipt import Receipt, read_receipt, usable
from worker_runtime.brokers.nats.topology import Lease, read_lease
from worker_runtime.brokers.nats.wire import LostReplyError, Wire

#: The longest pull, in seconds: a fence and a dead pull are noticed as soon as one ends.
LONGEST = 2.0
#: Seconds that the server may be late with the end of a pull before the connection counts as dead.
_SILENCE = 5.0
#: Seconds between the first message of a pull and its end, where the server does not tell the end: it keeps
#: a pull open that ran into max_ack_pending.
_LULL = 0.02
#: How the reply subject of a new message ends behind which nothing was left (what is handed out again comes
#: before all new ones): no need to wait for the pull's end.
_LAST = b".0"
#: Seconds before the next pull when one ended at once with nothing.
_PAUSE = 0.1
#: Statuses: nothing (more) is there, or the time is over.
_ENDS = frozenset({404, 408})


class Pulls:
    """`note_lease` hears what the consumer says of its ack wait, at each new connection."""

    def __init__(self, link: Link, names: QueueNames, note_lease: Callable[[Lease], None]) -> None:
        self._link = link
        self._names = names
        self._note_lease = note_lease
        self._buffer: deque[Receipt] = deque()
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{names.stream}.{DURABLE}".encode()
        #: How the reply subject of a message begins that is handed out for the first time.
        self._fresh = f"$JS.ACK.{names.stream}.{DURABLE}.1.".encode()
        #: When the consumer was made that hands out what arrives. In the lease, another time is another one.
        self._made = ""
        self._stale = False
        self.use(Lease(30.0))
        self._wire: Wire | None = None
        self._inbox = b""
        self._count = 0
        #: The pull that the server may still answer: its name, what it may still bring, and until when.
        self._pull = b""
        self._credit = 0
        self._until = 0.0
        self._sent_at = 0.0
        self._end: Reply | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._lull: asyncio.TimerHandle | None = None
        #: The last pull has brought something.
        self._brought = False
        self._interrupted = False

    @property
    def holds(self) -> bool:
        return bool(self._buffer)

    def use(self, lease: Lease) -> None:
        """What holds for the messages that arrive from now on."""
        self._lease = lease
        self._wait_of_fresh = lease.of(1)
        self._usable_of_fresh = usable(self._wait_of_fresh)
        self._stale = self._stale or lease.made != self._made

    def interrupt(self) -> None:
        """End a wait, now and from then on."""
        self._interrupted = True
        self._wake()

    def put_back(self, taken: Sequence[Receipt]) -> None:
        """Hand these out again first."""
        self._buffer.extendleft(reversed(taken))

    async def take(self, limit: int, wait: float) -> list[Receipt]:
        """At most `limit` messages: what is there, else what comes within `wait` seconds, of which one pull
        uses up to `LONGEST`. Raises BrokerError only with nothing taken."""
        if self._buffer:
            return self._pop(limit)
        wire = await self._connected()
        if self._buffer:
            return self._pop(limit)
        if self._interrupted:
            await self._take_what_is_there(wire, limit)
            return self._pop(limit)
        if not self._pull:
            expires = max(0.01, min(wait, LONGEST, self._lease.max_expires or LONGEST))
            self._ask(wire, limit, expires)
        began = time.monotonic()
        await self._wait(self._until + _SILENCE)
        if not self._buffer and not self._interrupted:
            await self._judge(wire, began)
        return self._pop(limit)

    async def stop(self) -> list[Receipt]:
        """End the outstanding pull; what it brought meanwhile and nobody took."""
        self._interrupted = True
        if self._wire is not None and not self._wire.gone and self._pull:
            try:
                async with asyncio.timeout(min(_SILENCE, self._link.timeout)):
                    # What the server sends to an inbox that is gone comes back behind all other messages, so
                    # a pull that was sent just now is not given up before it could bring something.
                    await self._wait(self._sent_at + _LULL, interruptible=False)
                    await self._wire.unsubscribe()
            except (BrokerError, TimeoutError):
                pass  # What is on its way comes back after the ack wait.
        self._pull = b""
        left = list(self._buffer)
        self._buffer.clear()
        return left

    async def close(self) -> None:
        await self._link.close()

    def _pop(self, limit: int) -> list[Receipt]:
        buffer = self._buffer
        if len(buffer) <= limit:
            taken = list(buffer)
            buffer.clear()
            return taken
        return [buffer.popleft() for _ in range(limit)]

    async def _connected(self) -> Wire:
        wire = await self._link.opened()
        if wire is self._wire and not wire.gone:
            if not self._stale:
                return wire
            # What is on its way is of the consumer that is gone.
            self._wire, self._pull = None, b""
            await wire.unsubscribe()
        info = await api.consumer_info(self._link, self._names.stream, DURABLE)
        if info is None:
            raise self._absent(wire)
        lease = read_lease(info)
        self._made, self._stale = lease.made, False
        self.use(lease)
        self._note_lease(self._lease)
        self._pull = b""
        wire.on_delivery = self._arrived
        wire.on_status = self._ended
        wire.on_gone = self._gone
        self._inbox = wire.subscribe()
        self._wire = wire
        return wire

    def _ask(self, wire: Wire, limit: int, expires: float) -> None:
        """Pull what is there, and wait `expires` seconds for the first message where nothing is."""
        batch = min(limit, self._lease.max_batch or limit)
        self._count += 1
        self._pull = b"%d" % self._count
        self._credit = batch
        self._end = None
        self._brought = False
        self._sent_at = time.monotonic()
        self._until = self._sent_at + expires
        wait = b',"expires":%d' % (expires * 1e9) if expires else b""
        body = b'{"batch":%d,"no_wait":true%b}' % (batch, wait)
        wire.publish(self._next, b"%b.%d" % (self._inbox, self._count), body)

    async def _take_what_is_there(self, wire: Wire, limit: int) -> None:
        """Without waiting: end the pull that may be open, then ask once more."""
        for ask in (False, True):
            if ask and not self._buffer:
                self._ask(wire, limit, 0.0)
                # No end is told where max_ack_pending is reached.
                await self._wait(time.monotonic() + 1.0, interruptible=False)
            if self._pull:
                await wire.unsubscribe()
                self._pull = b""
                self._inbox = wire.subscribe()

    async def _wait(self, until: float, *, interruptible: bool = True) -> None:
        """Until the pull has ended, or a lull after a message, or this monotonic time, or the connection's
        end."""
        if not self._pull or self._buffer or (interruptible and self._interrupted):
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        limit = loop.call_later(max(0.0, until - time.monotonic()), self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            limit.cancel()
            if self._lull is not None:
                self._lull.cancel()
                self._lull = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _gone(self) -> None:
        self._pull = b""
        self._wake()

    def _arrived(self, reply: bytes, body: bytes) -> None:
        wire = self._wire
        since = self._sent_at if wire is None else max(self._sent_at, wire.heard_at)
        fresh = reply.startswith(self._fresh)
        if fresh:
            receipt = Receipt(reply, body, 1, self._wait_of_fresh, since + self._usable_of_fresh, self._made)
        else:
            try:
                receipt = read_receipt(reply, body)
            except ValueError:
                return  # Not from the consumer.
            receipt.begin(since, self._lease)
            receipt.made = self._made
        self._buffer.append(receipt)
        self._brought = True
        self._credit -= 1
        if self._credit <= 0:
            self._pull = b""
            self._wake()
        elif fresh and reply.endswith(_LAST):
            self._wake()
        elif self._lull is None and self._waiter is not None:
            self._lull = self._waiter.get_loop().call_later(_LULL, self._wake)

    def _ended(self, subject: bytes, status: Reply) -> None:
        if status.status == 100 or subject.rpartition(b".")[2] != self._pull:
            return
        self._end = status
        self._pull = b""
        self._wake()

    async def _judge(self, wire: Wire, began: float) -> None:
        """Nothing came: why? Raises BrokerError where that is a fault."""
        if wire.gone:
            raise wire.error()
        end = self._end
        if end is None:
            if self._pull:
                self._link.drop()
                raise LostReplyError(
                    f"NATS at {wire.name} left a pull without its end for {_SILENCE:g} s; the connection is"
                    " given up and the next pull opens another"
                )
            return
        code, words = end.status, end.words
        if code in _ENDS:
            soon = time.monotonic() - began < min(_PAUSE, (self._until - self._sent_at) / 2)
            if soon and not self._brought:
                # Others wait with larger pulls than there is work.
                await asyncio.sleep(_PAUSE)
            return
        if code == NOBODY:
            self._stale = True  # Whoever answers the next time may be another consumer.
            if await api.consumer_info(self._link, self._names.stream, DURABLE) is None:
                raise self._absent(wire)
            raise BrokerUnavailableError(
                f"NATS at {wire.name}: nobody serves the consumer {DURABLE} of {self._names.stream} at this"
                " moment; its servers are electing a leader"
            )
        lowered = words.lower()
        if code == 409 and "batch completed" in lowered:
            return
        if code == 409 and "deleted" in lowered:
            self._stale = True
            raise self._absent(wire)
        if code == 409 and ("leadership change" in lowered or "shutdown" in lowered):
            await asyncio.sleep(_PAUSE)
            return
        if code == 409 and "maxwaiting" in lowered.replace(" ", ""):
            raise BrokerUnavailableError(
                f"NATS at {wire.name}: more workers wait at the consumer {DURABLE} of {self._names.stream}"
                " than its max_waiting allows; raise that, or run fewer processes with larger prefetch"
            )
        raise BrokerRefusedError(
            f"NATS at {wire.name}: the consumer {DURABLE} of {self._names.stream} refuses a pull:"
            f" {code} {words}"
        )

    def _absent(self, wire: Wire) -> BrokerRefusedError:
        return BrokerRefusedError(
            f"NATS at {wire.name} has no consumer {DURABLE} of {self._names.stream} (any more); run:"
            f" queueworker provision {self._names.queue}"
        )
