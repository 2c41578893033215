"""Receiving and settling on one queue: one connection for pulls, one for all that has to be confirmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from worker_runtime.brokers.base import (
    MAX_TAKEOVERS,
    Action,
    BrokerError,
    BrokerRefusedError,
    Delivery,
    Fenced,
    OnResult,
    Outcome,
    Received,
    Settlement,
    Timing,
    WorkerIdentity,
)
from worker_runtime.brokers.nats import books
from worker_runtime.brokers.nats.dead import DEAD
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import QueueNames
from worker_runtime.brokers.nats.pulls import Pulls
from worker_runtime.brokers.nats.receipt import Receipt
from worker_runtime.brokers.nats.settling import Burial, Settling
from worker_runtime.brokers.nats.topology import Lease
from worker_runtime.envelope import Unreadable, decode_envelope

#: Seconds for which an answer to "is this revision fenced" holds: under load one question serves many pulls.
FENCE_AGE = 0.25

#: Seconds for which a refused acknowledgement speaks for all others.
REFUSAL_AGE = 10.0


class Terms:
    """What the consumer says of its ack wait, as read last. Shared by the threads of one process."""

    __slots__ = ("lease",)

    def __init__(self) -> None:
        self.lease: Lease | None = None


class NatsConsumer:
    """Implements `Consumer`. `make_link` opens nothing."""

    def __init__(
        self,
        names: QueueNames,
        identity: WorkerIdentity,
        timing: Timing,
        make_link: Callable[[], Link],
        terms: Terms,
        max_tries: int = MAX_TAKEOVERS,
    ) -> None:
        """A message that was handed out `max_tries` times and never settled is a dead letter; 0 is never."""
        self._names = names
        self._identity = identity
        self._timing = timing
        self._terms = terms
        self._max_tries = max_tries
        self._commands = make_link()
        self._pulls = Pulls(make_link(), names, self._note)
        self._settling = Settling(self._commands, names, identity, self._lease)
        self._one_at_a_time = asyncio.Lock()
        self._interrupted = False
        self._closed = False
        self._fence_until = 0.0

    def _note(self, lease: Lease) -> None:
        self._terms.lease = lease

    def _lease(self) -> Lease:
        return self._terms.lease or Lease(30.0)

    async def receive(self, limit: int) -> Received:
        """See `Consumer.receive`. A fence is asked for before each pull, and no pull lasts longer than
        `LONGEST` seconds."""
        if limit <= 0:
            return Received()
        limit = self._allowed(limit)
        async with self._one_at_a_time:
            until = time.monotonic() + self._timing.block
            while True:
                fence = await self._fence()
                if fence:
                    await self._give_back()
                    return Received(fenced=Fenced(fence))
                self._pulls.use(self._lease())
                taken = await self._pulls.take(limit, max(0.0, until - time.monotonic()))
                if taken:
                    received = await self._judged(taken)
                    if received.deliveries or received.poisoned or received.crash_loops:
                        return received
                if self._interrupted or time.monotonic() >= until:
                    return Received()

    def interrupt(self) -> None:
        """See `Consumer.interrupt`."""
        self._interrupted = True
        self._pulls.interrupt()

    async def settle(self, settlements: Sequence[Settlement], on_result: OnResult) -> None:
        """See `Consumer.settle`."""
        await self._settling.settle(settlements, on_result)

    async def close(self) -> None:
        """See `Consumer.close`. What a pull brought and nobody took goes back at once."""
        if self._closed:
            return
        self._closed = True
        self.interrupt()
        async with self._one_at_a_time:
            left = await self._pulls.stop()
            await self._release(left)
            await self._pulls.close()
            await self._commands.close()

    def _allowed(self, limit: int) -> int:
        """What cannot be acknowledged had better not run: its message comes again and again, and so do its
        side effects. So then one message is taken now and then, to see whether that has changed."""
        refusal = self._settling.refusal
        if not refusal:
            return limit
        if time.monotonic() < self._settling.refused_at + REFUSAL_AGE:
            raise BrokerRefusedError(
                f"NATS at {self._commands.name}: {refusal}; nothing but one message each {REFUSAL_AGE:g} s is"
                " taken until it may: give the user the right to publish to $JS.ACK.>"
            )
        return 1

    async def _fence(self) -> str:
        now = time.monotonic()
        if now < self._fence_until:
            return ""
        fence = await books.fence_of(self._commands, self._names, self._identity.revision)
        if not fence:
            self._fence_until = now + FENCE_AGE
        return fence

    async def _give_back(self) -> None:
        if self._pulls.holds:
            await self._release(await self._pulls.take(10**9, 0.0))

    async def _release(self, taken: Sequence[Receipt]) -> None:
        """Unread. What cannot be given back comes again after the ack wait."""
        settlements = []
        for receipt in taken:
            delivery = Delivery("", self._names.queue, b"null", 0.0, 0, receipt)
            envelope = decode_envelope(receipt.body)
            if not isinstance(envelope, Unreadable):
                delivery.pid, delivery.payload = envelope.pid, bytes(envelope.payload)
                delivery.timestamp, delivery.attempts = envelope.timestamp, envelope.attempts
            settlements.append(Settlement(delivery, Action.RELEASE))
        try:
            await books.read_releases(
                self._commands, self._names, [one for one in taken if one.deliveries > 1]
            )
        except BrokerError:
            pass  # One more attempt is charged.
        await self._settling.settle(settlements, _nobody_asked)

    async def _judged(self, taken: list[Receipt]) -> Received:
        """Decode, and put aside what cannot be read and what was tried too often already."""
        again = [one for one in taken if one.deliveries > 1]
        try:
            if again:
                await books.read_releases(self._commands, self._names, again)
        except BaseException:  # also when this receive is cancelled: nothing may be lost with it
            self._pulls.put_back(taken)
            raise
        now, lease = time.monotonic(), self._lease()
        made = lease.made
        queue, most = self._names.queue, self._max_tries
        deliveries: list[Delivery] = []
        aside: list[Burial] = []
        for receipt in taken:
            if now >= receipt.deadline or (receipt.made is not made and receipt.of_another(lease)):
                continue  # It waited here for too long: the server hands it out again, where it still is.
            body = receipt.body
            envelope = decode_envelope(body)
            tries = receipt.deliveries - 1 - receipt.released
            if isinstance(envelope, Unreadable):
                aside.append(Burial(receipt, body, DEAD, envelope.reason, envelope.detail, tries))
                continue
            attempts = envelope.attempts + max(0, tries)
            if 0 < most <= tries:
                why = f"handed out {receipt.deliveries} times and never settled"
                aside.append(Burial(receipt, body, DEAD, "crash-loop", why, attempts))
                continue
            deliveries.append(
                Delivery(envelope.pid, queue, bytes(envelope.payload), envelope.timestamp, attempts, receipt)
            )
        if not aside:
            return Received(deliveries)
        loops = [one for one in aside if one.why == "crash-loop"]
        poison = [one for one in aside if one.why != "crash-loop"]
        try:
            return Received(
                deliveries, poisoned=await self._bury(poison), crash_loops=await self._bury(loops)
            )
        except BaseException:
            kept = {id(one.receipt) for one in deliveries}
            self._pulls.put_back([one for one in taken if id(one) in kept])
            raise

    async def _bury(self, burials: Sequence[Burial]) -> int:
        """What could not be put aside now comes again after the ack wait."""
        if not burials:
            return 0
        try:
            return await self._settling.bury(burials)
        except BrokerError:
            return 0


def _nobody_asked(_: Settlement, __: Outcome, ___: str) -> None:
    """The server hands out again what was not given back."""
