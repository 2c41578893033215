"""What is told of a resource in local mode: on the terminal, and in up.json."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from queueworker_operator.act.processes import ProcessGroup
from queueworker_operator.api.types import QueueWorkerStatus

#: Events that are kept for up.json.
KEPT_EVENTS = 50


@dataclass(frozen=True, slots=True)
class Event:
    reason: str
    type: str
    message: str


class Told:
    """Events of one resource, each once, and changes of its conditions."""

    def __init__(self, name: str, say: Callable[[str, str], None]) -> None:
        self._name, self._say = name, say
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._posted: set[str] = set()

    def post(self, event: Event, key: str) -> None:
        """Tell it, unless one with this key was told before."""
        if key in self._posted:
            return
        self._posted.add(key)
        self._events.append(event)
        self._say(self._name, f"{event.reason}: {event.message}")

    def conditions(self, before: QueueWorkerStatus, after: QueueWorkerStatus) -> None:
        """Tell what became of Ready, unless an event said the same."""
        said = {event.message for event in self._events}
        for new in after.conditions:
            old = before.condition(new.type)
            changed = old is None or (old.status, old.reason) != (new.status, new.reason)
            if changed and new.type == "Ready" and new.message not in said:
                self._say(self._name, f"{new.type}={new.status} {new.reason}: {new.message}")

    def events(self) -> list[dict[str, str]]:
        """The last ones, for up.json."""
        return [asdict(event) for event in self._events]


def processes_of(groups: Iterable[ProcessGroup]) -> list[dict[str, Any]]:
    """Every process of these groups that runs, for up.json."""
    return [
        {
            "revision": group.revision.name,
            "index": worker.index,
            "pid": worker.pid,
            "admin_port": worker.admin_port,
            "ready": worker.ready,
            "stopping": worker.stopping,
            "started": worker.started,
        }
        for group in groups
        for worker in group.workers
        if worker.pid is not None
    ]
