"""Sweeps over what no worker handles any more, one bounded transition at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from worker_runtime.brokers.base import OnSwept, Recovered, Retained, Swept, Timing, WorkerIdentity
from worker_runtime.brokers.judging import Counts, Judge, Sweeps
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.links import QueueLinks
from worker_runtime.brokers.redis.reasons import decode_reason, encode_reason
from worker_runtime.brokers.redis.renewer import RedisRenewer
from worker_runtime.brokers.redis.transitions import Candidate
from worker_runtime.envelope import Envelope, decode_envelope, retry_envelope

#: Entries looked at in one step.
_WINDOW = 200
#: Bytes of records read and sent in one step at most, unless a single one is larger.
_LARGEST_STEP = 8 * 1024 * 1024
#: A sweep receives nothing and is on no list of workers.
_NOBODY = WorkerIdentity("-", "maintenance")


class RedisMaintenance(Sweeps):
    """Implements `Maintenance`."""

    def __init__(
        self,
        keys_of: Callable[[str], QueueKeys],
        timing: Timing,
        make_link: Callable[[QueueKeys], Link],
        max_takeovers: int,
    ) -> None:
        self._timing = timing
        self._make_link = make_link
        self._max_takeovers = max_takeovers
        self._links = QueueLinks(keys_of, make_link)

    async def recover(self, queue: str, on_step: Callable[[Recovered], None] = lambda _: None) -> Recovered:
        """See `Maintenance.recover`."""
        keys, _ = self._links.of(queue)
        total = Recovered()
        renewer = RedisRenewer(
            keys, self._timing, lambda: self._make_link(keys), self._max_takeovers, _NOBODY
        )
        try:
            while True:
                one = await renewer.recover_round()
                total = Recovered(
                    total.reservations + one.reservations,
                    total.deliveries + one.deliveries,
                    total.crash_loops + one.crash_loops,
                )
                on_step(total)
                if one == Recovered():
                    return total
        finally:
            await renewer.close()

    async def promote(self, queue: str, *, everything: bool = False) -> int:
        """See `Maintenance.promote`."""
        keys, link = self._links.of(queue)
        moved: int = 0
        while True:
            some, wait = await link.run(
                transitions.promote_delayed(keys, everything=everything), "promote retries", replay=True
            )
            moved += some
            if wait or not some:
                return moved

    async def unstage(self, queue: str) -> int:
        """See `Maintenance.unstage`."""
        keys, link = self._links.of(queue)
        moved = 0
        while some := await link.run(transitions.unstage(keys), "return staged work", replay=True):
            moved += some
        return moved

    async def retained(self, queue: str, *, limit: int = 100, dead: bool = True) -> Sequence[Retained]:
        """See `Maintenance.retained`."""
        keys, link = self._links.of(queue)
        place = keys.dead if dead else keys.failed
        pids: list[bytes] = await link.call(("LRANGE", place, 0, limit - 1), "list messages")
        found: list[Retained] = []
        for start in range(0, len(pids), _WINDOW):
            some = pids[start : start + _WINDOW]
            records = await link.call(("MGET", *[keys.job(pid) for pid in some]), "read records")
            reasons = await link.call(("MGET", *[keys.reason(pid) for pid in some]), "read reasons")
            times = await link.batch([("PTTL", keys.job(pid)) for pid in some], "read how long records stay")
            found += [_retained(*each) for each in zip(some, records, reasons, times, strict=True)]
        return found

    async def close(self) -> None:
        """Close the connections."""
        await self._links.close()

    async def _sweep(
        self, queue: str, judge: Judge, limit: int | None, of_dead: bool, on_step: OnSwept
    ) -> Swept:
        """Walk from the oldest entry on, over as many as there are at the start: what comes in meanwhile,
        also what was retried and failed again, is not looked at."""
        keys, link = self._links.of(queue)
        place = keys.dead if of_dead else keys.failed
        left = await link.call(("LLEN", place), "count messages")
        counts = Counts()
        offset = 0
        while left > 0 and (limit is None or counts.retried + counts.parked < limit):
            size = min(left, _WINDOW)
            window = await link.call(
                ("LRANGE", place, -offset - size, -offset - 1), "list the oldest messages"
            )
            window.reverse()
            window, records = await self._records(keys, link, window)
            if not window:
                break
            # Placed before it is asked for: who is there for the first time is not older than this.
            seconds, micros = await link.call(("TIME",), "tell the time")
            now = int(seconds) + int(micros) / 1_000_000
            room = None if limit is None else limit - counts.retried - counts.parked
            chosen = self._choose(keys, judge, window, records, offset, now, room, counts)
            moved = 0
            if chosen:
                call = transitions.sweep(keys, chosen, self._timing.job_ttl, of_dead=of_dead)
                verdicts = (await link.run(call, "move messages", replay=True)).decode()
                counts.retried += verdicts.count("q")
                counts.parked += verdicts.count("p")
                counts.dropped += verdicts.count("g")
                moved = len(verdicts) - verdicts.count("x")
            if moved == len(chosen):
                left -= len(window)
                offset += len(window) - moved
            else:
                # Somebody else takes from the list: the places are not what they were, so begin anew.
                left += offset - moved
                offset = counts.kept = counts.unreadable = 0
            on_step(counts.frozen())
        return counts.frozen()

    async def _records(
        self, keys: QueueKeys, link: Link, window: list[bytes]
    ) -> tuple[list[bytes], list[bytes | None]]:
        """The records of as many entries as may be held at once."""
        sizes = await link.batch([("STRLEN", keys.job(pid)) for pid in window], "measure records")
        total = count = 0
        for size in sizes:
            total += size if isinstance(size, int) else 0
            if count and total > _LARGEST_STEP:
                break
            count += 1
        window = window[:count]
        if not window:
            return [], []
        return window, await link.call(("MGET", *[keys.job(pid) for pid in window]), "read records")

    def _choose(
        self,
        keys: QueueKeys,
        judge: Judge,
        window: Sequence[bytes],
        records: Sequence[bytes | None],
        offset: int,
        now: float,
        room: int | None,
        counts: Counts,
    ) -> list[Candidate]:
        chosen: list[Candidate] = []
        moves = 0
        for index, (pid, record) in enumerate(zip(window, records, strict=True)):
            if record is None:
                chosen.append(Candidate("g", pid, offset + index, ""))
                continue
            envelope: Any = decode_envelope(record)
            if not isinstance(envelope, Envelope):
                counts.unreadable += 1
                counts.kept += 1
                continue
            letter, detail = judge(envelope.attempts, now - envelope.timestamp)
            if not letter or (room is not None and moves >= room):
                counts.kept += 1
                continue
            moves += 1
            if letter == "q":
                one, other = retry_envelope(keys.queue, bytes(envelope.payload), envelope.attempts + 1)
            else:
                one, other = encode_reason("parked", detail), b""
            chosen.append(
                Candidate(letter, pid, offset + index, hashlib.sha1(record).hexdigest(), one, other)
            )
        return chosen


def _retained(pid: bytes, record: bytes | None, raw_reason: bytes | None, left: Any) -> Retained:
    reason = decode_reason(raw_reason)
    envelope: Any = None if record is None else decode_envelope(record)
    readable = isinstance(envelope, Envelope)
    return Retained(
        pid.decode("utf-8", "backslashreplace"),
        envelope.timestamp if readable else None,
        envelope.attempts if readable else None,
        bytes(envelope.payload) if readable else None,
        reason.why,
        reason.detail,
        reason.at / 1000 if reason.at else None,
        record is not None,
        left / 1000 if isinstance(left, int) and left >= 0 else None,
    )
