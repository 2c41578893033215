"""What a measured worker works against: a private server of one run, its counters, and its queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.workload import Workload


@dataclass(frozen=True)
class Counters:
    """Of the server since its start. CPU in seconds, memory in bytes. `requests` are those of clients,
    `commands` all that it executed or sent; see docs/performance.md."""

    cpu: float
    memory: int
    requests: int
    commands: int
    bytes_in: int
    bytes_out: int


class Site(Protocol):
    """One server that runs. Its questions are cheap enough for every few milliseconds."""

    @property
    def url(self) -> str: ...

    def prepare(self, workload: Workload, ours: bool) -> None:
        """Before anything is published: what the workload wants to be there, and our queue where one has to
        be made."""

    def counters(self, sends: Sequence[str]) -> Counters:
        """`sends` are the commands that count as requests, where the server tells them by name."""

    def clients(self) -> int:
        """Connections of others than this harness."""

    def booked(self, workload: Workload) -> tuple[int, int]:
        """Messages of ours that the broker has as done, and those that failed."""

    def hold_back(self, workload: Workload) -> None:
        """Keep the backlog of our queue from its workers until `let_go`."""

    def let_go(self, workload: Workload) -> None: ...


#: Opens the server on which one run of the workload is made.
OpenSite = Callable[[Workload], AbstractContextManager[Site]]
