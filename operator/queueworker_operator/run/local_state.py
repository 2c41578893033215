"""The directory of one `queueworker up`: who holds it, and what it says of itself in up.json."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any


class StateInUseError(Exception):
    """Another `queueworker up` holds the directory, or what the file has on its broker. The text names its
    process and the way out."""


class StateDirectory:
    """Held by one process at a time: the kernel lets go of the lock however that process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = ""
        self._lock = -1

    def acquire(self) -> dict[str, Any]:
        """Take the directory. Returns what the one before left in up.json: empty if there was none.

        Raises StateInUseError, or OSError when the directory cannot be made.
        """
        self._take()
        return self._read()

    def _take(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        ignore = self.path / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise StateInUseError(
                f"{self.path}: another queueworker up (process {holder}) works with this directory: "
                "stop it, or give this one its own with --state-dir"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def release(self) -> None:
        """Let go. up.json stays, as the last word."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def write(self, state: dict[str, Any]) -> None:
        """Replace up.json in one step, if it says something else. Raises OSError when it cannot."""
        text = json.dumps(state, indent=1)
        if not self._is_ours():  # somebody has cleaned up
            self.release()
            try:
                self._take()
            except StateInUseError as error:
                raise OSError(str(error)) from None
        if text == self._written and (self.path / "up.json").exists():
            return
        new = self.path / "up.json.new"
        new.write_text(text + "\n")
        new.replace(self.path / "up.json")
        self._written = text

    def _is_ours(self) -> bool:
        """Whether what others find there is the lock that we hold."""
        try:
            return self._lock >= 0 and os.path.samestat(os.fstat(self._lock), (self.path / "up.lock").stat())
        except FileNotFoundError:
            return False

    def _read(self) -> dict[str, Any]:
        try:
            state = json.loads((self.path / "up.json").read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return state if isinstance(state, dict) else {}
