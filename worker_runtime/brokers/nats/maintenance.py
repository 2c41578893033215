"""Sweeps over the dead stream, some messages at a time, each step safe to repeat."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from worker_runtime.brokers.base import BrokerError, OnSwept, Recovered, Retained, Swept, WorkerIdentity
from worker_runtime.brokers.judging import Counts, Judge, Sweeps
from worker_runtime.brokers.nats import api, dead
from worker_runtime.brokers.nats.answers import Reply
from worker_runtime.brokers.nats.api import Stored
from worker_runtime.brokers.nats.books import server_time
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import QueueNames
from worker_runtime.brokers.nats.sweeping import Sweep
from worker_runtime.brokers.nats.walking import windows
from worker_runtime.brokers.nats.wire import LostReplyError, Request, encode_headers
from worker_runtime.envelope import Unreadable, decode_envelope, retry_envelope

#: Seconds between two looks for stuck messages: a settlement on its way is not one.
_LOOK = 1.0
_NOBODY = WorkerIdentity("-", "maintenance")


class NatsMaintenance(Sweeps):
    """Implements `Maintenance`. Failed messages are those that a handler rejected without being given up;
    they are in the dead stream with the dead letters."""

    def __init__(
        self, names_of: Callable[[str], QueueNames], link: Link, clock: Callable[[], float] = time.time
    ) -> None:
        self._names_of = names_of
        self._link = link
        self._clock = clock

    async def recover(self, queue: str, on_step: Callable[[Recovered], None] = lambda _: None) -> Recovered:
        """Move what is stuck to the dead letters. The server gives back by itself what dead workers left."""
        sweep = Sweep(self._link, self._names_of(queue), _NOBODY)
        moved = await sweep.run()
        while True:
            await asyncio.sleep(_LOOK)
            some = await sweep.run()
            moved += some
            on_step(Recovered(crash_loops=moved))
            if not some:
                return Recovered(crash_loops=moved)

    async def promote(self, queue: str, *, everything: bool = False) -> int:
        """0: the server hands out a delayed retry at its time, and nobody can make it do so earlier."""
        return 0

    async def unstage(self, queue: str) -> int:
        """0: there is no staging."""
        return 0

    async def retained(self, queue: str, *, limit: int = 100, dead: bool = True) -> Sequence[Retained]:
        """See `Maintenance.retained`."""
        names = self._names_of(queue)
        newest: deque[Stored] = deque(maxlen=limit)
        async for some in self._windows(names, dead):
            newest.extend(some)
        return [_retained(one) for one in reversed(newest)]

    async def close(self) -> None:
        await self._link.close()

    async def _windows(self, names: QueueNames, of_dead: bool) -> AsyncIterator[list[Stored]]:
        """Failed or dead ones from the oldest on, as far as the stream reached at the start."""
        info = await api.stream_info(self._link, names.dead_stream)
        end = 0 if info is None else int(info["state"]["last_seq"])
        if not end:
            return
        async for some in windows(self._link, names.dead_stream, names.dead, end):
            yield [one for one in some if dead.is_failed(one.headers) != of_dead]

    async def _sweep(
        self, queue: str, judge: Judge, limit: int | None, of_dead: bool, on_step: OnSwept
    ) -> Swept:
        names = self._names_of(queue)
        info = await api.stream_info(self._link, names.dead_stream)
        now = server_time(info or {})
        counts = Counts()
        async for some in self._windows(names, of_dead):
            room = len(some) if limit is None else limit - counts.retried - counts.parked
            if room <= 0:
                break
            await self._move(names, self._chosen(names, some, judge, now, room, counts), counts)
            on_step(counts.frozen())
        return counts.frozen()

    def _chosen(
        self,
        names: QueueNames,
        some: Sequence[Stored],
        judge: Judge,
        now: float,
        room: int,
        counts: Counts,
    ) -> list[tuple[Stored, str, Request]]:
        """What is to be done with which of them, at most `room`, and the request that does it."""
        chosen: list[tuple[Stored, str, Request]] = []
        for stored in some:
            if len(chosen) >= room:
                break
            envelope = decode_envelope(stored.payload)
            if isinstance(envelope, Unreadable):
                counts.kept += 1
                counts.unreadable += 1
                continue
            attempts = dead.attempts_of(stored)
            action, why = judge(attempts, max(0.0, now - envelope.timestamp))
            if action == "q":
                again = self._again(names, stored, bytes(envelope.payload), attempts)
                chosen.append((stored, action, again))
            elif action == "p":
                chosen.append((stored, action, dead.move_to_dead(names, stored, why)))
            else:
                counts.kept += 1
        return chosen

    async def _move(
        self, names: QueueNames, chosen: Sequence[tuple[Stored, str, Request]], counts: Counts
    ) -> None:
        """First where they go, then away from where they were; whoever stored one counts it."""
        placed: list[tuple[Stored, str, bool]] = []
        problem: BrokerError | None = None

        def note(index: int, reply: Reply) -> None:
            nonlocal problem
            stored, action, _ = chosen[index]
            try:
                ack = api.read_pub_ack(reply, self._link.name, f"move message {stored.sequence}")
            except BrokerError as error:
                problem = problem or error
            else:
                placed.append((stored, action, ack.duplicate))

        answered = 0

        def gone(_: int, __: Reply) -> None:
            nonlocal answered
            answered += 1

        await self._link.ask([request for _, _, request in chosen], note)
        counts.retried += sum(action == "q" and not twin for _, action, twin in placed)
        counts.parked += sum(action == "p" and not twin for _, action, twin in placed)
        subject = f"$JS.API.STREAM.MSG.DELETE.{names.dead_stream}"
        bodies = [msgspec.json.encode({"seq": one.sequence, "no_erase": True}) for one, _, _ in placed]
        await self._link.ask([(subject, b"", body) for body in bodies], gone)
        if problem is not None:
            raise problem
        if len(placed) < len(chosen) or answered < len(placed):
            raise LostReplyError(
                f"NATS at {self._link.name} did not confirm every step of a sweep over {names.dead_stream};"
                " nothing is lost, and what was moved is stored once when the sweep is run again soon"
            )

    def _again(self, names: QueueNames, stored: Stored, payload: bytes, attempts: int) -> Request:
        """A new message with one more attempt, stored once however many sweeps see the old one."""
        head, tail = retry_envelope(names.queue, payload, attempts + 1)
        headers = {"Nats-Msg-Id": f"retry.{names.dead_stream}.{stored.sequence}.{stored.at:.6f}"}
        return names.normal, encode_headers(headers), b"%b%d%b" % (head, int(self._clock()), tail)


def _retained(stored: Stored) -> Retained:
    return dead.retained(stored)
