"""Ends a run that does not get on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

#: Seconds between two lines on what goes on.
TELL = 5.0


class StuckError(Exception):
    """A run was ended: says what it did and what it saw last."""


@dataclass(frozen=True)
class Limits:
    """In seconds: without any progress, and for everything that one run does."""

    stall: float = 60.0
    total: float = 900.0


class Watchdog:
    """Of one run. `folder` is where its processes write their logs, `clock` is monotonic seconds. `tell` gets
    a line of progress every five seconds."""

    def __init__(
        self,
        limits: Limits,
        what: str,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits, self._what, self._folder, self._clock = limits, what, folder, clock
        self._tell = tell
        self._began = self._moved = self._told = clock()
        self._seen: tuple[str, int] = ("", 0)

    def look(self, doing: str, count: int = 0) -> None:
        """Say what goes on. A new `doing` or `count` is progress. Raises StuckError."""
        now = self._clock()
        if now - self._told >= TELL:
            self._told = now
            self._tell(f"{self._what}: {doing}, {count:,} ({now - self._began:.0f} s)")
        if (doing, count) != self._seen:
            self._seen, self._moved = (doing, count), now
        if now - self._moved > self._limits.stall:
            self.give_up(f"no progress for {self._limits.stall:g} s while {doing}, at {count:,} messages")
        if now - self._began > self._limits.total:
            self.give_up(f"not done after {self._limits.total:g} s, {doing}, at {count:,} messages")

    def alive(self, process: subprocess.Popen[bytes], name: str) -> None:
        """Raises StuckError if the process has ended."""
        if process.poll() is not None:
            self.give_up(f"{name} ended with code {process.returncode}")

    def give_up(self, why: str) -> NoReturn:
        logs = []
        for path in sorted(self._folder.glob("*.log")):
            lines = path.read_text("utf-8", "replace").strip().splitlines()[-4:]
            logs.append(f"; {path.name} ends: {' | '.join(lines)[-800:] or 'nothing'}")
        raise StuckError(f"{self._what}: {why}{''.join(logs)}")
