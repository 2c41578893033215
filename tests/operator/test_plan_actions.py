"""What the planner does, one row a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pytest

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import InvalidQueueWorker, QueueWorker
from queueworker_operator.plan.facts import Facts, Refusal, Workers
from queueworker_operator.plan.planner import BLOCKED, plan, seconds_until_next
from tests.operator.plan_words import steps
from tests.operator.resources import (
    BACK,
    FIRST,
    GONE,
    IDLE,
    MID,
    MID_3,
    NOBODY_LOOKED,
    ROLL,
    START,
    V1,
    V2,
    V3,
    after,
    down,
    facts,
    invalid,
    on,
    reachable,
    seen,
    wants,
    worker,
)


@dataclass
class Row:
    sentence: str
    resource: QueueWorker | InvalidQueueWorker
    facts: Facts
    steps: list[str]
    stage: Stage | None
    now: datetime = START


ROWS = [
    Row(
        "the first revision is created at its full number, after the finalizer",
        FIRST,
        facts(FIRST),
        ["finalizer", "create v1 at 3"],
        Stage.VALIDATING,
    ),
    Row(
        "an unknown broker starts nothing",
        FIRST,
        facts(FIRST, check=NOBODY_LOOKED),
        ["finalizer"],
        Stage.VALIDATING,
    ),
    Row(
        "a check of another broker than the spec's starts nothing",
        FIRST,
        facts(
            FIRST,
            check=reachable(worker(spec__broker__redis__url="redis://other")),
        ),
        ["finalizer"],
        Stage.VALIDATING,
    ),
    Row(
        "a check older than 15 seconds starts nothing",
        FIRST,
        Facts(Workers((), after(16)), facts(FIRST).broker, facts(FIRST).queue),
        ["finalizer"],
        Stage.VALIDATING,
        after(16),
    ),
    Row(
        "workers seen longer than 15 seconds ago: nothing is done and nothing is said",
        MID,
        facts(MID, seen(V1, 4), seen(V2, 4)),
        [],
        Stage.PROMOTING,
        after(16),
    ),
    Row(
        "a change creates the new revision at the full number and takes nothing from the old",
        ROLL,
        facts(ROLL, seen(V1, 4)),
        ["create v2 at 4"],
        Stage.VALIDATING,
    ),
    Row(
        "a change on an unreachable broker waits, the old revision untouched",
        ROLL,
        down(ROLL, seen(V1, 4)),
        [],
        Stage.VALIDATING,
    ),
    Row(
        "three new workers available: three old ones are drained",
        MID,
        facts(MID, seen(V1, 4), seen(V2, 4, 3)),
        ["v1 to 1"],
        Stage.PROMOTING,
    ),
    Row(
        "all new workers available: the old revision goes to 0",
        MID,
        facts(MID, seen(V1, 1, alive=4), seen(V2, 4)),
        ["v1 to 0"],
        Stage.PROMOTING,
    ),
    Row(
        "an old worker is still stopping: no promotion yet",
        MID,
        facts(MID, seen(V1, 0, alive=1), seen(V2, 4)),
        [],
        Stage.PROMOTING,
    ),
    Row(
        "the controller has not caught up with the 0: no promotion yet",
        MID,
        facts(MID, seen(V1, 0, caught_up=False), seen(V2, 4)),
        [],
        Stage.PROMOTING,
    ),
    Row(
        "the old revision is empty: the new one is stable and the old one is deleted",
        MID,
        facts(MID, seen(V1, 0), seen(V2, 4)),
        ["delete v1"],
        Stage.IDLE,
    ),
    Row(
        "the old revision is empty but the broker is not seen: no promotion",
        MID,
        facts(MID, seen(V1, 0), seen(V2, 4), check=NOBODY_LOOKED),
        [],
        Stage.PROMOTING,
    ),
    Row(
        "a new worker dies late: the old revision takes its share back",
        MID,
        facts(MID, seen(V1, 0, alive=1), seen(V2, 4, 3)),
        ["v1 to 1"],
        Stage.PROMOTING,
    ),
    Row(
        "new workers that were told to stop but are still counted take nothing over",
        MID,
        facts(MID, seen(V1, 2), seen(V2, 2, available=4, alive=4)),
        ["v2 to 4"],
        Stage.PROMOTING,
    ),
    Row(
        "the broker is lost half way: nothing more is drained",
        MID,
        down(MID, seen(V1, 3), seen(V2, 4, 2)),
        [],
        Stage.PROMOTING,
    ),
    Row(
        "another change half way: the target that never served goes first, before the newest is created",
        MID_3,
        facts(MID_3, seen(V1, 4, created=1), seen(V2, 4, 0, created=2)),
        ["v2 to 0", "create v3 at 4"],
        Stage.VALIDATING,
    ),
    Row(
        "another change half way: superseded workers that serve are kept while they are needed",
        MID_3,
        facts(MID_3, seen(V1, 1, created=1), seen(V2, 4, 3, created=2)),
        ["v2 to 3", "create v3 at 4"],
        Stage.VALIDATING,
    ),
    Row(
        "the newest serves in part: the superseded are drained before the stable",
        wants("demo:v3", 4, on("v1", "v3")),
        facts(MID_3, seen(V1, 1, created=1), seen(V2, 3, created=2), seen(V3, 4, 2, created=3)),
        ["v2 to 1"],
        Stage.PROMOTING,
    ),
    Row(
        "a superseded revision without workers is deleted at once, the stable one is kept",
        wants("demo:v3", 4, on("v1", "v3")),
        facts(MID_3, seen(V1, 4, created=1), seen(V2, 0, created=2), seen(V3, 4, 0, created=3)),
        ["delete v2"],
        Stage.PROMOTING,
    ),
    Row(
        "back half way: the existing revision is scaled up again and the other gives way as far as it serves",
        BACK,
        facts(BACK, seen(V1, 2, created=1), seen(V2, 4, 2, created=2)),
        ["fence v2", "v2 to 2", "v1 to 4"],
        Stage.STOP_RECEIVING,
    ),
    Row(
        "back half way without a broker: the stable one is restored, and nothing is taken away",
        BACK,
        down(BACK, seen(V1, 2, created=1), seen(V2, 4, 0, created=2)),
        ["v1 to 4"],
        Stage.STOP_RECEIVING,
    ),
    Row(
        "all is as wanted: nothing is done",
        IDLE,
        facts(IDLE, seen(V1, 4)),
        [],
        Stage.IDLE,
    ),
    Row(
        "more replicas apply at once, even while the broker is unreachable",
        wants("demo:v1", 6, on("v1")),
        down(IDLE, seen(V1, 4)),
        ["v1 to 6"],
        Stage.IDLE,
    ),
    Row(
        "more replicas while a change waits for the broker: the stable revision grows",
        wants("demo:v2", 6, on("v1")),
        down(IDLE, seen(V1, 4)),
        ["v1 to 6"],
        Stage.VALIDATING,
    ),
    Row(
        "fewer replicas half way apply to both at once",
        wants("demo:v2", 2, on("v1", "v2")),
        facts(IDLE, seen(V1, 4), seen(V2, 4, 1)),
        ["v1 to 1", "v2 to 2"],
        Stage.PROMOTING,
    ),
    Row(
        "no replicas: before the old revision is deleted, the registry has to be proven empty",
        wants("demo:v2", 0, on("v1", "v2")),
        facts(IDLE, seen(V1, 0), seen(V2, 0)),
        ["fence v1"],
        Stage.STOP_RECEIVING,
    ),
    Row(
        "the stable Deployment was deleted by hand: it is created again, also without a broker",
        IDLE,
        down(IDLE),
        ["create v1 at 4"],
        Stage.IDLE,
    ),
    Row(
        "somebody scaled the Deployment by hand: the number is put right",
        IDLE,
        facts(IDLE, seen(V1, 9)),
        ["v1 to 4"],
        Stage.IDLE,
    ),
    Row(
        "a child that lost its owner is adopted",
        IDLE,
        facts(IDLE, seen(V1, 4, owned=False)),
        ["adopt v1"],
        Stage.IDLE,
    ),
    Row(
        "a Deployment of somebody else under the target's name is not touched",
        ROLL,
        facts(ROLL, seen(V1, 4), seen(V2, 9, conflict="owned by StatefulSet x.")),
        [],
        Stage.VALIDATING,
    ),
    Row(
        "a refused template is tried again, the old revision untouched",
        ROLL,
        facts(ROLL, seen(V1, 4), refusals=(Refusal(V2.name, "quota exceeded."),)),
        ["create v2 at 4"],
        Stage.VALIDATING,
    ),
    Row(
        "the status was lost: what serves is kept until the target is available",
        wants("demo:v2", 4),
        facts(IDLE, seen(V1, 4), seen(V2, 4, 1)),
        ["v1 to 3"],
        Stage.PROMOTING,
    ),
    Row(
        "an invalid spec leaves all workers alone",
        invalid(spec__prefetch=1, status=on("v1").to_body()),
        facts(IDLE, seen(V1, 4), seen(V2, 2)),
        [],
        Stage.IDLE,
    ),
    Row(
        "deletion ends when no worker is alive, whatever the broker says",
        wants("demo:v1", 4, on("v1"), **GONE),
        down(IDLE, seen(V1, 0)),
        ["let go"],
        None,
    ),
    Row(
        "deletion also removes an empty child without an owner",
        wants("demo:v1", 4, on("v1"), **GONE),
        facts(IDLE, seen(V1, 0, owned=False)),
        ["delete v1", "let go"],
        None,
    ),
    Row(
        "an invalid resource can be deleted",
        invalid(spec__prefetch=1, **GONE),
        facts(IDLE),
        ["let go"],
        None,
    ),
    Row(
        "a resource that others still hold, after our finalizer is gone, is left to them",
        wants("demo:v1", 4, on("v1"), metadata__finalizers=["else/finalizer"], **GONE),
        facts(IDLE, seen(V1, 4)),
        [],
        None,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_plan(row: Row) -> None:
    decided = plan(row.resource, row.facts, row.now)
    assert steps(decided) == row.steps
    if row.stage is not None:
        assert decided.status.rollout is not None
        assert decided.status.rollout.stage is row.stage


def test_a_refusal_is_told_at_once_and_then_tried_with_a_pause() -> None:
    refused = Refusal(V2.name, "quota exceeded.")

    def pause(*known: Refusal) -> float:
        world = facts(ROLL, seen(V1, 4), refusals=known)
        return seconds_until_next(plan(ROLL, world, START), world, refused)

    assert pause() == 0
    assert pause(Refusal(V3.name, "quota exceeded.")) == 0
    assert pause(refused) == BLOCKED
