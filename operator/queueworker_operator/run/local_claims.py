"""Which `queueworker up` works for a file on a broker: one, whatever state directory each is given. Two would
both run all of its workers, and take the rollouts of its resources from each other."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from queueworker_operator.run.local_state import StateInUseError


class Claims:
    """Held by one process at a time for a file and a broker: the kernel lets go of them however it ends. A
    broker of one's own needs none."""

    def __init__(self, file: Path, state_dir: Path) -> None:
        self._file, self._state_dir = file.resolve(), state_dir
        #: By the broker's URL.
        self._held: dict[str, int] = {}

    def take(self, url: str) -> None:
        """Claim that broker for the file, once. Raises StateInUseError, which names who has it."""
        if url in self._held:
            return
        lock = self._open(f"{hashlib.sha256(url.encode()).hexdigest()[:12]}.lock")
        if lock is None:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = os.read(lock, 4096).decode(errors="replace").splitlines()
            os.close(lock)
            # Between its lock and its name it has written nothing yet.
            pid, where = told if len(told) == 2 else ("unknown", "a directory that it has not named yet")
            raise StateInUseError(
                f"{self._file}: another queueworker up (process {pid}, state in {where}) runs the workers of "
                "this file on its broker: edit the file and that one follows, or stop it first, or give this "
                "one a broker of its own by --broker, such as --broker embedded"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n{self._state_dir}\n".encode(), 0)
        self._held[url] = lock

    def release(self) -> None:
        """Let go of all."""
        for lock in self._held.values():
            os.close(lock)
        self._held.clear()

    def _open(self, name: str) -> int | None:
        """The file of a claim: beside the file, else where this user may write; None where nowhere."""
        here = self._file.parent / ".queueworker"
        path = hashlib.sha256(str(self._file).encode()).hexdigest()[:12]
        for place, prefix in (
            (here, self._file.name),
            (Path(tempfile.gettempdir(), f"queueworker-{os.getuid()}"), path),
        ):
            try:
                place.mkdir(mode=0o755, exist_ok=True)
                ignore = place / ".gitignore"
                if not ignore.exists():
                    ignore.write_text("*\n")
                return os.open(place / f"{prefix}.{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError:
                continue
        return None
