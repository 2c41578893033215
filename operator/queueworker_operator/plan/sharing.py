"""Revisions that more than one QueueWorker has: the same content on the same queue has the same name, and a
fence on it stops the workers of both."""

from __future__ import annotations

from collections.abc import Iterable

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
