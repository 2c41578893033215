"""What a rule of the resource is: in CEL for the API server, and in Python for everybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queueworker_operator.api.entries import Entries
from queueworker_operator.api.types import QueueWorkerSpec


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule about one object. `holds` sees the resource's name and its parsed spec."""

    id: str
    #: Where in the schema the CEL rule is evaluated; empty is the root.
    at: str
    cel: str
    message: str
    #: The field that is to blame, as a path from the root.
    blames: str
    holds: Callable[[str, QueueWorkerSpec], bool]
    #: Of a rule about each entry of a list, which is to blame: those that break it.
    entries: Entries | None = None

    def broken_at(self, name: str, spec: QueueWorkerSpec) -> list[str]:
        """The fields that are to blame; none where the rule is kept."""
        if self.entries is not None:
            return [f"{self.blames}[{index}]" for index in self.entries(spec)]
        return [] if self.holds(name, spec) else [self.blames]


@dataclass(frozen=True, slots=True)
class Transition:
    """One rule about a change. `holds` sees the old and the new spec."""

    id: str
    at: str
    cel: str
    message: str
    blames: str
    holds: Callable[[QueueWorkerSpec, QueueWorkerSpec], bool]
