"""What lies between the servers of a NATS cluster: a proxy before each of them, through which all others have
to go, and which can stop passing anything without a word, as a network does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from typing import Self

from tests.services import free_port

_NAME = re.compile(rb'"(?:server_)?name":"(n\d+)"')


class Routes:
    """`ports[i]` leads to the route port `targets[i]` of the server n<i>. Runs in a thread of its own."""

    def __init__(self, size: int) -> None:
        self.ports = [free_port() for _ in range(size)]
        self.targets = [free_port() for _ in range(size)]
        self._alone: set[str] = set()
        self._open: set[_Route] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def isolate(self, name: str) -> None:
        """From now on nothing passes between this server and the others; their connections stay open."""
        self._alone.add(name)

    def heal(self) -> None:
        """All pass again. Connections that lost something end."""
        self._alone.clear()
        self._loop.call_soon_threadsafe(self._end_what_lost_something)

    def _end_what_lost_something(self) -> None:
        for route in list(self._open):
            if route.lost:
                route.end()

    async def _listen(self) -> None:
        self._servers = []
        for number, (port, target) in enumerate(zip(self.ports, self.targets, strict=True)):

            async def serve(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                name: str = f"n{number}",
                target: int = target,
            ) -> None:
                with contextlib.suppress(OSError):
                    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target)
                    route = _Route(self._alone, name, (writer, up_writer))
                    self._open.add(route)
                    await asyncio.gather(
                        route.passing(reader, up_writer, from_the_caller=True),
                        route.passing(up_reader, writer),
                    )
                    self._open.discard(route)
                writer.close()

            self._servers.append(await asyncio.start_server(serve, "127.0.0.1", port))


class _Route:
    def __init__(self, alone: set[str], name: str, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        self.lost = False
        self._alone = alone
        self._ends = {name}
        self._writers = writers

    def end(self) -> None:
        for writer in self._writers:
            writer.close()

    async def passing(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_the_caller: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if from_the_caller and len(self._ends) == 1 and (found := _NAME.search(data)):
                    self._ends.add(found[1].decode())
                if self.lost or self._ends & self._alone:
                    self.lost = True
                    continue
                writer.write(data)
                await writer.drain()
        self.end()
