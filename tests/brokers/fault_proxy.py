"""A TCP proxy in front of a Redis server that can lose, hold and cut at any command.

It reads the protocol, passes one command of a connection at a time, and asks a rule what to do with it.
Transitions are known by their file's name ("reserve", "claim", ...), other commands by their own ("BLMOVE").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Self

import hiredis

from worker_runtime.brokers.redis import scripts

_NAMES = {script.sha.encode(): script.name for script in scripts.ALL}


class Fault(Enum):
    PASS = auto()
    #: Close without passing the command on.
    CUT_BEFORE = auto()
    #: The server runs it; the answer is thrown away and the connection closed.
    CUT_AFTER = auto()
    #: The server runs it; the answer waits for `FaultProxy.let_go`.
    HOLD_REPLY = auto()
    #: The command waits for `FaultProxy.let_go` before it is passed on.
    HOLD_COMMAND = auto()


@dataclass(frozen=True)
class Seen:
    number: int
    name: str
    command: list[bytes]
    reply: Any = None


Rule = Callable[[Seen], Fault]


@dataclass
class FaultProxy:
    """`before` decides when a command arrives, `after` when its answer is there. `log` has every command that
    arrived, in order; `event` is set as soon as a rule has chosen anything but PASS."""

    port_of_server: int
    before: Rule = lambda _: Fault.PASS
    after: Rule = lambda _: Fault.PASS
    #: Seconds that an answer takes on its way back.
    late: Callable[[Seen], float] = lambda _: 0.0
    port: int = 0
    log: list[Seen] = field(default_factory=list)
    event: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    host_of_server: str = "127.0.0.1"
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def names(self) -> list[str]:
        return [seen.name for seen in self.log]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            up_reader, up_writer = await asyncio.open_connection(self.host_of_server, self.port_of_server)
            try:
                await self._pass_on(reader, writer, up_reader, up_writer)
            finally:
                up_writer.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        commands = hiredis.Reader(notEnoughData=...)
        while data := await reader.read(65536):
            commands.feed(data)
            while (command := commands.gets()) is not ...:
                seen = Seen(len(self.log) + 1, _name(command), command)
                self.log.append(seen)
                choice = self._choose(self.before, seen)
                if choice is Fault.HOLD_COMMAND:
                    await self.let_go.wait()
                if choice is Fault.CUT_BEFORE:
                    return
                up_writer.write(hiredis.pack_command(tuple(command)))
                raw, reply = await self._reply(reader, up_reader)
                if raw is None:
                    return
                after = self._choose(self.after, Seen(seen.number, seen.name, command, reply))
                if Fault.CUT_AFTER in (choice, after):
                    return
                if Fault.HOLD_REPLY in (choice, after):
                    await self.let_go.wait()
                if (seconds := self.late(seen)) > 0:
                    await asyncio.sleep(seconds)
                writer.write(raw)

    def _choose(self, rule: Rule, seen: Seen) -> Fault:
        choice = rule(seen)
        if choice is not Fault.PASS:
            self.event.set()
        return choice

    async def _reply(
        self, reader: asyncio.StreamReader, up_reader: asyncio.StreamReader
    ) -> tuple[bytes | None, Any]:
        """The raw bytes of one whole answer; None when either side goes away meanwhile."""
        parser, raw = hiredis.Reader(notEnoughData=...), b""
        while True:
            answer = asyncio.ensure_future(up_reader.read(65536))
            gone = asyncio.ensure_future(_until_eof(reader))
            try:
                await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    return None, None
                data = answer.result()
            finally:
                for future in (answer, gone):
                    future.cancel()
                    with contextlib.suppress(asyncio.CancelledError, OSError):
                        await future
            if not data:
                return None, None
            raw += data
            parser.feed(data)
            reply = parser.gets()
            if reply is not ...:
                return raw, reply


async def _until_eof(reader: asyncio.StreamReader) -> None:
    """Returns when the client is gone. Data that it sends ahead stays in the reader."""
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110 - a reader has no such event
        await asyncio.sleep(0.01)


def _name(command: list[bytes]) -> str:
    word = command[0].decode().upper()
    if word == "EVALSHA":
        return _NAMES.get(command[1], "EVALSHA")
    if word == "EVAL":
        return next((one.name for one in scripts.ALL if one.source.encode() == command[1]), "EVAL")
    return word
