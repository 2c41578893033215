"""One worker process as the supervisor holds it."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from worker_runtime.channel import HELD_BACK, LONGEST_LINE, WorkerConfig

#: Seconds to read what a worker process sent before it ended.
LAST_WORDS = 1.0

log = logging.getLogger("queueworker.supervisor")


class Child:
    """A started worker process and the line to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_report: Callable[[dict[str, Any]], None],
    ) -> None:
        self._process = process
        self._writer = writer
        self._on_report = on_report
        #: Set by a worker that says that no restart would help: exit code and reason.
        self.fatal: tuple[int, str] | None = None
        #: The exit code that it said it would end with, once its work was over.
        self.announced: int | None = None
        self._listening_over = False
        self._waiters: list[asyncio.Future[None]] = []
        self._listening = asyncio.create_task(self._listen(reader))

    @classmethod
    async def start(cls, config: WorkerConfig, on_report: Callable[[dict[str, Any]], None]) -> Child:
        ours, theirs = socket.socketpair()
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "worker_runtime.process",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        writer.write(config.dump())
        return cls(process, reader, writer, on_report)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask_stop(self, seconds: float) -> None:
        self._send({"do": "stop", "seconds": seconds})

    def ask_force(self) -> None:
        self._send({"do": "force"})

    async def ask_report(self) -> None:
        """Return when the next report is here or the process is gone."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._send({"do": "report"})
        await waiter

    def kill(self) -> None:
        try:
            self._process.kill()
        except ProcessLookupError:
            pass  # it ended by itself

    def _terminate(self) -> None:
        try:
            self._process.terminate()
        except ProcessLookupError:
            pass  # it ended by itself

    async def wait(self) -> int:
        """The exit code, or the negative number of the signal that ended it; all its reports are read."""
        code = await self._process.wait()
        # What it sent is here already. The end of the line may never come: a handler may have forked, and a
        # child that lives on holds the other end.
        await asyncio.wait([self._listening], timeout=LAST_WORDS)
        self._listening.cancel()
        self._writer.close()
        if code < 0 and self.announced is not None:
            return self.announced  # killed after its work, since something of the user's held its exit up
        return code

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                try:
                    message = json.loads(line)
                except ValueError:
                    continue  # killed in the middle of a line
                if "report" in message:
                    self.announced = message["report"].get("exit")
                    self._on_report(message["report"])
                    self._wake()
                elif "fatal" in message:
                    self.fatal = (message["fatal"], message["why"])
        except ConnectionError:
            pass  # the same as its end
        except Exception as error:
            # Nobody would hear of it any more, nor could it be asked to stop: another one takes its place.
            log.error(
                "what worker process pid %d reports cannot be read; it is ended", self.pid, exc_info=error
            )
            self._terminate()
        finally:
            self._listening_over = True
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _send(self, message: dict[str, Any]) -> None:
        if self._listening_over or self._writer.is_closing():
            self._wake()
            return
        self._writer.write(json.dumps(message).encode() + b"\n")


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
