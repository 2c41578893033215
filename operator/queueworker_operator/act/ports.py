"""Free ports for the admin endpoints of local workers."""

from __future__ import annotations

import socket


class NoFreePortError(OSError):
    """Every port of the range is in use."""


class Ports:
    """Hands out ports of 127.0.0.1 that nobody listens on now, none twice at a time."""

    def __init__(self, base: int | None = None) -> None:
        """With a base, the lowest free port from there on; without, one that the kernel picks."""
        self._base = base
        self._taken: set[int] = set()

    def take(self) -> int:
        """Raises NoFreePortError."""
        candidates = range(self._base, min(self._base + 1000, 65536)) if self._base else [0] * 50
        for candidate in candidates:
            if candidate in self._taken:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", candidate))
                except OSError:
                    continue
                port: int = probe.getsockname()[1]
            if port not in self._taken:
                self._taken.add(port)
                return port
        raise NoFreePortError(f"no free port found from {self._base or 'the range of the kernel'} on")

    def give_back(self, port: int) -> None:
        self._taken.discard(port)
