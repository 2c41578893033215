"""The Redis broker: one address and one namespace."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable

from worker_runtime.brokers.base import (
    MAX_TAKEOVERS,
    BrokerRefusedError,
    BrokerUsageError,
    Consumer,
    Fences,
    Inspector,
    Maintenance,
    Publisher,
    Renewer,
    Timing,
    WorkerIdentity,
)
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.address import Address
from worker_runtime.brokers.redis.consumer import RedisConsumer
from worker_runtime.brokers.redis.faults import explained
from worker_runtime.brokers.redis.fences import RedisFences
from worker_runtime.brokers.redis.inspector import RedisInspector
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.maintenance import RedisMaintenance
from worker_runtime.brokers.redis.placement import slot_of, verify_placement
from worker_runtime.brokers.redis.publisher import RedisPublisher
from worker_runtime.brokers.redis.refusals import REFUSES_WRITES, refused_writes
from worker_runtime.brokers.redis.renewer import RedisRenewer
from worker_runtime.brokers.redis.route import Route
from worker_runtime.brokers.redis.sentinel import SentinelRoute, SentinelsOfLoop
from worker_runtime.brokers.redis.wire import Command, ReplyError

#: BLMOVE came with 6.2.
OLDEST_VERSION = (6, 2)
#: Its release notes: before, several clients that wait with BLMOVE at once can crash it.
OLDEST_DRAGONFLY = (1, 21, 3)
#: The id of a reservation that nobody ever makes.
_NOBODY = "check"


class RedisBroker:
    """Implements `Broker`."""

    def __init__(self, address: Address, namespace: str, timing: Timing) -> None:
        if not namespace:
            raise BrokerUsageError("the namespace is empty; give a prefix for all keys, such as utopia-queue")
        self.display_url = address.display_url
        self._address = address
        self._namespace = namespace
        self._timing = timing
        self._sentinels = SentinelsOfLoop(address) if address.sentinel else None

    async def check(self, queue: str) -> None:
        """See `Broker.check`. Moves nothing."""
        await self.survey(queue)

    async def survey(self, queue: str) -> str:
        """The same check. A server that answers and takes no writes passes it, since what is in work can be
        finished there: then the result says why, what was read, and the way out. Empty where it takes them,
        and where nobody can tell."""
        keys = self._keys(queue)
        link = self._link(keys)
        try:
            await self._check_server(keys, link)
            refusal = await self._check_keys(keys, link)
            # Asks whether the scripts may run: the same call as a receive, for nothing.
            await link.run(transitions.reserve(keys, _NOBODY, "-", 0, 1), "run its scripts")
            return "" if refusal is None else await refused_writes(refusal, link)
        finally:
            await link.close(timeout=0.2)

    def timing(self, queue: str) -> Timing:
        """See `Broker.timing`."""
        return self._timing

    def consumer(self, queue: str, identity: WorkerIdentity, *, max_tries: int = MAX_TAKEOVERS) -> Consumer:
        """`max_tries` does not matter here: takeovers are counted where they happen."""
        _check_identity(identity)
        keys = self._keys(queue)
        return RedisConsumer(keys, identity, self._timing, self._maker(keys))

    def renewer(self, queue: str, identity: WorkerIdentity, *, max_takeovers: int = MAX_TAKEOVERS) -> Renewer:
        _check_identity(identity)
        keys = self._keys(queue)
        return RedisRenewer(keys, self._timing, self._maker(keys), max_takeovers, identity)

    def publisher(self) -> Publisher:
        return RedisPublisher(self._keys, self._timing, self._link)

    def inspector(self) -> Inspector:
        return RedisInspector(self._keys, self._link, self._place)

    def maintenance(self, *, max_takeovers: int = MAX_TAKEOVERS) -> Maintenance:
        """See `Broker.maintenance`. `max_takeovers` as in `renewer`."""
        return RedisMaintenance(self._keys, self._timing, self._link, max_takeovers)

    def fences(self) -> Fences:
        return RedisFences(self._keys, self._link, self._timing.command_timeout)

    def _keys(self, queue: str) -> QueueKeys:
        if not queue:
            raise BrokerUsageError("the queue's name is empty; give a name such as stats-usage")
        try:
            queue.encode()
        except UnicodeEncodeError:
            raise BrokerUsageError(f"the queue's name {queue!r} is not UTF-8; give it in UTF-8") from None
        keys = QueueKeys(self._namespace, queue)
        if self._address.cluster:
            verify_placement(keys)
        return keys

    def _place(self, keys: QueueKeys) -> Hashable:
        """Equal for queues that one connection can serve."""
        return slot_of(keys) if self._address.cluster else self._address.display_url

    def _link(self, keys: QueueKeys) -> Link:
        route = (
            Route(self._address, slot_of(keys))
            if self._sentinels is None
            else SentinelRoute(self._address, self._sentinels)
        )
        return Link(route, self._timing.command_timeout)

    def _maker(self, keys: QueueKeys) -> Callable[[], Link]:
        return lambda: self._link(keys)

    async def _check_server(self, keys: QueueKeys, link: Link) -> None:
        replies = await link.batch((("INFO", "server"), ("INFO", "cluster")), "describe itself")
        info = ""
        for reply in replies:
            if isinstance(reply, ReplyError):
                # A user who may not ask is let through here: the next steps meet what matters.
                if reply.code != "NOPERM":
                    raise explained(reply, link.name, "describe itself")
            else:
                info += reply.decode("utf-8", "replace")
        version = re.search(r"^redis_version:(\d+)\.(\d+)", info, re.MULTILINE)
        if version and (int(version[1]), int(version[2])) < OLDEST_VERSION:
            raise BrokerRefusedError(
                f"Redis at {link.name} is version {version[1]}.{version[2]};"
                f" at least {'.'.join(map(str, OLDEST_VERSION))} is needed (BLMOVE)"
            )
        dragonfly = re.search(r"^dragonfly_version:df-v(\d+)\.(\d+)\.(\d+)", info, re.MULTILINE)
        if dragonfly and tuple(map(int, dragonfly.groups())) < OLDEST_DRAGONFLY:
            raise BrokerRefusedError(
                f"Dragonfly at {link.name} is version {'.'.join(dragonfly.groups())}; at least"
                f" {'.'.join(map(str, OLDEST_DRAGONFLY))} is needed (older ones can crash on BLMOVE)"
            )
        # Valkey says server_mode.
        if re.search(r"^(?:redis|server)_mode:sentinel", info, re.MULTILINE):
            raise BrokerRefusedError(
                f"{link.name} is a Sentinel and holds no queues; use a redis+sentinel:// URL"
                " with the name of the primary that it watches"
            )
        if not self._address.cluster and re.search(r"^cluster_enabled:1", info, re.MULTILINE):
            verify_placement(keys)

    async def _check_keys(self, keys: QueueKeys, link: Link) -> ReplyError | None:
        """Returns how it refused a write."""
        expected = keys.expected_types()
        asked: list[Command] = [("TYPE", key) for key in expected]
        # A write, as the server sees it, that changes members only, and of a key that nobody has. It does not
        # wait: a server looks at the end of a short wait ten times a second, which a thousand looks feel.
        empty = keys.reservation(_NOBODY)
        asked.append(("ZADD", empty, "XX", "0", _NOBODY))
        *types, written = await link.batch(asked, "tell the types of its keys")
        for (key, wanted), held in zip(expected.items(), types, strict=True):
            if isinstance(held, ReplyError):
                raise explained(held, link.name, f"read the key {key}")
            name = held.decode()
            if name not in {"none", wanted}:
                raise BrokerRefusedError(
                    f"Redis at {link.name}: the key {key} holds a {name} where a {wanted} belongs;"
                    " rename or delete that key, or use another namespace"
                )
        counters = keys.counters()
        values = await link.batch([("GET", key) for key in counters], "read its counters")
        for key, value in zip(counters, values, strict=True):
            if isinstance(value, ReplyError):
                raise explained(value, link.name, f"read the key {key}")
            if value is not None and not re.fullmatch(rb"-?\d{1,18}", value):
                raise BrokerRefusedError(
                    f"Redis at {link.name}: the key {key} holds {value[:40]!r} where a whole number belongs;"
                    " set it to a whole number or delete it"
                )
        return written if isinstance(written, ReplyError) and written.code in REFUSES_WRITES else None


def _check_identity(identity: WorkerIdentity) -> None:
    for name, word in (("revision", identity.revision), ("worker", identity.worker)):
        if not word or any(character.isspace() for character in word):
            raise BrokerUsageError(f"the {name} {word!r} of this worker must be one word without spaces")
