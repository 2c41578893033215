"""A TCP proxy in front of a NATS server that can lose, answer and cut whatever a client publishes.

It reads the client's side of the protocol; what the server sends passes through untouched.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self


class Fault(Enum):
    PASS = auto()
    #: It never reaches the server; the connection stays.
    SWALLOW = auto()
    #: It never reaches the server, and the connection ends.
    CUT = auto()
    #: Nothing more of this connection is read until `NatsProxy.let_go`.
    STALL = auto()
    #: It reaches the server after `NatsProxy.let_go`, and so does all that follows it.
    HOLD = auto()
    #: It reaches the server, and no answer of the server passes any more.
    DEAFEN = auto()


@dataclass(frozen=True)
class Answer:
    """Sent in place of the server's: a status without a body. With `passes` the publish reaches the server
    besides."""

    status: int
    words: str
    passes: bool = False


@dataclass(frozen=True)
class Sent:
    """One publish of a client."""

    number: int
    subject: str
    payload: bytes

    @property
    def is_ack(self) -> bool:
        return self.subject.startswith("$JS.ACK.")

    @property
    def is_pull(self) -> bool:
        return self.subject.startswith("$JS.API.CONSUMER.MSG.NEXT.")


Rule = Callable[[Sent], Fault | Answer]


@dataclass
class NatsProxy:
    """`log` has every publish that arrived, in order; `event` is set as soon as the rule has chosen anything
    but PASS."""

    port_of_server: int
    rule: Rule = lambda _: Fault.PASS
    port: int = 0
    #: What the server says it is, in place of its version.
    version: str = ""
    log: list[Sent] = field(default_factory=list)
    event: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

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
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port_of_server)
            connection = _Connection(self, reader, writer, up_reader, up_writer)
            back = asyncio.create_task(connection.answers())
            self._tasks.add(back)
            try:
                await connection.requests()
            finally:
                back.cancel()
                up_writer.close()
        except (OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


class _Connection:
    def __init__(
        self,
        proxy: NatsProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._up_reader, self._up_writer = up_reader, up_writer
        self._inboxes: dict[str, str] = {}
        self._deaf = False

    async def answers(self) -> None:
        said = b'"version":"%b"' % self._proxy.version.encode()
        while data := await self._up_reader.read(65536):
            if not self._deaf:
                if self._proxy.version:  # it introduces itself twice
                    data = re.sub(rb'"version":"[^"]*"', said, data)
                self._writer.write(data)
                await self._writer.drain()
        self._writer.close()

    async def requests(self) -> None:
        while line := await self._reader.readline():
            words = line.decode().split()
            if words[0] == "SUB":
                self._inboxes[words[1].removesuffix("*")] = words[2]
            if words[0] not in ("PUB", "HPUB"):
                self._up_writer.write(line)
                continue
            body = await self._reader.readexactly(int(words[-1]) + 2)
            headers = int(words[-2]) if words[0] == "HPUB" else 0
            sent = Sent(len(self._proxy.log) + 1, words[1], body[headers:-2])
            self._proxy.log.append(sent)
            choice = self._proxy.rule(sent)
            if choice is not Fault.PASS:
                self._proxy.event.set()
            if isinstance(choice, Answer):
                self._answer(words[2], choice)
                if choice.passes:
                    self._up_writer.write(line + body)
            elif choice is Fault.CUT:
                return
            elif choice is Fault.STALL:
                await self._proxy.let_go.wait()
                return
            elif choice is not Fault.SWALLOW:
                if choice is Fault.HOLD:
                    await self._proxy.let_go.wait()
                self._deaf = self._deaf or choice is Fault.DEAFEN
                self._up_writer.write(line + body)

    def _answer(self, reply: str, answer: Answer) -> None:
        sid = next(sid for prefix, sid in self._inboxes.items() if reply.startswith(prefix))
        headers = f"NATS/1.0 {answer.status} {answer.words}\r\n\r\n".encode()
        self._writer.write(
            f"HMSG {reply} {sid} {len(headers)} {len(headers)}\r\n".encode() + headers + b"\r\n"
        )
