"""A Redis Cluster of three primaries with a replica each, and what can befall it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import redis

from tests.services import EmbeddedRedis, RedisCluster, cluster_node
from worker_runtime.brokers.base import BrokerUnavailableError

#: Milliseconds of silence after which a primary is given up: short, but a busy machine is no failure.
NODE_TIMEOUT = 1500
#: Seconds after which a node that was elected may stand again. Until then Redis counts the votes of its last
#: election once more, promotes it under an old epoch, and takes that back.
_TERM = 4 * NODE_TIMEOUT / 1000
#: Seconds after which a failover by hand that has not happened is asked for again.
_GIVEN_UP = 3.0
_OPTIONS = (
    NODE_TIMEOUT,
    *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
    *("--repl-ping-replica-period", "1", "--cluster-replica-validity-factor", "0"),
)
#: An upper bound for everything that the servers do among themselves, in seconds.
_PATIENCE = 60.0


class ReplicatedCluster(RedisCluster):
    """`nodes` are all six; who is a primary changes. After harm `repair` makes it whole again."""

    def __init__(self) -> None:
        super().__init__(3, options=_OPTIONS)
        self._elected: dict[int, float] = {}

    def start(self) -> Self:
        super().start()
        primaries = list(self.nodes)
        try:
            for _ in primaries:
                node = self._stack.enter_context(cluster_node(*_OPTIONS))
                self.nodes.append(node)
                self.ask(node, "CLUSTER", "MEET", "127.0.0.1", primaries[0].port)
            for primary, replica in zip(primaries, self.nodes[3:], strict=True):
                name = self.ask(primary, "CLUSTER", "MYID")
                _wait(partial(self._replicates, replica, name), "a replica that knows its primary")
            self._wait_until_whole()
        except BaseException:
            self.stop()
            raise
        return self

    def ask(self, node: EmbeddedRedis, *command: Any, timeout: float = 5.0) -> Any:
        """The reply of one node to one command. Raises what redis-py raises."""
        with redis.Redis(port=node.port, socket_timeout=timeout, decode_responses=True) as client:
            return client.execute_command(*command)

    def slot(self, key: str) -> int:
        return int(self.ask(self._alive()[0], "CLUSTER", "KEYSLOT", key))

    def primary(self, key: str) -> EmbeddedRedis:
        """Who says that it owns the slot of this key."""
        found: EmbeddedRedis = _wait(lambda: self._primary(key), f"an owner for {key}")
        return found

    def replica(self, key: str) -> EmbeddedRedis:
        """The replica of the owner, once it has all that the owner has."""
        primary = self.primary(key)

        def attached() -> EmbeddedRedis | None:
            link = self.ask(primary, "INFO", "replication").get("slave0", {})
            return self._by_port(int(link["port"])) if link.get("state") == "online" else None

        found: EmbeddedRedis = _wait(attached, f"a replica for {key}")
        return found

    def other_primary(self, key: str) -> EmbeddedRedis:
        """One that owns other slots."""
        mine = self.primary(key)
        return next(node for node in self._alive() if node is not mine and self._is_primary(node))

    def replicated(self, key: str) -> None:
        """Wait until the replica has everything that was written before this call."""
        with redis.Redis(port=self.primary(key).port) as client:
            # WAIT counts from this client's own last write.
            client.execute_command("SETEX", f"{{{_tag(key)}}}:mark", 60, "1")
            assert client.wait(1, int(_PATIENCE * 1000)) >= 1

    def fail_over(self, key: str, *how: str) -> EmbeddedRedis:
        """Promote the replica (`how` may be TAKEOVER) and wait until it serves and the old primary knows it
        too; the new primary."""
        old = self.primary(key)
        new = self.replica(key)
        if not how:
            self._stand(new)
        self.promote(new, key, *how)
        _wait(lambda: not self._is_primary(old), "the old primary's demotion")
        return new

    def _agreed(self, owner: EmbeddedRedis, key: str) -> bool:
        """It serves, and every node that can be asked names it."""
        if not self._serves(owner, key):
            return False
        slot = self.slot(key)
        maps = [self.ask(node, "CLUSTER", "SLOTS") for node in self._alive()]
        return all(
            any(first <= slot <= last and port == owner.port for first, last, (_, port, *_), *_ in one)
            for one in maps
        )

    def promote(self, replica: EmbeddedRedis, key: str, *how: str) -> EmbeddedRedis:
        asked = 0.0

        def promoted() -> bool:
            nonlocal asked
            if self._agreed(replica, key):
                return True
            # The others may refuse their vote for a while; the server then gives up in silence.
            if time.monotonic() - asked > _GIVEN_UP:
                asked = time.monotonic()
                with contextlib.suppress(redis.ResponseError):
                    self.ask(replica, "CLUSTER", "FAILOVER", *how)
            return False

        _wait(promoted, "the replica's promotion")
        if not how:
            self.elected(replica)
        return replica

    def wait_for_promotion(self, replica: EmbeddedRedis, key: str) -> None:
        """Of its own accord, when the others have given the primary up."""
        _wait(lambda: self._agreed(replica, key), "the replica's promotion")
        self.elected(replica)

    def elected(self, replica: EmbeddedRedis) -> None:
        """The others have just voted for it."""
        self._elected[replica.port] = time.monotonic()

    def _stand(self, replica: EmbeddedRedis) -> None:
        """Wait until it may be elected."""
        time.sleep(max(0.0, self._elected.get(replica.port, 0.0) + _TERM - time.monotonic()))

    @contextlib.contextmanager
    def guest(self) -> Iterator[EmbeddedRedis]:
        """A seventh node, a primary without slots. At the end it is gone, and has to own nothing."""
        with cluster_node(*_OPTIONS) as node:
            self.ask(node, "CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
            everybody = [*self.nodes, node]
            _wait(lambda: all(self._knows(one, len(everybody)) for one in everybody), "the seventh node")
            try:
                yield node
            finally:
                name = self.ask(node, "CLUSTER", "MYID")
                for one in self.nodes:
                    self.ask(one, "CLUSTER", "FORGET", name)

    def _knows(self, node: EmbeddedRedis, count: int) -> bool:
        info = self.ask(node, "CLUSTER", "INFO").split()
        return {"cluster_state:ok", f"cluster_known_nodes:{count}"} <= set(info)

    def open_move(
        self, key: str, target: EmbeddedRedis | None = None, source: EmbeddedRedis | None = None
    ) -> Move:
        """Begin to move the slot of this key to another primary; by default from its owner to any."""
        source = source or self.primary(key)
        target = target or self.other_primary(key)
        slot = self.slot(key)
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.ask(source, "CLUSTER", "MYID"))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.ask(target, "CLUSTER", "MYID"))
        return Move(self, slot, source, target)

    @contextlib.contextmanager
    def stopped(self, key: str) -> Iterator[EmbeddedRedis]:
        """SIGSTOP for the primary of this key: its sockets stay open and nobody answers. Gives its replica,
        which the others will promote."""
        primary, replica = self.primary(key), self.replica(key)
        self._stand(replica)
        os.kill(primary.pid, signal.SIGSTOP)
        try:
            yield replica
        finally:
            os.kill(primary.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def minority(self, key: str) -> Iterator[None]:
        """The two other primaries are silent, so that nobody is elected and the owner of the key gives up."""
        owner = self.primary(key)
        others = [node for node in self._alive() if node is not owner and self._is_primary(node)]
        for node in others:
            os.kill(node.pid, signal.SIGSTOP)
        try:
            _wait(lambda: "cluster_state:fail" in self.ask(owner, "CLUSTER", "INFO"), "CLUSTERDOWN")
            yield
        finally:
            for node in others:
                os.kill(node.pid, signal.SIGCONT)

    def repair(self) -> None:
        """Start again what was killed, wake what sleeps, and wait until every primary has its replica."""
        for node in self.nodes:
            if _runs(node):
                os.kill(node.pid, signal.SIGCONT)
            else:
                node.restart()
        self._wait_until_whole()

    def _wait_until_whole(self) -> None:
        try:
            _wait(self._whole, "a whole cluster")
        except AssertionError as error:
            views = [f"{node.port}: {self.ask(node, 'CLUSTER', 'NODES')}" for node in self.nodes]
            raise AssertionError("\n".join([str(error), *map(str, views)])) from None

    def _whole(self) -> bool:
        owners = 0
        for node in self.nodes:
            info = dict(line.split(":", 1) for line in self.ask(node, "CLUSTER", "INFO").split())
            replication = self.ask(node, "INFO", "replication")
            if info["cluster_state"] != "ok" or info["cluster_known_nodes"] != str(len(self.nodes)):
                return False
            if replication["role"] == "master":
                owners += 1
                if replication.get("slave0", {}).get("state") != "online":
                    return False
            elif replication["master_link_status"] != "up":
                return False
            # A replica is on the map when something was replicated to it, which takes a first ping.
            if any(len(servers) < 2 for _, _, *servers in self.ask(node, "CLUSTER", "SLOTS")):
                return False
        return owners == 3

    def _replicates(self, replica: EmbeddedRedis, name: str) -> bool:
        try:
            self.ask(replica, "CLUSTER", "REPLICATE", name)
        except redis.ResponseError:
            return False  # It has not heard of that node yet.
        return True

    def _alive(self) -> list[EmbeddedRedis]:
        return [node for node in self.nodes if _runs(node) and not _sleeps(node.pid)]

    def _is_primary(self, node: EmbeddedRedis) -> bool:
        return bool(self.ask(node, "ROLE")[0] == "master")

    def _primary(self, key: str) -> EmbeddedRedis | None:
        return next((node for node in self._alive() if self._serves(node, key)), None)

    def _serves(self, node: EmbeddedRedis, key: str) -> bool:
        try:
            self.ask(node, "SETEX", f"{{{_tag(key)}}}:mark", 60, "1")
        except (redis.RedisError, OSError):
            return False
        return True

    def _by_port(self, port: int) -> EmbeddedRedis:
        return next(node for node in self.nodes if node.port == port)


class Move:
    """A slot on its way from one primary to another."""

    def __init__(
        self, cluster: ReplicatedCluster, slot: int, source: EmbeddedRedis, target: EmbeddedRedis
    ) -> None:
        self.source, self.target = source, target
        self._cluster, self._slot = cluster, slot

    def keys(self) -> list[str]:
        """Those that have not moved."""
        found: list[str] = self._cluster.ask(self.source, "CLUSTER", "GETKEYSINSLOT", self._slot, 10_000)
        return found

    def take(self, *keys: str) -> None:
        """Move these keys."""
        where = ("127.0.0.1", self.target.port, "", 0, int(_PATIENCE * 1000))
        self._cluster.ask(self.source, "MIGRATE", *where, "KEYS", *keys, timeout=_PATIENCE)

    def finish(self) -> None:
        """Move what is left and give the slot away. New keys may come meanwhile: only those of a client that
        was not sent on."""
        while keys := self.keys():
            self.take(*keys)
        name = self._cluster.ask(self.target, "CLUSTER", "MYID")
        self._cluster.ask(self.target, "CLUSTER", "SETSLOT", self._slot, "NODE", name)
        # Who has lost its last slot, and has heard of it, is a replica by now.
        with contextlib.suppress(redis.ResponseError):
            self._cluster.ask(self.source, "CLUSTER", "SETSLOT", self._slot, "NODE", name)


def _tag(key: str) -> str:
    return key.partition("{")[2].partition("}")[0]


def _runs(node: EmbeddedRedis) -> bool:
    try:
        return node.pid > 0
    except BrokerUnavailableError:
        return False


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _wait(happened: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
            if value := happened():
                return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {_PATIENCE:.0f} s")
        time.sleep(0.02)
