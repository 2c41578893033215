"""Whose workers the broker lists. Revisions that more than one QueueWorker has: the same content on the same
queue has the same name, and a fence on it stops the workers of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queueworker_operator.api.kept import Kept
from queueworker_operator.api.types import QueueWorkerStatus
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.queue_facts import QueueFacts, Unknown


def shared_of(
    revisions: Iterable[RevisionFacts], named: frozenset[str], queue: QueueFacts | Unknown
) -> frozenset[str]:
    """Those that another QueueWorker has, too (`named`), with live workers that are not ours: they recover
    what ours leave. Ours that were told to stop may be off the broker's list already; nothing is decided anew
    then."""
    if isinstance(queue, Unknown):
        return frozenset()
    return frozenset(
        r.name
        for r in revisions
        if r.name in named
        and (not r.desired or queue.of(r.name).capable > r.alive)
        and not queue.is_fenced(r.name)
    )


def silent_of(
    target: str,
    status: QueueWorkerStatus,
    kept: Iterable[Kept] | None,
    revisions: Sequence[RevisionFacts],
    named: frozenset[str],
) -> frozenset[str]:
    """Revisions of ours that have no worker and that nobody else has (`named`). What the broker lists under
    their names was killed and has not fallen silent yet: it recovers nothing any more."""
    served = (status.stable.revision if status.stable else None, status.previous)
    ours = {target, *(r.name for r in revisions), *(one.revision.name for one in kept or ())}
    ours |= {name for name in served if name}
    return frozenset(ours - {r.name for r in revisions if r.alive} - named)
