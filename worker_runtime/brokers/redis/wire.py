"""One connection that speaks the Redis protocol, with one property that the delivery protocol needs: it
knows whether a command was sent.

A command that was not sent raises NotSentError and may be tried again. A command that was sent and got no
answer raises LostReplyError, and only its author can say whether trying again is safe. Nothing is ever
sent twice from here. Commands of several callers share the connection in order; cancelling a caller drops
its answer, not the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from worker_runtime.brokers.base import BrokerUnavailableError

Command = tuple[str | int | float | bytes | memoryview, ...]
#: Makes of a reply the command that is sent at once, or None. Must not raise.
Follow = Callable[[Any], Command | None]


_IN_SCRIPT = re.compile(r"ERR Error running script .*: -([A-Z]+) ")


class NotSentError(BrokerUnavailableError):
    """The command never left: there was no connection."""


class LostReplyError(BrokerUnavailableError):
    """The command was sent and its answer did not come. It may or may not have run."""


class ReplyError(Exception):
    """The server answered with an error. It did not run the command, or undid nothing since nothing was
    written before the error."""

    @property
    def code(self) -> str:
        """The word that says what is wrong. Before 7.0 a command that is refused inside a script has it after
        the place in the script, and ERR in front."""
        text = str(self)
        inside = _IN_SCRIPT.match(text)
        return inside[1] if inside else text.split(" ", 1)[0]


_INCOMPLETE = object()
# Its annotation admits one argument only; the function takes any number.
_pack = cast(Callable[[Command], bytes], hiredis.pack_command)


class Wire(asyncio.Protocol):
    """Made by `loop.create_connection`; `name` is what error texts call the server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = False
        self._retired = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(
            protocolError=ConnectionError, replyError=ReplyError, notEnoughData=_INCOMPLETE
        )
        self._waiting: deque[asyncio.Future[Any]] = deque()
        #: A reply that is followed by a command at once: its future, what makes the command, and the future
        #: of that one's reply.
        self._followed: tuple[asyncio.Future[Any], Follow, asyncio.Future[Any]] | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _INCOMPLETE:
                future = self._waiting.popleft()
                if future.done():
                    continue
                if isinstance(reply, ReplyError):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
                    if self._followed is not None and self._followed[0] is future:
                        self._follow(reply)
        except (ConnectionError, IndexError) as error:
            self.abort(f"it sent what is not the Redis protocol ({error})")
        if self._retired and not self._waiting:
            self.abort("it was replaced")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error) if error else "it closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)

    # the callers' side

    def send(self, command: Command) -> asyncio.Future[Any]:
        """Write one command. The future brings the reply, ReplyError or LostReplyError."""
        return self.send_many((command,))[0]

    def send_many(self, commands: Sequence[Command]) -> list[asyncio.Future[Any]]:
        if not self.open or self._transport is None or self._transport.is_closing():
            raise NotSentError(f"the connection to {self.name} is closed")
        packed = b"".join([_pack(command) for command in commands])
        futures = [self._loop.create_future() for _ in commands]
        self._waiting.extend(futures)
        self._transport.write(packed)
        return futures

    def send_followed(
        self, command: Command, follow: Follow
    ) -> tuple[asyncio.Future[Any], asyncio.Future[Any]]:
        """Write a command, and the one that `follow` makes of its reply as soon as that is read: no task has
        to wake up in between. The futures of both replies; the second is of use when the first has brought
        a reply, and brings None when there was nothing to send. One at a time on a connection."""
        first, second = self.send(command), self._loop.create_future()
        self._followed = (first, follow, second)
        return first, second

    def _follow(self, reply: Any) -> None:
        assert self._followed is not None
        _, follow, second = self._followed
        self._followed = None
        command = follow(reply)
        if command is None or not self.open or self._transport is None:
            second.set_result(None)
            return
        self._waiting.append(second)
        self._transport.write(_pack(command))

    async def call(self, command: Command, timeout: float) -> Any:
        return await self.answer(self.send(command), timeout)

    async def answer(self, future: asyncio.Future[Any], timeout: float) -> Any:
        """Wait for a reply. A missing one ends the connection: the replies after it could not be told apart
        from it by time."""
        if future.done():
            return future.result()
        timer = self._loop.call_later(timeout, self.abort, f"no answer within {timeout:g} s")
        try:
            return await future
        finally:
            timer.cancel()

    def abort(self, reason: str) -> None:
        """Close at once. Everything that waits gets LostReplyError with this reason."""
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """Take no more commands, and close when the answers that are still due have come."""
        self.open, self._retired = False, True
        if not self._waiting:
            self.abort("it was replaced")

    def hang_up(self) -> None:
        """Tell the server that nothing more comes. When it has let go of this client (see `closed`), a
        blocked command of ours cannot run any more."""
        transport = self._transport
        if transport is not None and self.open:
            self.open = False
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Have it called once, when the connection is gone; soon if it is gone already."""
        self._closed.add_done_callback(lambda _: callback())

    async def closed(self, timeout: float) -> None:
        """Wait until the connection is gone, at most `timeout` seconds."""
        await asyncio.wait((self._closed,), timeout=timeout)

    def _fail(self, reason: str) -> None:
        self.open = False
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(LostReplyError(f"{self.name} did not answer: {reason}"))
                # The author may have been cancelled meanwhile; an unread failure is not news.
                future.exception()
