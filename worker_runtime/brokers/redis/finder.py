"""Looking for one message in every place of a queue.

The places are asked in the order in which a message goes through them, so that one on its way forward is met
later if not sooner. One on its way back can be missed; a second look follows a first in vain.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from worker_runtime.brokers.base import Place, Whereabouts
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.poison import decode_poison
from worker_runtime.brokers.redis.reasons import decode_reason
from worker_runtime.brokers.redis.wire import Command
from worker_runtime.envelope import Envelope, decode_envelope

_LOOKS = 2
#: Entries of one read: short enough to leave the server to others in between.
_WINDOW = 500


class Finder:
    """One search. `scan` bounds the entries looked at in each list."""

    def __init__(self, keys: QueueKeys, link: Link, pid: str, scan: int) -> None:
        self._keys = keys
        self._link = link
        self._pid = pid
        self._scan = scan
        self._scanned = 0
        self._complete = True
        self._now = 0

    async def find(self) -> Whereabouts:
        for _ in range(_LOOKS):
            self._scanned, self._complete = 0, True
            seconds, micros = await self._ask("TIME")
            self._now = int(seconds) * 1000 + int(micros) // 1000
            for look in (
                self._waiting,
                self._reserved,
                self._delayed,
                self._owned,
                self._settled,
                self._poison,
            ):
                found = await look()
                if found is not None:
                    return replace(found, takeovers=await self._takeovers())
        return self._at(Place.NOWHERE)

    async def _waiting(self) -> Whereabouts | None:
        """Staging is taken before ready."""
        before = 0
        for place, key in ((Place.STAGING, self._keys.staging), (Place.READY, self._keys.ready)):
            async for position, raw in self._from_the_right(key):
                envelope = self._ours(raw)
                if envelope is not None:
                    return self._at(place, envelope, position=before + position)
            before += await self._ask("LLEN", key)
        return None

    async def _reserved(self) -> Whereabouts | None:
        registry = await self._ask("ZRANGE", self._keys.reservations, 0, -1, "WITHSCORES")
        for name, deadline in zip(registry[::2], registry[1::2], strict=True):
            for raw in await self._ask("LRANGE", self._keys.reservation(name), 0, -1):
                envelope = self._ours(raw)
                if envelope is not None:
                    return self._at(
                        Place.RESERVED,
                        envelope,
                        reservation=_text(name),
                        deadline_in=self._until(deadline),
                    )
        return None

    async def _delayed(self) -> Whereabouts | None:
        """A member is the whole envelope; the earliest due comes first."""
        start = 0
        while start < self._scan:
            window = await self._ask("ZRANGE", self._keys.delayed, start, start + _WINDOW - 1, "WITHSCORES")
            for raw, due in zip(window[::2], window[1::2], strict=True):
                self._scanned += 1
                envelope = self._ours(raw)
                if envelope is not None:
                    found = self._at(Place.DELAYED, envelope, due_in=self._until(due))
                    # The envelope of a retry says when it is due, not when it was published.
                    return replace(found, published_ago=None)
            if len(window) < 2 * _WINDOW:
                return None
            start += _WINDOW
        self._complete = False
        return None

    async def _owned(self) -> Whereabouts | None:
        keys, pid = self._keys, self._pid
        token = await self._ask("HGET", keys.owners, pid)
        if token is not None:
            expiry = await self._ask("ZSCORE", keys.liveness, pid)
            words = _text(token).split(" ")
            return self._at(
                Place.OWNED,
                await self._record(),
                worker=words[1] if len(words) == 3 else _text(token),
                revision=words[0] if len(words) == 3 else None,
                expires_in=None if expiry is None else self._until(expiry),
            )
        if await self._ask("LPOS", keys.processing, pid) is not None:
            return self._at(Place.WITHOUT_TOKEN, await self._record())
        return None

    async def _settled(self) -> Whereabouts | None:
        for place, key in ((Place.FAILED, self._keys.failed), (Place.DEAD, self._keys.dead)):
            if await self._ask("LPOS", key, self._pid) is not None:
                record = await self._record()
                recorded = await self._ask("EXISTS", self._keys.job(self._pid))
                reason = decode_reason((await self._ask("MGET", self._keys.reason(self._pid)))[0])
                told = ": ".join(part for part in (reason.why, reason.detail) if part)
                return self._at(place, record, recorded=bool(recorded), reason=told or None)
        return None

    async def _poison(self) -> Whereabouts | None:
        """What could not be decoded has no pid that can be trusted: any entry that holds these bytes,
        though not as a part of a longer word."""
        wanted = re.compile(rb"(?<![\w.-])" + re.escape(self._pid.encode()) + rb"(?![\w.-])")
        async for _, raw in self._from_the_right(self._keys.poison):
            entry = decode_poison(raw)
            if wanted.search(entry.raw):
                return self._at(Place.POISON, reason=f"{entry.reason}: {entry.detail}")
        return None

    async def _from_the_right(self, key: str) -> AsyncIterator[tuple[int, bytes]]:
        """Entries from the end that is taken next, with their position from there."""
        start = 0
        while start < self._scan:
            window = await self._ask("LRANGE", key, -start - _WINDOW, -start - 1)
            for offset, raw in enumerate(reversed(window)):
                self._scanned += 1
                yield start + offset, raw
            if len(window) < _WINDOW:
                return
            start += _WINDOW
        self._complete = False

    def _ours(self, raw: bytes) -> Envelope | None:
        envelope = decode_envelope(raw)
        return envelope if isinstance(envelope, Envelope) and envelope.pid == self._pid else None

    async def _takeovers(self) -> int:
        count = await self._ask("HGET", self._keys.takeovers, self._pid)
        return int(count) if count is not None and count.isdigit() else 0

    async def _record(self) -> Envelope | None:
        """MGET, since a record of another type is as good as none."""
        raw = (await self._ask("MGET", self._keys.job(self._pid)))[0]
        envelope = None if raw is None else decode_envelope(raw)
        return envelope if isinstance(envelope, Envelope) else None

    def _at(self, place: Place, envelope: Envelope | None = None, **known: Any) -> Whereabouts:
        return Whereabouts(
            pid=self._pid,
            place=place,
            published_ago=None if envelope is None else self._now / 1000 - envelope.timestamp,
            attempts=None if envelope is None else envelope.attempts,
            scanned=self._scanned,
            complete=self._complete,
            **known,
        )

    def _until(self, milliseconds: bytes) -> float:
        return (float(milliseconds) - self._now) / 1000

    async def _ask(self, *command: str | int | bytes) -> Any:
        asked: Command = command
        return await self._link.call(asked, "look for a message")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
