"""Reading one queue, whole and at one moment, for people and for the operator's guards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

from worker_runtime.brokers.base import (
    BrokerRefusedError,
    LedgerRow,
    QueueReading,
    ReservationReading,
    Role,
    Whereabouts,
)
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.faults import explained
from worker_runtime.brokers.redis.finder import Finder
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.links import QueueLinks
from worker_runtime.brokers.redis.roster import read_roster
from worker_runtime.brokers.redis.wire import Command, ReplyError
from worker_runtime.envelope import published_at

#: How often the read is repeated when reservations come and go between its two steps.
_TRIES = 5
_LEDGER_WORDS = ("claimed", "committed", "rejected", "released", "taken_over", "poisoned")


#: What is asked of the server itself, where the user of the URL may.
_ROLE: Command = ("ROLE",)
_CPU: Command = ("INFO", "CPU")
_OF_THE_SERVER: tuple[Command, ...] = (_ROLE, _CPU)


class _DeniedError(Exception):
    """The user of the URL may read the queue but may not send that command."""

    def __init__(self, command: Command) -> None:
        super().__init__(command)
        self.command = command


class RedisInspector:
    """Implements `Inspector`. Reads in one MULTI, so that a message on its way is counted once."""

    def __init__(
        self,
        keys_of: Callable[[str], QueueKeys],
        make_link: Callable[[QueueKeys], Link],
        place_of: Callable[[QueueKeys], Hashable],
    ) -> None:
        self._may_ask = _OF_THE_SERVER
        self._links = QueueLinks(keys_of, make_link, place_of)

    async def read(self, queue: str) -> QueueReading:
        """Read everything about one queue. Bytes that are not text are shown with escapes."""
        keys, link = self._links.of(queue)
        commands: list[Command] = [
            ("TIME",),
            ("LLEN", keys.ready),
            ("LINDEX", keys.ready, -1),
            ("LLEN", keys.staging),
            ("ZRANGE", keys.reservations, 0, -1, "WITHSCORES"),
            ("HVALS", keys.owners),
            ("LLEN", keys.processing),
            ("ZCARD", keys.delayed),
            ("LLEN", keys.failed),
            ("LLEN", keys.dead),
            ("LLEN", keys.poison),
            ("GET", keys.total),
            ("GET", keys.success),
            ("HGETALL", keys.fence),
            ("HGETALL", keys.ledger),
            ("ZRANGE", keys.workers, 0, -1, "WITHSCORES"),
            ("HGETALL", keys.roster),
            ("ZRANGE", keys.delayed, 0, 0, "WITHSCORES"),
            ("GET", keys.failed_count),
        ]
        # Held: another read that goes on at the same time may learn that something is denied.
        of_server, fixed = self._may_ask, len(commands)
        commands += of_server
        sizes: dict[bytes, int] = {}
        for _ in range(_TRIES):
            names = list(sizes)
            lengths: list[Command] = [("LLEN", keys.reservation(name)) for name in names]
            try:
                replies = await self._transaction(link, [*commands, *lengths], of_server)
            except _DeniedError as denied:
                self._may_ask = tuple(one for one in self._may_ask if one != denied.command)
                return await self.read(queue)
            registry = replies[4][::2]
            sizes = dict(zip(names, replies[len(commands) :], strict=True))
            if all(name in sizes for name in registry):
                break
            sizes = dict.fromkeys(registry, 0) | {n: sizes[n] for n in registry if n in sizes}
        said = dict(zip(of_server, replies[fixed : len(commands)], strict=True))
        return self._reading(queue, keys, link, replies, sizes, said)

    async def find(self, queue: str, pid: str, scan: int = 10_000) -> Whereabouts:
        """See `Inspector.find`."""
        keys, link = self._links.of(queue)
        return await Finder(keys, link, pid, scan).find()

    async def close(self) -> None:
        await self._links.close()

    async def _transaction(
        self, link: Link, commands: Sequence[Command], of_server: Sequence[Command]
    ) -> list[Any]:
        try:
            results = await link.transaction(commands, "read the queue")
        except ReplyError as error:
            if error.code == "OOM":
                return await self._on_a_full_server(link, commands, of_server)
            for asked in of_server:
                if error.code == "NOPERM" and f"'{asked[0]!s}'".lower() in str(error).lower():
                    raise _DeniedError(asked) from None
            raise explained(error, link.name, "read the queue") from None
        for command, result in zip(commands, results, strict=True):
            if isinstance(result, ReplyError):
                refused = explained(result, link.name, f"read the key {command[1]!s}")
                raise refused
        return results

    async def _on_a_full_server(
        self, link: Link, commands: Sequence[Command], apart: Sequence[Command]
    ) -> list[Any]:
        """It takes no MULTI, but a script that only reads. The server itself is not asked in a script."""
        inside = [cast(Sequence[str], command) for command in commands if command not in apart]
        asked: list[Command] = [transitions.read(inside).by_source(), *apart]
        results, *answers = await link.batch(asked, "read the queue")
        for command, answer in zip(apart, answers, strict=True):
            if isinstance(answer, ReplyError) and answer.code == "NOPERM":
                raise _DeniedError(command)
        for one in (results, *answers):
            if isinstance(one, ReplyError):
                raise explained(one, link.name, "read the queue")
        left, said = iter(results), dict(zip(apart, answers, strict=True))
        return [said[command] if command in said else next(left) for command in commands]

    def _reading(
        self,
        queue: str,
        keys: QueueKeys,
        link: Link,
        replies: Sequence[Any],
        sizes: Mapping[bytes, int],
        said: Mapping[Command, Any],
    ) -> QueueReading:
        now = int(replies[0][0]) * 1000 + int(replies[0][1]) // 1000
        names, deadlines = replies[4][::2], replies[4][1::2]
        reservations = [
            ReservationReading(_shown(name), (float(deadline) - now) / 1000, sizes.get(name, 0))
            for name, deadline in zip(names, deadlines, strict=True)
        ]
        published = published_at(replies[2])
        return QueueReading(
            queue=queue,
            ready=replies[1],
            oldest_ready_age=None if published is None else max(0.0, now / 1000 - published),
            staging=replies[3],
            # One that appeared during the read holds at least one message.
            reserved=sum(sizes.get(name) or 1 for name in names),
            owned=len(replies[5]),
            processing=replies[6],
            delayed=replies[7],
            failed=replies[8],
            dead=replies[9],
            poison=replies[10],
            total=_counter(keys.total, replies[11], link),
            success=_counter(keys.success, replies[12], link),
            failures=_counter(keys.failed_count, replies[18], link),
            reservations=reservations,
            owners=dict(Counter(_holder_of(token)[1] for token in replies[5])),
            fences=_pairs(replies[13]),
            ledger=_ledger(keys.ledger, _pairs(replies[14]), link),
            owned_by=_owned_by(replies[5]),
            workers=read_roster(
                replies[15], dict(zip(replies[16][::2], replies[16][1::2], strict=True)), now
            ),
            next_delayed_in=(float(replies[17][1]) - now) / 1000 if replies[17] else None,
            role=_role(said[_ROLE]) if _ROLE in said else Role.UNKNOWN,
            server=link.name,
            cpu_seconds=_cpu_seconds(said.get(_CPU, b"")),
        )


def _cpu_seconds(info: bytes) -> float | None:
    """Of the server and of the processes that it has waited for, such as one that saved; None where INFO does
    not say it."""
    found = re.findall(rb"^used_cpu_(?:sys|user)(?:_children)?:([0-9.]+)", info, re.MULTILINE)
    return sum(map(float, found)) if found else None


def _role(reply: Sequence[Any]) -> Role:
    return Role.PRIMARY if reply[0] == b"master" else Role.REPLICA


def _shown(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    return {_shown(name): _shown(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _counter(key: str, value: bytes | None, link: Link) -> int:
    try:
        return int(value or 0)
    except ValueError:
        raise BrokerRefusedError(
            f"Redis at {link.name}: the key {key} holds {value!r} where a whole number belongs;"
            " set it to a whole number or delete it"
        ) from None


def _holder_of(token: bytes) -> tuple[str, str]:
    """Revision and worker of `<revision> <worker> <reservation>`."""
    words = token.split(b" ")
    return _shown(words[0]), _shown(words[1] if len(words) == 3 else token)


def _owned_by(tokens: Sequence[bytes]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (revision, worker), count in Counter(map(_holder_of, tokens)).items():
        found.setdefault(revision, {})[worker] = count
    return found


def _ledger(key: str, fields: Mapping[str, str], link: Link) -> dict[str, LedgerRow]:
    rows: dict[str, dict[str, int]] = {}
    for name, value in fields.items():
        revision, _, word = name.rpartition(":")
        if word in _LEDGER_WORDS:
            rows.setdefault(revision, {})[word] = _counter(f"{key} ({name})", value.encode(), link)
    return {revision: LedgerRow(**row) for revision, row in sorted(rows.items())}
