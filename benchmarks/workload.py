"""What is run: which handler, how many processes, coroutines and prefetched messages, which payloads, and on
a server with which settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

KINDS = ("null", "io", "cpu", "mixed")
_SHAPE = re.compile(r"(\d+)p x (\d+)c x (\d+)f")


@dataclass(frozen=True)
class Workload:
    """`messages` are published before the worker starts, or at `rate` a second once it waits."""

    processes: int = 1
    coroutines: int = 1
    prefetch: int = 100
    kind: str = "null"
    size: int = 100
    messages: int = 100_000
    rate: float = 0.0
    appendonly: bool = False
    #: Entries in the processing list before the run.
    history: int = 0
    hooks: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"workload {self.shape}: handler {self.kind!r} is none of {', '.join(KINDS)}")

    @property
    def shape(self) -> str:
        """`Np x Mc x Ff`: processes, coroutines, prefetch."""
        return f"{self.processes}p x {self.coroutines}c x {self.prefetch}f"

    @property
    def name(self) -> str:
        """Shape and conditions."""
        return f"{self.shape}, {self.conditions}"

    @property
    def conditions(self) -> str:
        """Handler, payload and whatever is not as usual."""
        parts = [self.kind, f"{self.size:,} B"]
        if self.rate:
            parts.append(f"{self.rate:g}/s")
        if self.appendonly:
            parts.append("appendfsync everysec")
        if self.history:
            parts.append(f"{self.history:,} in processing")
        if self.hooks:
            parts.append("3 hooks")
        return ", ".join(parts)

    def scaled(self, factor: float) -> Workload:
        """The same with fewer or more messages, 100 at least."""
        return replace(self, messages=max(min(100, self.messages), int(self.messages * factor)))


def shaped(text: str) -> Workload:
    """The workload of a shape such as `2p x 4c x 100f`. Raises ValueError."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a shape like '2p x 4c x 100f'")
    processes, coroutines, prefetch = map(int, found.groups())
    return Workload(processes, coroutines, prefetch)
