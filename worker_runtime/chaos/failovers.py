"""Asking a Redis Cluster to replace the primary of the run, by the cluster's own means: nothing is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from worker_runtime.brokers.base import BrokerRefusedError, BrokerUnavailableError
from worker_runtime.brokers.redis.address import Node, parse_address
from worker_runtime.brokers.redis.faults import explained
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.placement import slot_of
from worker_runtime.brokers.redis.route import open_wire
from worker_runtime.brokers.redis.wire import LostReplyError, ReplyError

#: Seconds for one command, and for the promotion that one asks for.
_COMMAND = 5.0
_PROMOTION = 10.0
#: Seconds, where the server does not tell: the default of Redis.
_NODE_TIMEOUT = 15.0


class Failovers:
    """Raises BrokerUnavailableError, and BrokerRefusedError for what will not work later either."""

    def __init__(self, url: str, namespace: str, queue: str) -> None:
        self._address = parse_address(url)
        self._slot = slot_of(QueueKeys(namespace, queue))

    async def interval(self) -> float:
        """Seconds to leave between two: Redis 7.0 promotes a node that was elected less than four times
        cluster-node-timeout ago by its old votes, takes that back, and loses what was written between."""
        if not self._address.cluster:
            raise BrokerRefusedError(
                f"{self._address.display_url} is no Redis Cluster; only a cluster (redis+cluster://) can be"
                " asked for a failover that loses nothing, so leave --server-faults out"
            )
        primary, replicas = await self._shard()
        if not replicas:
            raise BrokerRefusedError(
                f"Redis at {primary} owns the slot of the run and has no replica that could take its place;"
                " add one, or leave --server-faults out"
            )
        try:
            reply = await self._ask(primary, "CONFIG", "GET", "cluster-node-timeout")
            timeout = int(reply[1]) / 1000
        except (BrokerRefusedError, IndexError, ValueError):
            timeout = _NODE_TIMEOUT
        return 4 * max(timeout, 1.0) + 0.5

    async def fail_over(self) -> bool:
        """Ask for one and wait for it. False when the cluster did not do it."""
        primary, replicas = await self._shard()
        for replica in replicas:
            try:
                await self._ask(replica, "CLUSTER", "FAILOVER")
            except (BrokerRefusedError, BrokerUnavailableError):
                continue  # It is away, or has lost its primary: another one may not.
            try:
                async with asyncio.timeout(_PROMOTION):
                    while (await self._shard())[0] == primary:  # noqa: ASYNC110 - nobody tells us
                        await asyncio.sleep(0.05)
            except TimeoutError:
                return False
            return True
        return False

    async def _shard(self) -> tuple[Node, Sequence[Node]]:
        """Primary and replicas of the slot, by the first node that answers."""
        fault: Exception | None = None
        for node in self._address.nodes:
            try:
                ranges = await self._ask(node, "CLUSTER", "SLOTS")
            except BrokerUnavailableError as error:
                fault = error
                continue
            for first, last, *servers in ranges:
                if first <= self._slot <= last:
                    primary, *replicas = [
                        Node(host.decode() if host else node.host, int(port)) for host, port, *_ in servers
                    ]
                    return primary, replicas
        raise BrokerUnavailableError(
            f"no node of {self._address.display_url} names an owner of slot {self._slot}: {fault or 'none'}"
        )

    async def _ask(self, node: Node, *command: str) -> Any:
        wire = await open_wire(self._address, node, _COMMAND)
        try:
            return await wire.call(command, _COMMAND)
        except ReplyError as error:
            raise explained(error, str(node), f"run {' '.join(command)}") from None
        except LostReplyError as error:
            raise BrokerUnavailableError(str(error)) from None
        finally:
            wire.abort("it was asked")
