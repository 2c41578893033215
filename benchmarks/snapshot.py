"""Everything that is counted, at one moment: the workers, the server, and the whole machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.site import Site
from benchmarks.tree import Usage, usage

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Snapshot:
    """CPU in seconds, memory in bytes. `machine_busy` is the CPU time of all processes of the machine."""

    clients: Usage
    server_cpu: float
    server_memory: int
    requests: int
    commands: int
    bytes_in: int
    bytes_out: int
    harness_cpu: float
    machine_busy: float
    machine_total: float


def snapshot(site: Site, sends: Sequence[str], pids: list[int]) -> Snapshot:
    """`sends` are the commands that count as requests."""
    server = site.counters(sends)
    busy, total = _machine()
    own = os.times()
    return Snapshot(
        clients=usage(pids),
        server_cpu=server.cpu,
        server_memory=server.memory,
        requests=server.requests,
        commands=server.commands,
        bytes_in=server.bytes_in,
        bytes_out=server.bytes_out,
        harness_cpu=own.user + own.system,
        machine_busy=busy,
        machine_total=total,
    )


def others(before: Snapshot, after: Snapshot) -> float:
    """The part of the machine's CPU time that went to processes outside the benchmark, 0 to 1."""
    total = after.machine_total - before.machine_total
    busy = after.machine_busy - before.machine_busy
    own = (
        (after.clients.cpu - before.clients.cpu)
        + (after.server_cpu - before.server_cpu)
        + (after.harness_cpu - before.harness_cpu)
    )
    return min(1.0, max(0.0, busy - own) / total) if total > 0 else 0.0


def _machine() -> tuple[float, float]:
    """Busy and all CPU seconds since boot, over all cores."""
    fields = [int(word) * _TICK for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)
