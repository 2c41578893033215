"""Reading one queue from its streams and its consumer."""

from __future__ import annotations

from collections.abc import Callable

from worker_runtime.brokers.base import BrokerRefusedError, Place, QueueReading, Role, Whereabouts
from worker_runtime.brokers.nats import api, books
from worker_runtime.brokers.nats.api import Stored
from worker_runtime.brokers.nats.books import server_time
from worker_runtime.brokers.nats.dead import attempts_of, is_failed, why_of
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import DURABLE, QueueNames
from worker_runtime.brokers.nats.sweeping import stuck
from worker_runtime.brokers.nats.topology import check_owner
from worker_runtime.brokers.nats.walking import windows
from worker_runtime.envelope import Unreadable, decode_envelope, published_at


class NatsInspector:
    """Implements `Inspector`. The counts come from several answers, so they are not of one moment."""

    def __init__(self, names_of: Callable[[str], QueueNames], link: Link) -> None:
        self._names_of = names_of
        self._link = link

    async def read(self, queue: str) -> QueueReading:
        """What JetStream can say. `owned` is everything that was handed out and not settled: also what waits
        for the time of its retry or to be handed out again, and what is stuck. `total` counts deliveries,
        `success` what left the queue and is not among the dead letters."""
        names, link = self._names_of(queue), self._link
        consumer = await api.consumer_info(link, names.stream, DURABLE)
        stream = await api.stream_info(link, names.stream)
        dead = await api.stream_info(link, names.dead_stream)
        if stream is None or consumer is None or dead is None:
            raise BrokerRefusedError(
                f"NATS at {link.name} has no queue {queue} ({names.stream}, its consumer {DURABLE} or"
                f" {names.dead_stream} is missing); run: queueworker provision {queue}"
            )
        for one in (stream, dead):
            check_owner(names, one["config"], link.name)
        now = server_time(stream)
        delivered = int(consumer["delivered"]["stream_seq"])
        oldest = None
        if consumer["num_pending"]:
            question = {"seq": delivered + 1, "next_by_subj": names.normal}
            oldest = await api.get_message(link, names.stream, question)
        published = None if oldest is None else published_at(oldest.payload)
        workers, _ = await books.roster(link, names, now)
        unsettled = int(consumer["num_ack_pending"]) + await stuck(link, names)
        settled = int(stream["state"]["last_seq"]) - int(stream["state"]["messages"])
        return QueueReading(
            queue=queue,
            ready=int(consumer["num_pending"]),
            oldest_ready_age=None if published is None else max(0.0, now - published),
            staging=0,
            reserved=0,
            owned=unsettled,
            processing=int(consumer["num_ack_pending"]),
            delayed=0,
            failed=0,
            dead=int(dead["state"]["messages"]),
            poison=0,
            total=int(consumer["delivered"]["consumer_seq"]),
            success=max(0, settled - int(dead["state"]["last_seq"])),
            owners={one.worker: one.outstanding for one in workers if one.outstanding},
            fences=await books.all_fences(link, names),
            workers=workers,
            # Streams and consumers answer by their leaders only.
            role=Role.PRIMARY,
            server=link.name,
            failed_among_dead=True,
        )

    async def find(self, queue: str, pid: str, scan: int = 10_000) -> Whereabouts:
        """See `Inspector.find`."""
        names, link = self._names_of(queue), self._link
        now = server_time(await api.stream_info(link, names.stream) or {})
        buried, seen, whole = await self._search(names.dead_stream, names.dead, pid, scan)
        if buried is not None:
            why, reason = why_of(buried.headers)
            return Whereabouts(
                pid,
                Place.FAILED if is_failed(buried.headers) else Place.DEAD,
                published_ago=_age(buried, now),
                attempts=attempts_of(buried),
                reason=f"{why}: {reason}" if reason else why or None,
                recorded=True,
                scanned=seen,
                complete=whole,
            )
        stored, more, all_of_it = await self._search(names.stream, names.normal, pid, scan)
        seen, whole = seen + more, whole and all_of_it
        if stored is None:
            return Whereabouts(pid, Place.NOWHERE, scanned=seen, complete=whole)
        consumer = await api.consumer_info(link, names.stream, DURABLE)
        waits = consumer is None or stored.sequence > int(consumer["delivered"]["stream_seq"])
        return Whereabouts(
            pid,
            Place.READY if waits else Place.OWNED,
            position=more - 1 if waits else None,
            published_ago=_age(stored, now),
            attempts=attempts_of(stored),
            scanned=seen,
            complete=whole,
        )

    async def close(self) -> None:
        await self._link.close()

    async def _search(
        self, stream: str, subject: str, pid: str, scan: int
    ) -> tuple[Stored | None, int, bool]:
        """From the oldest on: the message, how many were looked at, and whether that was all."""
        seen = 0
        async for some in windows(self._link, stream, subject):
            for stored in some:
                if seen >= scan:
                    return None, seen, False
                seen += 1
                envelope = decode_envelope(stored.payload)
                if not isinstance(envelope, Unreadable) and envelope.pid == pid:
                    return stored, seen, True
        return None, seen, True


def _age(stored: Stored, now: float) -> float | None:
    published = published_at(stored.payload)
    return None if published is None else max(0.0, now - published)
