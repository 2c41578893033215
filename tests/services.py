"""Real servers for all suites, on free ports of 127.0.0.1. They die with the process that started them."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, Self

import redis

from worker_runtime.brokers.nats.server import EmbeddedNats
from worker_runtime.brokers.redis.server import EmbeddedRedis

_SLOTS = 16384
__all__ = ["EmbeddedNats", "EmbeddedRedis", "RedisCluster", "free_port"]

#: A cluster node talks to its peers on this much above its port; every version can do that.
_BUS = 10_000

#: Below those that the kernel gives to whoever asks for any port, with the bus of a cluster node, too: nobody
#: gets one of them between its choice and its use. Runs beside each other begin at different ones.
_PORTS = range(11_000, 21_000)
_FIRST = os.getpid() * 97 % len(_PORTS)
_next_ports: Iterator[int] = itertools.cycle([*_PORTS[_FIRST:], *_PORTS[:_FIRST]])


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on, and that nobody else in this run is given."""
    for port in itertools.islice(_next_ports, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise OSError("no port of the tests is free")


def cluster_node(node_timeout: int = 5000, *more: str) -> EmbeddedRedis:
    """Not started. Its port leaves room for the bus, and both were free a moment ago. `node_timeout` in
    milliseconds: after as much silence a node counts as failed."""
    while True:
        port = free_port()
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + _BUS))
            except OSError:
                continue
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout))
        return EmbeddedRedis(port=port, args=(*options, *more))


class RedisCluster:
    """A Redis Cluster of primaries without replicas, ready when the context is entered."""

    def __init__(
        self, primaries: int = 3, *, ready_timeout: float = 60.0, options: tuple[Any, ...] = ()
    ) -> None:
        """`options` as those of `cluster_node`."""
        self._primaries = primaries
        self._options = options
        self._ready_timeout = ready_timeout
        self._stack = contextlib.ExitStack()
        self.nodes: list[EmbeddedRedis] = []

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> Self:
        with contextlib.ExitStack() as stack:
            for _ in range(self._primaries):
                self.nodes.append(stack.enter_context(cluster_node(*self._options)))
            clients = [stack.enter_context(redis.Redis(port=node.port)) for node in self.nodes]
            share = _SLOTS // self._primaries
            for index, client in enumerate(clients):
                last = _SLOTS if index == self._primaries - 1 else (index + 1) * share
                client.execute_command("CLUSTER", "ADDSLOTS", *range(index * share, last))
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            for node in self.nodes[1:]:
                clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
            deadline = time.monotonic() + self._ready_timeout
            while not all(self._sees_all(client) for client in clients):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the cluster did not form within {self._ready_timeout:g} s")
                time.sleep(0.05)
            self._stack = stack.pop_all()
        return self

    def _sees_all(self, client: Any) -> bool:
        lines = client.execute_command("CLUSTER", "INFO").decode().splitlines()
        return {"cluster_state:ok", f"cluster_known_nodes:{self._primaries}"} <= set(lines)

    def stop(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
