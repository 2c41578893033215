"""A connection that comes back: it connects when needed, and what was lost with one is never sent on the
next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from worker_runtime.brokers.base import BrokerUnavailableError
from worker_runtime.brokers.nats.address import Address
from worker_runtime.brokers.nats.answers import OnConfirmed, OnReply, Reply
from worker_runtime.brokers.nats.wire import LostReplyError, NotSentError, Request, Wire, connect

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
#: Seconds after which a question that changes nothing is asked again. One that reached a server that is no
#: leader, or its last words, has no answer; the next leader answers at once.
ASK_AGAIN = 1.0
#: No responders: the server says that nobody was there to receive it.
NOBODY = 503
#: The server does not let this user send it.
FORBIDDEN = 403


class Link:
    """`timeout` is how long one request may take, in seconds. Opens nothing by itself."""

    def __init__(self, address: Address, timeout: float, name: str) -> None:
        self.timeout = timeout
        self._address = address
        self._name = name
        self._wire: Wire | None = None
        self._connecting = asyncio.Lock()
        self._shut = False
        #: Which server of the URL the next connection begins with.
        self._turn = 0

    @property
    def name(self) -> str:
        return self._wire.name if self._wire is not None else self._address.display_url

    async def opened(self, patience: float = 0.0) -> Wire:
        """A connection that works as far as is known. An absent server is waited for `patience` seconds.
        Raises BrokerError."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + patience, _FIRST_PAUSE
        async with self._connecting:
            while self._wire is None or self._wire.gone:
                if self._shut:
                    raise NotSentError(f"NATS at {self._address.display_url}: this client was closed")
                try:
                    self._wire = await connect(self._in_turn(), self.timeout, self._name)
                except BrokerUnavailableError:
                    if loop.time() + pause > until:
                        raise
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
            return self._wire

    def _in_turn(self) -> Address:
        """The one after the last that was connected to comes first: a server may let everybody in and be cut
        off from the others."""
        servers = self._address.servers
        if self._wire is not None:
            self._turn = 1 + [str(one) for one in servers].index(self._wire.name)
        first = self._turn % len(servers)
        return replace(self._address, servers=servers[first:] + servers[:first])

    def move_on(self) -> None:
        """This server cannot reach who should answer. Where the URL names others, the next operation asks one
        of them; what has no answer yet gets none."""
        if len(self._address.servers) > 1:
            self.drop()

    def drop(self) -> None:
        """Give the connection up at once; the next operation opens another."""
        if self._wire is not None:
            self._wire.close()

    async def ask(
        self,
        requests: Sequence[Request],
        on_reply: OnReply,
        timeout: float | None = None,
        *,
        harmless: bool = False,
    ) -> list[int]:
        """As `Wire.ask` on a connection that works. One whose answers did not all come in time is dropped:
        what may still be in its buffer must not arrive later. So is one whose caller is cancelled, unless
        that is `harmless`. Raises BrokerError when nothing was sent."""
        wire = await self.opened()
        asking = wire.ask(requests, on_reply, self.timeout if timeout is None else timeout)
        return await self._guarded(wire, asking, harmless)

    async def inquire(self, requests: Sequence[Request], on_reply: OnReply) -> list[int]:
        """As `ask`, for questions that change nothing, so that they may be asked twice: those without an
        answer are asked again each `ASK_AGAIN` seconds, for as long as one request may take."""
        loop = asyncio.get_running_loop()
        wire = await self.opened()
        until = loop.time() + self.timeout
        left = list(range(len(requests)))
        while left and not wire.gone and (patience := until - loop.time()) > 0:
            asked = left

            def note(index: int, reply: Reply, asked: list[int] = asked) -> None:
                on_reply(asked[index], reply)

            missing = await wire.ask([requests[one] for one in asked], note, min(ASK_AGAIN, patience))
            left = [asked[one] for one in missing]
        if left and wire is self._wire:
            self.drop()
        return left

    async def acknowledge(
        self, subjects: Sequence[bytes], on_confirmed: OnConfirmed, on_reply: OnReply
    ) -> list[int]:
        """As `Wire.acknowledge`, and with the connection as `ask` does."""
        wire = await self.opened()
        asking = wire.acknowledge(subjects, on_confirmed, on_reply, self.timeout)
        return await self._guarded(wire, asking, harmless=False)

    async def _guarded(self, wire: Wire, asking: Awaitable[list[int]], harmless: bool) -> list[int]:
        try:
            left = await asking
        except asyncio.CancelledError:
            if not harmless and wire is self._wire:
                self.drop()
            raise
        if left and wire is self._wire:
            self.drop()
        return left

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        headers: bytes = b"",
        *,
        patience: float = 0.0,
        reads: bool = False,
    ) -> Reply:
        """The answer to one request. While nobody receives it (no leader yet, no server) it is tried again
        for `patience` seconds; one that only `reads` is also asked again, as `inquire` does. Raises
        NotSentError or LostReplyError, or BrokerRefusedError."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + patience, _FIRST_PAUSE
        while True:
            wire = await self.opened(max(0.0, until - loop.time()))
            replies = await self._answers((subject, headers, payload), reads)
            if not replies:
                why = wire.gone if wire.gone != "it was closed" else f"no answer within {self.timeout:g} s"
                raise LostReplyError(f"NATS at {wire.name}: {why} to {subject}")
            if replies[0].status != NOBODY or self._shut or loop.time() + pause > until:
                return replies[0]
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _answers(self, request: Request, reads: bool) -> list[Reply]:
        replies: list[Reply] = []

        def note(_: int, reply: Reply) -> None:
            replies.append(reply)

        if reads:
            await self.inquire([request], note)
        else:
            await self.ask([request], note, harmless=True)
        return replies

    async def close(self) -> None:
        self._shut = True
        self.drop()
