"""Keeping deliveries alive. JetStream gives back by itself what dead workers left, except for what it will
not hand out any more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from worker_runtime.brokers.base import (
    BrokerUnavailableError,
    Delivery,
    Presence,
    Promoted,
    Recovered,
    Timing,
    WorkerIdentity,
)
from worker_runtime.brokers.nats import api, books
from worker_runtime.brokers.nats.answers import Reply
from worker_runtime.brokers.nats.consumer import Terms
from worker_runtime.brokers.nats.link import NOBODY, Link
from worker_runtime.brokers.nats.names import DURABLE, QueueNames
from worker_runtime.brokers.nats.receipt import Receipt
from worker_runtime.brokers.nats.sweeping import Sweep
from worker_runtime.brokers.nats.topology import read_lease
from worker_runtime.brokers.nats.wire import LostReplyError

_PROGRESS = b"+WPI"
#: Seconds between two complaints about max_ack_pending.
_COMPLAINT = 60.0

log = logging.getLogger("queueworker.nats")


class NatsRenewer:
    """Implements `Renewer`."""

    def __init__(
        self,
        names: QueueNames,
        identity: WorkerIdentity,
        timing: Timing,
        make_link: Callable[[], Link],
        terms: Terms,
    ) -> None:
        self._names = names
        self._identity = identity
        self._timing = timing
        self._link = make_link()
        # Renewals must not wait behind what a sweep or an announcement is at.
        self._aside = make_link()
        self._terms = terms
        self._sweep = Sweep(self._aside, names, identity)
        self._began = time.monotonic()
        self._announced = False
        self._complained_at = -_COMPLAINT

    async def extend(self, deliveries: Collection[Delivery]) -> Collection[Delivery]:
        """See `Renewer.extend`. Those whose ack wait is over are no longer this worker's: the server hands
        them to others."""
        wire = await self._link.opened()
        now = time.monotonic()
        lease = self._terms.lease
        lost: list[Delivery] = []
        asked: list[Receipt] = []
        for one in deliveries:
            receipt: Receipt = one.receipt
            if receipt.settled:
                continue
            if lease is not None:
                receipt.take_terms(lease)
            if now >= receipt.deadline or (lease is not None and receipt.of_another(lease)):
                lost.append(one)
            else:
                asked.append(receipt)
        answered = 0
        nobody = 0

        def note(index: int, reply: Reply) -> None:
            nonlocal answered, nobody
            answered += 1
            if reply.status:
                nobody += reply.status == NOBODY
            else:
                asked[index].extend(now)

        if asked:
            shortest = min(one.wait for one in asked)
            timeout = min(self._link.timeout, max(0.5, shortest / 6))
            await self._link.ask([(one.subject, b"", _PROGRESS) for one in asked], note, timeout)
        if asked and not answered:
            raise LostReplyError(f"NATS at {wire.name} did not confirm that {len(asked)} deliveries go on")
        if nobody:
            self._link.move_on()
            raise BrokerUnavailableError(
                f"NATS at {wire.name}: nobody hears of {nobody} deliveries of {self._names.queue}: its"
                " consumer is gone, or its servers are electing a leader"
            )
        # One without an answer is one that the server no longer knows; its time runs out by itself.
        return lost

    async def recover(self) -> Recovered:
        """See `Renewer.recover`. Moves what is stuck to the dead letters, and clears the books of what is
        gone."""
        moved = await self._sweep.run()
        info = await api.stream_info(self._aside, self._names.stream)
        if info is not None:
            await books.sweep_releases(self._aside, self._names, int(info["state"]["first_seq"]))
            now = books.server_time(info)
            for subject in (await books.roster(self._aside, self._names, now))[1]:
                await api.purge_subject(self._aside, self._names.books, subject)
        return Recovered(crash_loops=moved)

    async def promote(self) -> Promoted:
        """See `Renewer.promote`. The server hands out a delayed retry by itself."""
        return Promoted()

    async def fence(self) -> str:
        """See `Renewer.fence`."""
        return await books.fence_of(self._aside, self._names, self._identity.revision)

    async def announce(self, presence: Presence) -> None:
        """See `Renewer.announce`. Also reads what the consumer says of its ack wait, which an older worker
        that starts may change."""
        up = time.monotonic() - self._began
        record = books.encode_record(self._identity, presence, up, self._timing.expiry)
        subject = self._names.worker(self._identity.worker)
        await books.put(self._aside, subject, record, "say that this worker lives")
        info = await api.consumer_info(self._aside, self._names.stream, DURABLE)
        if info is None:
            return
        before, lease = self._terms.lease, read_lease(info)
        self._terms.lease = lease
        if before is not None and lease.shortest < min(before.shortest, self._timing.expiry):
            log.warning(
                "the ack wait of the consumer %s of %s was %g s and is %g s now, and this worker renews every"
                " %g s: restart it, and find out who changes the consumer",
                DURABLE,
                self._names.stream,
                before.shortest,
                lease.shortest,
                self._timing.renewal_period,
                extra={"queue": self._names.queue},
            )
        full = 0 < lease.max_ack_pending <= int(info["num_ack_pending"])
        if (full or not self._announced) and lease.max_ack_pending > 0:
            await self._look_at_the_limit(lease.max_ack_pending)
        self._announced = True

    async def _look_at_the_limit(self, limit: int) -> None:
        """Whether the consumer lets all workers together hold as much as they are set to."""
        now = time.monotonic()
        if now < self._complained_at + _COMPLAINT:
            return
        alive, _ = await books.roster(self._aside, self._names, time.time())
        wanted = sum(one.prefetch for one in alive)
        if wanted > limit:
            self._complained_at = now
            log.warning(
                "max_ack_pending of the consumer %s of %s is %d, and the %d live workers may hold %d"
                " together: some of them wait although there is work. Raise it to %d or more",
                DURABLE,
                self._names.stream,
                limit,
                len(alive),
                wanted,
                wanted,
                extra={"queue": self._names.queue},
            )

    async def sign_off(self) -> None:
        """See `Renewer.sign_off`."""
        subject = self._names.worker(self._identity.worker)
        await api.purge_subject(self._aside, self._names.books, subject)

    async def close(self) -> None:
        await asyncio.gather(self._link.close(), self._aside.close())
