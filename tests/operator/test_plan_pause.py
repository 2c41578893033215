"""A change that is paused: nothing goes forward, everything else goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queueworker_operator.api.types import QueueWorker
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from tests.operator.plan_words import steps
from tests.operator.resources import GONE, START, V1, V2, after, facts, on, seen, wants

PAUSED = {"spec__paused": True}
HALF_WAY = (seen(V1, 3, created=1), seen(V2, 4, 3, created=2))

ROWS: list[tuple[str, QueueWorker, tuple[RevisionFacts, ...], list[str]]] = [
    ("the new revision is not created", wants("demo:v2", 4, on("v1"), **PAUSED), (seen(V1, 4),), []),
    ("half way, nothing more is drained", wants("demo:v2", 4, on("v1", "v2"), **PAUSED), HALF_WAY, []),
    (
        "at the end, nothing is promoted",
        wants("demo:v2", 4, on("v1", "v2"), **PAUSED),
        (seen(V1, 0, created=1), seen(V2, 4, created=2)),
        [],
    ),
    ("without the pause it goes on", wants("demo:v2", 4, on("v1", "v2")), HALF_WAY, ["v1 to 1"]),
    (
        "the way back is not stopped",
        wants("demo:v1", 4, on("v1", "v2"), **PAUSED),
        HALF_WAY,
        ["fence v2", "v2 to 1", "v1 to 4"],
    ),
    (
        "a new number applies to the stable revision",
        wants("demo:v2", 6, on("v1"), **PAUSED),
        (seen(V1, 4),),
        ["v1 to 6"],
    ),
    ("what is settled stays", wants("demo:v1", 4, on("v1"), **PAUSED), (seen(V1, 4),), []),
    (
        "a deletion is not stopped",
        wants("demo:v1", 4, on("v1"), **PAUSED, **GONE),
        (seen(V1, 4),),
        ["fence v1"],
    ),
]


@pytest.mark.parametrize(("sentence", "resource", "revisions", "wanted"), ROWS, ids=[row[0] for row in ROWS])
def test_pause(
    sentence: str, resource: QueueWorker, revisions: tuple[RevisionFacts, ...], wanted: list[str]
) -> None:
    assert steps(plan(resource, facts(resource, *revisions), START)) == wanted


def test_a_pause_is_said_and_its_time_does_not_count() -> None:
    going = wants("demo:v2", 4, on("v1", "v2"))
    first = plan(going, facts(going, *HALF_WAY), START).status
    resource = wants("demo:v2", 4, first, **PAUSED)
    later = after(3600)
    paused = plan(resource, facts(resource, *HALF_WAY, now=later), later).status
    ready = paused.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Paused")
    assert paused.condition("Reconciling") is None
    assert paused.condition("Stalled") is None

    again = plan(replace(resource, status=paused), facts(resource, *HALF_WAY, now=after(7200)), after(7200))
    assert again.status == paused, "nothing is written while nothing happens"

    resumed = replace(going, status=paused)
    status = plan(resumed, facts(resumed, *HALF_WAY, now=after(7300)), after(7300)).status
    assert status.condition("Stalled") is None
    assert status.condition("Reconciling") is not None
