"""CPU and memory of a process and everything below it, from /proc (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """`cpu`: seconds, user and system, with children that have ended. `memory`: bytes that no file backs."""

    cpu: float
    memory: int
    processes: int


def family(root: int) -> list[int]:
    """`root` and its descendants that live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def usage(roots: list[int]) -> Usage:
    """What the families of `roots` have used. Processes that end meanwhile count by way of their parents."""
    cpu, memory, processes = 0.0, 0, 0
    for root in roots:
        for pid in family(root):
            fields = _stat(pid)
            if fields:
                cpu += sum(map(int, fields[11:15])) * _TICK
                memory += _anonymous(pid)
                processes += 1
    return Usage(cpu, memory, processes)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (the name before it may hold anything)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _anonymous(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
