"""A Sentinel that says what a test wants it to say: no real one can be kept saying an old address."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import hiredis

from tests.sentinels import NAME


class ScriptedSentinel:
    """Names 127.0.0.1:`names` with `epoch`, or nobody when that is 0; both can change while it runs. An epoch
    below 0 is not told. An async context manager."""

    def __init__(self, names: int, epoch: int = 1) -> None:
        self.names, self.epoch = names, epoch
        self.port = 0
        #: How often it was asked for an address.
        self.asked = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def connections(self) -> int:
        return len(self._writers)

    def says(self, names: int, epoch: int) -> None:
        self.names, self.epoch = names, epoch

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if its process had been killed; `start` brings it back on the same port."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while command := parser.gets():
                    writer.write(self._answer([word.decode().upper() for word in command]))
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, command: list[str]) -> bytes:
        assert command[-1] == NAME.upper(), command
        if command[1] == "GET-MASTER-ADDR-BY-NAME":
            self.asked += 1
            if not self.names:
                return b"*-1\r\n"
            return _packed("127.0.0.1", self.names)
        assert command[1] == "MASTER", command
        if self.epoch < 0:
            return b"-NOPERM this user has no permissions to run the 'sentinel|master' command\r\n"
        return _packed("name", NAME, "port", self.names, "config-epoch", self.epoch)


def _packed(*parts: str | int) -> bytes:
    words: Any = parts  # hiredis types a tuple of one word.
    packed: bytes = hiredis.pack_command(words)
    return packed
