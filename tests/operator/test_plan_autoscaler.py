"""An autoscaler that is aimed at a Deployment of a QueueWorker: it is told, and nobody fights with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.plan.actions import EmitEvent
from queueworker_operator.plan.autoscaler import PUT_BACK_EVERY
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.plan_words import steps
from tests.operator.resources import START, V1, V2, after, facts, on, queue, seen, wants

HPA = "a HorizontalPodAutoscaler"
IDLE = wants("demo:v1", 2, on("v1"))
#: Three, where two are wanted.
SCALED = seen(V1, 3, scaled_by=HPA)

ROWS: list[tuple[str, QueueWorker, tuple[RevisionFacts, ...], list[str], bool]] = [
    ("what an autoscaler set is left as it is", IDLE, (SCALED,), [], True),
    ("what a person set is put back", IDLE, (seen(V1, 3),), ["v1 to 2"], False),
    ("a number that both agree on is nothing to tell", IDLE, (seen(V1, 2, scaled_by=HPA),), [], False),
    (
        "in a change the old revision is not shrunk by one, and the rest goes on",
        wants("demo:v2", 2, on("v1", "v2")),
        (seen(V1, 2, created=1, scaled_by=HPA), seen(V2, 2, 1, created=2)),
        [],
        True,
    ),
    (
        "a revision that is to stop altogether does: there it is left alone by the autoscaler",
        wants("demo:v2", 2, on("v1", "v2")),
        (seen(V1, 2, created=1, scaled_by=HPA), seen(V2, 2, created=2)),
        ["v1 to 0"],
        False,
    ),
    (
        "on the way back its number is left, and what is waited for is still told",
        wants("demo:v1", 2, on("v1", "v2")),
        (replace(SCALED, created=1), seen(V2, 2, created=2)),
        ["fence v2", "v2 to 1"],
        False,
    ),
]


@pytest.mark.parametrize(
    ("sentence", "resource", "revisions", "wanted", "told"), ROWS, ids=[row[0] for row in ROWS]
)
def test_who_gives_way(
    sentence: str,
    resource: QueueWorker,
    revisions: tuple[RevisionFacts, ...],
    wanted: list[str],
    told: bool,
) -> None:
    decided = plan(resource, facts(resource, *revisions), START)
    assert steps(decided) == wanted
    stalled = decided.status.condition("Stalled")
    assert (stalled is not None and stalled.reason == "ForeignAutoscaler") == told


def test_to_no_worker_at_all_nothing_gives_way() -> None:
    resource = wants("demo:v1", 0, on("v1", "v1", Stage.RETIRE))
    ours = "QueueWorker workers/stats-usage: it leaves: no worker is wanted"
    shown = queue(resource, fences={V1.name: ours}, live={V1.name: LiveWorkers(3, 0)})
    assert steps(plan(resource, facts(resource, SCALED, reading=shown), START)) == ["v1 to 0"]


def test_it_is_told_once_with_the_way_out_and_tried_again_now_and_then() -> None:
    first = plan(IDLE, facts(IDLE, SCALED), START)
    stalled = first.status.condition("Stalled")
    assert stalled is not None
    for word in (V1.deployment, HPA, "kind: QueueWorker, name: stats-usage"):
        assert word in stalled.message
    ready = first.status.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "ForeignAutoscaler")
    told = [action.reason for action in first.actions if isinstance(action, EmitEvent)]
    assert told == ["ForeignAutoscaler"], "and no Scaled: nothing was"

    resource = replace(IDLE, status=first.status)
    soon = after(PUT_BACK_EVERY.seconds - 1)
    assert plan(resource, facts(resource, SCALED, now=soon), soon).actions == ()
    later = after(PUT_BACK_EVERY.seconds)
    assert steps(plan(resource, facts(resource, SCALED, now=later), later)) == ["v1 to 2"]

    over = plan(resource, facts(resource, seen(V1, 2), now=soon), soon).status
    assert over.condition("Stalled") is None
