"""How often workers of a revision fell, over all looks at it.

One look sees the places that are there: a container of a pod that is alive, a process that has announced
itself. A process that fell is away until another one in its place announces itself, and a pod that fell may
be replaced. So the status keeps what each place had, and one that is not seen keeps what it is known to have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from queueworker_operator.api.types import (
    MOST_PLACES,
    FallenStatus,
    QueueWorkerStatus,
    RevisionStatus,
    whole_seconds,
)
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.queue_facts import QueueFacts, Restarts, Unknown, together

_LONGEST = 512


def with_restarts(
    revisions: Iterable[RevisionFacts], queue: QueueFacts | Unknown | None, before: QueueWorkerStatus
) -> tuple[RevisionFacts, ...]:
    """The revisions with all restarts of their workers: those that the cluster or the local host tells, those
    that the broker's list of workers tells, and those that the status kept."""
    rows = {row.name: row for row in before.revisions}

    def of(r: RevisionFacts) -> Restarts | None:
        live = queue.of(r.name).restarts if isinstance(queue, QueueFacts) else None
        seen = together(r.restarts, live)
        return added(rows[r.name], seen) if r.name in rows else seen

    return tuple(replace(r, restarts=of(r)) for r in revisions)


def added(row: RevisionStatus, seen: Restarts | None) -> Restarts | None:
    """What the status knows and what is seen now. The number is never less than in the status: exact as long
    as the status has room for every place, and too low after that, never too high."""
    if row.restarted_at is None:
        return seen
    kept = {one.place: one.restarts for one in row.fallen}
    if seen is None:
        return Restarts(row.restarts, row.restarted_at, row.restart_message or "", tuple(kept.items()))
    there = dict(seen.places)
    places = {place: max(kept.get(place, 0), there.get(place, 0)) for place in (*there, *kept)}
    # What is told apart by nobody is in no place.
    nameless = seen.number - sum(there.values())
    number = max(row.restarts, sum(places.values()) + nameless)
    grew = number > row.restarts
    return Restarts(
        number,
        max(row.restarted_at, seen.last_at),
        seen.message if grew else row.restart_message or seen.message,
        tuple(places.items()),
    )


def shown_restarts(restarts: Restarts | None, row: RevisionStatus | None) -> dict[str, Any]:
    """Their part of a row of the status. While the number stays, all of it does: a reading tells the time of
    a restart a little differently each time."""
    if restarts is None:
        return {"restarts": row.restarts if row else 0}
    kept = sorted(restarts.places[:MOST_PLACES])
    same = row is not None and row.restarts == restarts.number and row.restarted_at is not None
    return {
        "restarts": restarts.number,
        "restarted_at": row.restarted_at if row and same else whole_seconds(restarts.last_at),
        "restart_message": restarts.message[:_LONGEST],
        "fallen": tuple(FallenStatus(place=place, restarts=number) for place, number in kept),
    }
