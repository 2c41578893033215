"""Whose a cluster is: that of a run ends with the run, also of one that was killed; others are kept."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.commands import end
from e2e.locations import REPOSITORY, cache_root


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that made a cluster for itself. `lives` is false once its process has ended, however."""

    process: int
    clone: str
    lives: bool

    def __str__(self) -> str:
        state = "which runs" if self.lives else "which has ended"
        return f"process {self.process} in {self.clone}, {state}"


def _record(cluster: str) -> Path:
    return cache_root() / "owners" / f"{cluster}.json"


@contextmanager
def owned(cluster: str) -> Iterator[None]:
    """The cluster of this full name is this process's own inside the block.

    The kernel frees the lock on the record when the process ends, so that a number that another process has
    by then misleads nobody. The record outlives the block: see `left`. `cluster` must be a name of this
    run only.
    """
    record = _record(cluster)
    record.parent.mkdir(parents=True, exist_ok=True)
    # Under its name only once it is locked and whole: nobody is to see one without an owner.
    fresh = record.with_suffix(".new")
    with fresh.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        json.dump({"process": os.getpid(), "clone": str(REPOSITORY)}, handle)
        handle.flush()
        fresh.replace(record)
        yield


def owner_of(cluster: str) -> Owner | None:
    """The run that made the cluster for itself; None for one that is kept on purpose."""
    try:
        with _record(cluster).open() as handle:
            known = json.load(handle)
            return Owner(int(known["process"]), str(known["clone"]), not _free(handle.fileno()))
    except FileNotFoundError:
        return None


def left() -> list[str]:
    """The clusters of runs that have ended, by full name. Also of runs that removed theirs: an engine that
    was asked for a node may make it just after all were removed."""
    records = (cache_root() / "owners").glob("*.json")
    found = ((path.stem, owner_of(path.stem)) for path in sorted(records))
    return [name for name, owner in found if owner is not None and not owner.lives]


def forget(cluster: str) -> None:
    """What is of this name from now on is kept on purpose."""
    with suppress(FileNotFoundError):
        _record(cluster).unlink()


def end_makers(cluster: str) -> None:
    """End each kind that still makes or changes the cluster of a run that has ended, with what it started."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().split(b"\0")
            # It leads a group of its own: see `commands.run`.
            if Path(os.fsdecode(command[0])).name == "kind" and cluster.encode() in command:
                end(int(entry.name), signal.SIGKILL)


def _free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True
