"""Keeping deliveries alive, and giving back what dead workers left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from worker_runtime.brokers.base import Delivery, Presence, Promoted, Recovered, Timing, WorkerIdentity
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.roster import encode_record
from worker_runtime.brokers.redis.wire import ReplyError
from worker_runtime.envelope import published_at

#: Passes over full pages within one `recover`: 20,000 stranded messages come back in one call.
_PAGES = 20
#: Entries looked at per call in the slow searches for what has no liveness or no token.
_WINDOW = 200


@dataclass(frozen=True, slots=True)
class _Glance:
    """What a pass has to look for."""

    reservation_due: bool
    delivery_due: bool
    owners: bool
    processing: bool


class RedisRenewer:
    """Implements `Renewer`. Candidates are found by bounded reads and judged again inside the scripts."""

    def __init__(
        self,
        keys: QueueKeys,
        timing: Timing,
        make_link: Callable[[], Link],
        max_takeovers: int,
        identity: WorkerIdentity,
    ) -> None:
        self._keys = keys
        self._identity = identity
        self._timing = timing
        self._link = make_link()
        self._max_takeovers = max_takeovers
        self._crash_loops = 0
        self._owners_cursor = b"0"
        self._processing_offset = 0

    async def extend(self, deliveries: Collection[Delivery]) -> Collection[Delivery]:
        """See `Renewer.extend`."""
        everything = list(deliveries)
        lost: list[Delivery] = []
        for start in range(0, len(everything), transitions.MAX_ENTRIES):
            some = everything[start : start + transitions.MAX_ENTRIES]
            call = transitions.extend(
                self._keys, [(one.pid, one.receipt) for one in some], self._timing.expiry
            )
            indexes = await self._link.run(call, "renew deliveries", replay=True)
            lost += [some[index] for index in indexes]
        return lost

    async def recover(self) -> Recovered:
        """See `Renewer.recover`."""
        return await self._pass(to_the_end=False)

    async def recover_round(self) -> Recovered:
        """The same, with the slow searches of `recover`, which look at one window a call, to their end."""
        self._owners_cursor, self._processing_offset = b"0", 0
        return await self._pass(to_the_end=True)

    async def _pass(self, *, to_the_end: bool) -> Recovered:
        self._crash_loops = 0
        reservations = deliveries = 0
        glance = await self._glance()
        if glance.reservation_due:
            reservations = await self._recover_reservations()
        if glance.delivery_due:
            deliveries = await self._recover_expired()
        if glance.owners:
            deliveries += await self._recover_without_liveness()
            while to_the_end and self._owners_cursor != b"0":
                deliveries += await self._recover_without_liveness()
        if glance.processing:
            deliveries += await self._recover_without_token()
            while to_the_end and self._processing_offset:
                deliveries += await self._recover_without_token()
        else:
            self._processing_offset = 0
        return Recovered(reservations, deliveries - self._crash_loops, self._crash_loops)

    async def _glance(self) -> _Glance:
        """One request says what a pass over an idle queue need not look for: each of many idle workers makes
        such a pass. Where a read is refused everything is looked for, and meets the refusal."""
        replies = await self._link.batch(
            (
                ("TIME",),
                ("ZRANGE", self._keys.reservations, 0, 0, "WITHSCORES"),
                ("ZRANGE", self._keys.liveness, 0, 0, "WITHSCORES"),
                ("HLEN", self._keys.owners),
                ("LLEN", self._keys.processing),
            ),
            "look for what is overdue",
        )
        if any(isinstance(reply, ReplyError) for reply in replies):
            return _Glance(True, True, True, True)
        (seconds, micros), reservation, delivery, owners, processing = replies
        now = int(seconds) * 1000 + int(micros) // 1000
        return _Glance(
            bool(reservation) and float(reservation[1]) <= now,
            bool(delivery) and float(delivery[1]) <= now,
            owners > 0,
            processing > 0,
        )

    async def promote(self) -> Promoted:
        """See `Renewer.promote`."""
        moved = 0
        for _ in range(_PAGES):
            some, wait = await self._link.run(
                transitions.promote_delayed(self._keys), "promote retries", replay=True
            )
            moved += some
            if wait or not some:
                break
        return Promoted(moved, None if wait < 0 else wait / 1000)

    async def fence(self) -> str:
        """See `Renewer.fence`."""
        command = ("HMGET", self._keys.fence, self._identity.revision, "*")
        reasons = await self._link.call(command, "read its fence")
        return next((str(one, "utf-8", "replace") for one in reasons if one), "")

    async def announce(self, presence: Presence) -> None:
        """See `Renewer.announce`."""
        record = encode_record(self._identity, presence)
        call = transitions.beat(self._keys, self._identity.worker, self._timing.expiry, record)
        await self._link.run(call, "say that this worker lives", replay=True)

    async def sign_off(self) -> None:
        """See `Renewer.sign_off`."""
        call = transitions.beat(self._keys, self._identity.worker, 0, b"")
        await self._link.run(call, "leave the list of live workers", replay=True)

    async def close(self) -> None:
        await self._link.close()

    async def _now_ms(self) -> int:
        seconds, micros = await self._link.call(("TIME",), "tell the time")
        return int(seconds) * 1000 + int(micros) // 1000

    async def _recover_reservations(self) -> int:
        due = await self._link.call(
            ("ZRANGEBYSCORE", self._keys.reservations, "-inf", await self._now_ms(), "LIMIT", 0, _WINDOW),
            "list expired reservations",
        )
        recovered = 0
        # The latest deadline first: what was reserved earliest ends up at the very head of ready.
        for name in reversed(due):
            call = transitions.recover_reservation(self._keys, name)
            recovered += await self._link.run(call, "recover a reservation", replay=True) >= 0
        return recovered

    async def _recover_expired(self) -> int:
        recovered = 0
        for _ in range(_PAGES):
            pids = await self._link.call(
                (
                    "ZRANGEBYSCORE",
                    self._keys.liveness,
                    "-inf",
                    await self._now_ms(),
                    "LIMIT",
                    0,
                    transitions.MAX_ENTRIES,
                ),
                "list expired deliveries",
            )
            if not pids:
                break
            recovered += await self._take_over([(pid, None) for pid in pids])
            if len(pids) < transitions.MAX_ENTRIES:
                break
        return recovered

    async def _recover_without_liveness(self) -> int:
        """Owners whose liveness vanished count as expired. One step of a scan per call."""
        self._owners_cursor, flat = await self._link.call(
            ("HSCAN", self._keys.owners, self._owners_cursor, "COUNT", _WINDOW), "scan the owners"
        )
        pids = flat[::2]
        if not pids:
            return 0
        alive = await self._link.call(
            ("ZMSCORE", self._keys.liveness, *pids), "look at the liveness of deliveries"
        )
        return await self._take_over(
            [(pid, None) for pid, expiry in zip(pids, alive, strict=True) if expiry is None]
        )

    async def _recover_without_token(self) -> int:
        """Entries in processing that workers without tokens left, by the age of their envelope. Looks at one
        window per call, from the old end on."""
        start = -self._processing_offset - _WINDOW
        window = await self._link.call(
            ("LRANGE", self._keys.processing, start, start + _WINDOW - 1), "list the oldest work"
        )
        if not window:
            self._processing_offset = 0
            return 0
        owners = await self._link.call(("HMGET", self._keys.owners, *window), "look up owners")
        pids = [pid for pid, owner in zip(window, owners, strict=True) if owner is None]
        # What is taken away moves the rest towards the end; the entries that stay were seen.
        recovered = 0
        if pids:
            records = await self._link.call(
                ("MGET", *[self._keys.job(pid) for pid in pids]), "read records of old work"
            )
            # An entry whose record is gone has no age; nothing can come of it, so it counts as old.
            candidates = [
                (pid, 0.0 if record is None else published_at(record))
                for pid, record in zip(pids, records, strict=True)
            ]
            recovered = await self._take_over([one for one in candidates if one[1] is not None])
        self._processing_offset = (
            self._processing_offset + len(window) - recovered if len(window) == _WINDOW else 0
        )
        return recovered

    async def _take_over(self, candidates: Sequence[tuple[bytes, float | None]]) -> int:
        recovered = 0
        # The last come first, since each group goes to the very head of ready.
        starts = range(0, len(candidates), transitions.MAX_ENTRIES)
        for start in reversed(starts):
            some = candidates[start : start + transitions.MAX_ENTRIES]
            call = transitions.recover_delivery(
                self._keys, some, self._timing.legacy_age, self._max_takeovers, self._timing.job_ttl
            )
            back, dropped, dead = await self._link.run(call, "recover deliveries", replay=True)
            recovered += back + dropped + dead
            self._crash_loops += dead
        return recovered
