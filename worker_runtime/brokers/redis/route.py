"""Which server holds the keys of a queue: the one in the URL, or the owner of a slot of a Redis Cluster."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from worker_runtime.brokers.base import BrokerUnavailableError
from worker_runtime.brokers.redis.address import Address, Node
from worker_runtime.brokers.redis.faults import explained
from worker_runtime.brokers.redis.wire import Command, LostReplyError, NotSentError, ReplyError, Wire


async def open_wire(address: Address, node: Node, timeout: float) -> Wire:
    """Connect and authenticate within `timeout` seconds. Raises NotSentError (unreachable) or what
    `explained` makes of a refusal."""
    name = str(node)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            if node.path:
                _, wire = await loop.create_unix_connection(lambda: Wire(name), node.path)
            else:
                transport, wire = await loop.create_connection(
                    lambda: Wire(name), node.host, node.port, ssl=address.tls
                )
                raw = transport.get_extra_info("socket")
                if raw is not None:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except (OSError, ssl.SSLError) as error:
        raise NotSentError(f"Redis at {name} cannot be reached: {_reason(error, timeout, address)}") from None
    greeting: list[Command] = []
    if address.password or address.username:
        who = (address.username,) if address.username else ()
        greeting.append(("AUTH", *who, address.password))
    if address.database:
        greeting.append(("SELECT", address.database))
    try:
        for future in wire.send_many(greeting):
            await wire.answer(future, timeout)
    except ReplyError as error:
        wire.abort("it refused the greeting")
        raise explained(error, name, "let this client in") from None
    except LostReplyError as error:
        raise NotSentError(f"Redis at {name} cannot be reached: {error}") from None
    except BaseException:
        wire.abort("it was given up")
        raise
    return wire


def _reason(error: BaseException, timeout: float, address: Address) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        hint = "that the port speaks TLS" if address.tls else "the network"
        return f"no connection within {timeout:g} s; check the address and {hint}"
    if isinstance(error, socket.gaierror):
        return f"its name cannot be resolved ({error.strerror}); check the host in the URL"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error}); check the certificates and that the port speaks TLS"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is the server running, and is this its port?"
    return str(error)


class Route:
    """Finds the server for one slot and learns from redirections. `slot` is ignored outside a cluster."""

    def __init__(self, address: Address, slot: int) -> None:
        self._address = address
        self._slot = slot
        self._owner: Node | None = None if address.cluster else address.nodes[0]
        self._known: list[Node] = list(address.nodes)

    @property
    def name(self) -> str:
        return str(self._owner or self._address.nodes[0])

    @property
    def cluster(self) -> bool:
        return self._address.cluster

    async def connect(self, timeout: float) -> Wire:
        if self._owner is None:
            self._owner = await self._find(timeout)
        try:
            return await open_wire(self._address, self._owner, timeout)
        except BrokerUnavailableError:
            self.forget()
            raise

    async def detour(self, node_text: str, timeout: float) -> Wire:
        """Connect to the node that an ASK named, for one command."""
        return await open_wire(self._address, self._node(node_text), timeout)

    def moved(self, node_text: str) -> None:
        self._owner = self._node(node_text)
        if self._owner not in self._known:
            self._known.append(self._owner)

    def forget(self) -> None:
        """Ask again who owns the slot before the next connection."""
        if self._address.cluster:
            self._owner = None

    def _node(self, text: str) -> Node:
        host, _, port = text.rpartition(":")
        return Node(host.strip("[]") or self._address.nodes[0].host, int(port))

    async def _find(self, timeout: float) -> Node:
        fault: BrokerUnavailableError | None = None
        for node in list(self._known):
            try:
                wire = await open_wire(self._address, node, timeout)
            except BrokerUnavailableError as error:
                fault = error
                continue
            try:
                ranges = await wire.call(("CLUSTER", "SLOTS"), timeout)
            except ReplyError as error:
                if "cluster support disabled" in str(error):
                    raise NotSentError(
                        f"Redis at {node} is not a cluster node ({error}); use a redis:// URL"
                    ) from None
                raise explained(error, str(node), "name the owners of its slots") from None
            except BrokerUnavailableError as error:
                fault = error
                continue
            finally:
                wire.abort("it was only asked for the way")
            owner = self._read_slots(ranges, node)
            if owner is not None:
                return owner
            fault = NotSentError(
                f"the cluster that {node} belongs to has no owner for slot {self._slot}; check CLUSTER INFO"
            )
        raise NotSentError(str(fault)) from None

    def _read_slots(self, ranges: Any, asked: Node) -> Node | None:
        owner = None
        for first, last, primary, *replicas in ranges:
            for host, port, *_ in (primary, *replicas):
                node = Node(host.decode() if host else asked.host, int(port))
                if node not in self._known:
                    self._known.append(node)
            if first <= self._slot <= last:
                owner = Node(primary[0].decode() if primary[0] else asked.host, int(primary[1]))
        return owner
