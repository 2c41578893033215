"""The line between the supervisor and one worker process: JSON lines over a socket pair.

Down: the configuration first, then {"do": "stop", "seconds": n}, {"do": "force"}, {"do": "report"}.
Up: {"report": {...}} when asked, each second when it has changed and else each fifth; {"fatal": code, "why":
text} before an exit that no restart would change. The end of the line means that the other side is gone.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from worker_runtime.rhythm import until_next
from worker_runtime.settings import Settings

#: Signals that the supervisor holds back while a worker process starts, until it can handle them: a Ctrl-C
#: that reaches the whole group must not end it with a traceback in the middle of an import.
HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: A report with a hundred queues stays far below this.
LONGEST_LINE = 4 * 1024 * 1024
#: Seconds between two looks whether there is something new to report.
REPORT_PERIOD = 1.0
#: Seconds after which the same is reported again, so that the supervisor sees that this process lives.
SAME_AGAIN = 5.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker process has to know."""

    #: MODULE:APP
    target: str
    #: Which of the supervisor's processes it is, from 0.
    index: int
    settings: Settings
    #: Fields of the settings that a flag or a variable gave; these win over the code.
    given: tuple[str, ...]
    #: How often a process in its place ended unexpectedly before.
    restarts: int = 0
    #: How the last of those ended, for people; empty when there was none.
    last_end: str = ""
    #: `WorkerIdentity.place`.
    place: str = ""

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def load(cls, line: bytes) -> WorkerConfig:
        raw = json.loads(line)
        return cls(
            raw["target"],
            raw["index"],
            Settings(**raw["settings"]),
            tuple(raw["given"]),
            raw["restarts"],
            raw["last_end"],
            raw["place"],
        )


class WorkerEnd:
    """The worker's end. Everything but `read_config` runs on the background loop."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()

    def read_config(self) -> WorkerConfig:
        """Block until the configuration is here. Raises EOFError when the supervisor is gone."""
        self._socket.setblocking(True)
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = self._socket.recv(1)  # byte by byte: what follows belongs to the stream
            if not byte:
                raise EOFError("the supervisor closed the line before it sent a configuration")
            line += byte
        return WorkerConfig.load(bytes(line))

    async def serve(
        self,
        report: Callable[[], dict[str, Any]],
        on_stop: Callable[[float | None], None],
        on_force: Callable[[], None],
        expiry: float,
    ) -> None:
        """Answer the supervisor until it is gone; then ask for a stop (with None for the default time).
        `expiry` is the silence, in seconds, after which it counts this process as dead.
        May be called again after it raised; nothing that was sent meanwhile is lost."""
        if self._reader is None:
            self._socket.setblocking(False)
            self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=LONGEST_LINE)
            self._connected.set()
        ticker = asyncio.create_task(self._report_regularly(report, min(SAME_AGAIN, expiry / 3)))
        listener = asyncio.create_task(self._listen(self._reader, report, on_stop, on_force))
        try:
            done, _ = await asyncio.wait((ticker, listener), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            ticker.cancel()
            listener.cancel()
            await asyncio.gather(ticker, listener, return_exceptions=True)
        on_stop(None)

    async def _listen(
        self,
        reader: asyncio.StreamReader,
        report: Callable[[], dict[str, Any]],
        on_stop: Callable[[float | None], None],
        on_force: Callable[[], None],
    ) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if message["do"] == "stop":
                    on_stop(message["seconds"])
                elif message["do"] == "force":
                    on_force()
                elif message["do"] == "report":
                    self._send({"report": report()})
        except ConnectionError:
            pass  # the same as its end

    async def fatal(self, code: int, why: str) -> None:
        """Say that no restart would help."""
        await self._deliver({"fatal": code, "why": why})

    async def last_report(self, report: dict[str, Any]) -> None:
        await self._deliver({"report": report})

    async def _deliver(self, message: dict[str, Any]) -> None:
        """Send and wait until it is on its way: the process is about to end."""
        await self._connected.wait()
        self._send(message)
        assert self._writer is not None
        try:
            await self._writer.drain()
        except ConnectionError:
            pass  # nobody is left to tell

    async def _report_regularly(self, report: Callable[[], dict[str, Any]], silence: float) -> None:
        sent: dict[str, Any] = {}
        due = 0.0
        while True:
            latest, now = report(), time.monotonic()
            # A supervisor of a hundred idle processes has to read each of these.
            if latest != sent or now >= due:
                self._send({"report": latest})
                sent, due = latest, now + silence
            await until_next(min(REPORT_PERIOD, silence))

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")
