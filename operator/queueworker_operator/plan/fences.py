"""Fences that a QueueWorker sets on the broker: whose they are, since when, and when they may be forgotten.

A fence outlives the revision that it stops, since a worker of it may come back that was cut off or stood
still when the last one was seen. It is forgotten when the revision is gone, the broker has heard of no worker
of it, it owns nothing, and `spec.rollback.keepFencesSeconds` have gone by; or with the resource. What that
leaves open: a worker that comes back later still takes work, as any worker of its version would.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queueworker_operator.plan.queue_facts import QueueFacts

_SINCE = " since "


@dataclass(frozen=True, slots=True)
class Mark:
    """Begins the reason of every fence that one QueueWorker sets, so that it lifts no other."""

    text: str

    @classmethod
    def of(cls, namespace: str, name: str) -> Mark:
        return cls(f"QueueWorker {namespace or 'default'}/{name}: ")

    def reason(self, why: str, now: datetime) -> str:
        """What people read on the broker, and we read back."""
        return f"{self.text}{why},{_SINCE}{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    def set(self, queue: QueueFacts, revision: str) -> bool:
        """Whether this QueueWorker fenced that revision."""
        return queue.fences.get(revision, "").startswith(self.text)

    def ours(self, queue: QueueFacts) -> list[str]:
        """Every revision that this QueueWorker fenced."""
        return sorted(name for name in queue.fences if self.set(queue, name))

    def forgettable(
        self, queue: QueueFacts, there: Collection[str], kept: timedelta, now: datetime
    ) -> list[str]:
        """Whose fences have done their work. `there` are revisions that exist or may come. A fence of which
        nobody knows since when it is there stays."""
        return [
            name
            for name in self.ours(queue)
            if name not in there
            and not queue.of(name).capable
            and not queue.outstanding(name)
            and (since := _since(queue.fences[name])) is not None
            and now - since >= kept
        ]


def _since(reason: str) -> datetime | None:
    _, found, text = reason.rpartition(_SINCE)
    if not found:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
