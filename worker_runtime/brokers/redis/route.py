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

#: Seconds that a node of a cluster may take to let us in or to name the owner of a slot.
_KNOCK = 3.0
#: Seconds of silence after which the next node is asked as well.
_MOMENT = 0.3
#: Nodes that are remembered.
_KNOWN = 100


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
        #: Named as the owner and not reached: a node that still names it may have an old map.
        self._doubted: Node | None = None

    @property
    def name(self) -> str:
        return str(self._owner or self._address.nodes[0])

    @property
    def cluster(self) -> bool:
        return self._address.cluster

    @property
    def moves(self) -> bool:
        """Whether another server can take the place of the one that is in use."""
        return self._address.cluster

    async def connect(self, timeout: float) -> Wire:
        if not self.moves:
            return await open_wire(self._address, self._address.nodes[0], timeout)
        owner = self._owner
        if owner is None:
            owner = self._owner = await self._find(self._doubted, timeout)
        try:
            wire = await open_wire(self._address, owner, min(timeout, _KNOCK))
        except BrokerUnavailableError:
            self._doubted = owner
            self.forget(str(owner))
            raise
        self._doubted = None
        return wire

    async def detour(self, node_text: str, timeout: float) -> Wire:
        """Connect to the node that an ASK named, for one command."""
        return await open_wire(self._address, self._node(node_text), min(timeout, _KNOCK))

    def moved(self, node_text: str) -> None:
        self._owner = self._node(node_text)
        self._learn([self._owner])

    def forget(self, name: str) -> None:
        """Ask again for the way before the next connection, if it still leads to the server of this name."""
        if self.moves and str(self._owner) == name:
            self._owner = None

    async def replaced(self, name: str, timeout: float) -> bool:
        """Ask others whether the silent server of this name has lost its place to another one; then the
        next connection goes there. Raises BrokerUnavailableError when nobody knows."""
        doubted = next((node for node in self._known if str(node) == name), None)
        owner = await self._find(doubted, timeout)
        if str(owner) == name:
            return False
        if self._owner is None or str(self._owner) == name:
            self._owner = owner
        return True

    def _node(self, text: str) -> Node:
        """A server that does not know its address leaves the host empty, or "?": it is the one asked."""
        host, _, port = text.rpartition(":")
        known = "" if host in {"", "?"} else host.strip("[]")
        return Node(known or (self._owner or self._address.nodes[0]).host, int(port))

    async def _find(self, doubted: Node | None, timeout: float) -> Node:
        """Ask one node after the other, the next as soon as one is silent for a moment. An answer that names
        `doubted` counts only when nobody says otherwise; it is not asked itself while there are others."""
        left = [node for node in self._known if node != doubted] or list(self._known)
        asked: set[asyncio.Task[Node]] = set()
        fallback: Node | None = None
        fault: BrokerUnavailableError | None = None
        try:
            while left or asked:
                if left:
                    asked.add(asyncio.ensure_future(self._ask(left.pop(0), min(timeout, _KNOCK))))
                done, asked = await asyncio.wait(
                    asked, timeout=_MOMENT if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for one in done:
                    try:
                        owner = one.result()
                    except BrokerUnavailableError as error:
                        fault = error
                        continue
                    if owner != doubted:
                        return owner
                    fallback = owner
        finally:
            for one in asked:
                one.cancel()
        if fallback is not None:
            return fallback
        raise NotSentError(str(fault)) from None

    async def _ask(self, node: Node, timeout: float) -> Node:
        """Who owns the slot by the map of this node."""
        wire = await open_wire(self._address, node, timeout)
        try:
            ranges = await wire.call(("CLUSTER", "SLOTS"), timeout)
        except ReplyError as error:
            if "cluster support disabled" in str(error):
                raise NotSentError(
                    f"Redis at {node} is not a cluster node ({error}); use a redis:// URL"
                ) from None
            raise explained(error, str(node), "name the owners of its slots") from None
        finally:
            wire.abort("it was only asked for the way")
        owner = self._read_slots(ranges, node)
        if owner is None:
            raise NotSentError(
                f"the cluster that {node} belongs to has no owner for slot {self._slot}; check CLUSTER INFO"
            )
        return owner

    def _read_slots(self, ranges: Any, asked: Node) -> Node | None:
        owner = None
        seen: list[Node] = []
        for first, last, *servers in ranges:
            nodes = [
                Node(host.decode() if host and host != b"?" else asked.host, int(port))
                for host, port, *_ in servers
            ]
            seen += nodes
            if first <= self._slot <= last:
                owner = nodes[0]
        if owner is not None:
            self._learn(seen)
        return owner

    def _learn(self, nodes: list[Node]) -> None:
        """The latest first; those that were not heard of for long drop out, those of the URL never do."""
        older = [node for node in self._known if node not in self._address.nodes]
        self._known = [*dict.fromkeys((*nodes, *self._address.nodes, *older))][:_KNOWN]
