"""The end of a resource: the guarded way for all of its revisions, or none of it. One row a sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from queueworker_operator.api.reasons import ConditionReason, EventReason, Stage
from queueworker_operator.api.types import InvalidQueueWorker, QueueWorker, RolloutStatus
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import BrokerVerdict, RevisionFacts
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.plan_words import steps
from tests.operator.resources import (
    GONE,
    NOBODY_LOOKED,
    OLD,
    START,
    V1,
    V2,
    after,
    broker,
    facts,
    invalid,
    on,
    queue,
    seen,
    stable_status,
    wants,
)

R = ConditionReason
MARK = "QueueWorker workers/stats-usage: "
OURS = f"{MARK}it leaves: its QueueWorker is deleted, since 2026-01-01T00:00:00Z"
DRAIN = wants("demo:v1", 2, on("v1"), **GONE)
ORPHAN = wants("demo:v1", 2, on("v1"), spec__deletion={"policy": "Orphan"}, **GONE)
BROKEN = invalid(spec__prefetch=1, status=on("v1").to_body(), **GONE)
BROKEN_ORPHAN = invalid(spec__prefetch=1, spec__deletion={"policy": "Orphan"}, **GONE)
SERVES = seen(V1, 2)
STOPPED = seen(V1, 0)
FENCED: dict[str, Any] = {"fences": {V1.name: OURS}, "live": {V1.name: LiveWorkers(2, 0)}}
BESIDE = {V2.name: LiveWorkers(1, 1)}


@dataclass
class Row:
    sentence: str
    resource: QueueWorker | InvalidQueueWorker
    revisions: tuple[RevisionFacts, ...]
    steps: list[str]
    stage: Stage | None = None
    #: The reason why it does not go on, as in the conditions.
    reason: ConditionReason | None = None
    reading: Any = field(default_factory=dict)
    verdict: BrokerVerdict = BrokerVerdict.REACHABLE
    shared: frozenset[str] = frozenset()
    unattached: int = 0


ROWS = [
    Row(
        "every revision is fenced first, and nobody is stopped",
        DRAIN,
        (SERVES, seen(V2, 1)),
        ["fence v1", "fence v2"],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
    ),
    Row(
        "one that still says that it receives is waited for",
        DRAIN,
        (SERVES,),
        [],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
        FENCED | {"live": {V1.name: LiveWorkers(2, 1)}},
    ),
    Row(
        "what they own is waited for",
        DRAIN,
        (SERVES,),
        ["recover"],
        Stage.DRAIN_OUTSTANDING,
        R.WORK_OUTSTANDING,
        FENCED | {"owned": 3, "owned_by": {V1.name: 3}},
    ),
    Row(
        "what is reserved and staged goes back to the queue",
        DRAIN,
        (SERVES,),
        ["recover", "return staged"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
        FENCED | {"reserved": 1, "staging": 1, "quiet_since": None},
    ),
    Row(
        "empty, and not for long enough",
        DRAIN,
        (SERVES,),
        [],
        Stage.VERIFY_REGISTRY_EMPTY,
        R.NOT_QUIET_YET,
        FENCED | {"quiet_since": START},
    ),
    Row("proven: all are stopped", DRAIN, (SERVES,), ["v1 to 0"], Stage.RETIRE, R.RETIRING, FENCED),
    Row(
        "others on the queue recover: the registry does not have to be empty",
        DRAIN,
        (SERVES,),
        ["v1 to 0"],
        Stage.RETIRE,
        R.RETIRING,
        FENCED | {"reserved": 5, "live": {**FENCED["live"], **BESIDE}, "quiet_since": None},
    ),
    Row(
        "the last one is still stopping",
        DRAIN,
        (seen(V1, 0, alive=1),),
        [],
        Stage.RETIRE,
        R.RETIRING,
        FENCED | {"live": {}},
    ),
    Row(
        "all have stopped: the fences go, those of earlier revisions too, and so does the resource",
        DRAIN,
        (STOPPED,),
        ["unfence v2", "unfence v1", "let go"],
        reading={"fences": {V1.name: OURS, V2.name: f"{MARK}it leaves for v1", "h1-x-p1": "by hand"}},
    ),
    Row(
        "no worker is left, something is reserved: the operator returns it first",
        DRAIN,
        (STOPPED,),
        ["recover"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
        {"reserved": 1, "quiet_since": None},
    ),
    Row(
        "a worker that the cluster does not know is listed: its fence stays for a while",
        DRAIN,
        (STOPPED,),
        [],
        Stage.RETIRE,
        R.WORKERS_LISTED,
        {"fences": {V1.name: OURS}, "live": {V1.name: LiveWorkers(1, 0)}},
    ),
    Row(
        "the broker is away: nobody is stopped",
        DRAIN,
        (SERVES,),
        [],
        Stage.STOP_RECEIVING,
        R.BROKER_UNREACHABLE,
        verdict=BrokerVerdict.CONNECTION_FAILED,
    ),
    Row(
        "the Secret is gone: nobody is stopped, and a person has to decide",
        DRAIN,
        (SERVES,),
        [],
        Stage.STOP_RECEIVING,
        R.SECRET_NOT_FOUND,
        verdict=BrokerVerdict.SECRET_NOT_FOUND,
    ),
    Row(
        "a namespace that goes: Secret and Deployments have vanished, so has the resource",
        DRAIN,
        (),
        ["let go"],
        verdict=BrokerVerdict.SECRET_NOT_FOUND,
    ),
    Row(
        "Deployments have vanished and their pods are still there: they are waited for",
        DRAIN,
        (),
        [],
        Stage.DELETING,
        R.DELETING,
        verdict=BrokerVerdict.SECRET_NOT_FOUND,
        unattached=2,
    ),
    Row("nobody could look at the queue yet", DRAIN, (), [], Stage.STOP_RECEIVING, None, NOBODY_LOOKED),
    Row(
        "an older worker has nothing to prove",
        wants("demo:old", 2, on("old"), spec__protocol="Legacy", **GONE),
        (seen(OLD, 2),),
        ["old to 0"],
        Stage.DELETING,
        R.DELETING,
        NOBODY_LOOKED,
    ),
    Row(
        "an older worker stops beside a revision that has to be proven",
        wants("demo:old", 2, on("old"), spec__protocol="Legacy", **GONE),
        (seen(OLD, 2), SERVES),
        ["fence v1", "old to 0"],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
    ),
    Row(
        "delayed work is made ready where older workers come next",
        wants("demo:old", 2, on("old"), spec__protocol="Legacy", **GONE),
        (SERVES,),
        ["recover", "promote delayed"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
        FENCED | {"delayed": 1},
    ),
    Row(
        "a killed worker of a revision before is listed until it falls silent, and recovers nothing",
        wants("demo:v1", 2, on("v1").model_copy(update={"previous": V2.name}), **GONE),
        (SERVES,),
        ["recover"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
        FENCED | {"live": {V1.name: LiveWorkers(2, 0), V2.name: LiveWorkers(1, 1)}, "reserved": 4},
    ),
    Row(
        "another QueueWorker has the same revision: a fence would stop that one, too",
        DRAIN,
        (SERVES,),
        ["v1 to 0"],
        Stage.DELETING,
        R.DELETING,
        {"live": {V1.name: LiveWorkers(4, 4)}},
        shared=frozenset({V1.name}),
    ),
    Row(
        "a shared revision is not fenced either when ours have left the list before they have ended",
        DRAIN,
        (seen(V1, 0, alive=2),),
        [],
        Stage.DELETING,
        R.DELETING,
        {"live": {V1.name: LiveWorkers(2, 2)}},
        shared=frozenset({V1.name}),
    ),
    Row(
        "another QueueWorker has the same revision: whether it has workers is seen in some seconds",
        DRAIN,
        (SERVES,),
        [],
        Stage.DELETING,
        R.DELETING,
        shared=frozenset({V1.name}),
    ),
    Row(
        "a fence that stops the workers of another QueueWorker is lifted at the end, whoever is listed",
        DRAIN,
        (STOPPED,),
        ["unfence v1", "let go"],
        reading=FENCED,
        shared=frozenset({V1.name}),
    ),
    Row(
        "another QueueWorker has the same revision and no live worker: nobody would recover",
        wants("demo:v1", 2, on("v1"), metadata__deletionTimestamp="2025-12-31T23:59:50Z"),
        (SERVES,),
        ["fence v1"],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
        shared=frozenset({V1.name}),
    ),
    Row(
        "an invalid spec names no broker: nobody is stopped",
        BROKEN,
        (SERVES,),
        [],
        Stage.DELETING,
        R.INVALID_SPEC,
    ),
    Row("an invalid spec without workers goes", BROKEN, (STOPPED,), ["let go"]),
    Row("an invalid spec may still say Orphan", BROKEN_ORPHAN, (SERVES,), ["orphan v1", "let go"]),
    Row("Orphan: the workers stay, and serve", ORPHAN, (SERVES,), ["orphan v1", "let go"]),
    Row(
        "Orphan in the middle of a drain lifts its fence, and none of a rollback",
        ORPHAN,
        (SERVES, seen(V2, 1)),
        ["unfence v1", "orphan v1", "orphan v2", "let go"],
        reading=FENCED | {"fences": {V1.name: OURS, V2.name: f"{MARK}it leaves for v1"}},
    ),
    Row(
        "Orphan needs no broker",
        ORPHAN,
        (SERVES,),
        ["orphan v1", "let go"],
        verdict=BrokerVerdict.CONNECTION_FAILED,
    ),
    Row("Orphan leaves out what has no owner", ORPHAN, (seen(V1, 2, owned=False),), ["let go"]),
    Row(
        "what the cluster has orphaned already is left alone",
        DRAIN,
        (seen(V1, 2, owned=False),),
        ["let go"],
    ),
    Row(
        "kubectl delete --cascade=orphan is Orphan",
        wants("demo:v1", 2, on("v1"), metadata__finalizers=["orphan", "queueworker.dev/drain"], **GONE),
        (SERVES,),
        ["orphan v1", "let go"],
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_ending(row: Row) -> None:
    decided = decide(row)
    assert steps(decided) == row.steps
    if row.stage is not None:
        status = decided.status
        assert status.rollout is not None
        assert status.rollout.stage is row.stage
        reconciling, stalled = status.condition("Reconciling"), status.condition("Stalled")
        said = stalled or reconciling
        assert said is not None
        assert row.reason is None or said.reason == row.reason, said
        ready = status.condition("Ready")
        assert ready is not None
        assert ready.reason == (stalled.reason if stalled else R.DELETING)


def decide(row: Row, **changes: Any) -> act.Plan:
    reading = row.reading
    valid = row.resource if isinstance(row.resource, QueueWorker) else DRAIN
    if isinstance(reading, dict):
        reading = queue(valid, *row.revisions, **reading)
    known = facts(
        valid,
        *row.revisions,
        check=broker(valid, row.verdict, "It says so."),
        reading=reading,
        unattached=row.unattached,
    )
    resource = dataclasses.replace(row.resource, **changes)
    return plan(resource, dataclasses.replace(known, shared=row.shared), START)


@pytest.mark.parametrize(
    "sentence",
    [
        "the broker is away: nobody is stopped",
        "the Secret is gone: nobody is stopped, and a person has to decide",
        "an invalid spec names no broker: nobody is stopped",
    ],
)
def test_what_cannot_be_proven_names_the_way_out(sentence: str) -> None:
    (row,) = (row for row in ROWS if row.sentence == sentence)
    ready = decide(row).status.condition("Ready")
    assert ready is not None
    assert "set spec.deletion.policy to Orphan" in ready.message


def test_a_drain_that_does_not_end_is_overdue_after_its_own_deadline() -> None:
    resource = wants(
        "demo:v1",
        2,
        stable_status(
            V1, rollout=RolloutStatus(stage=Stage.DRAIN_OUTSTANDING, started_at=START, progressed_at=START)
        ),
        spec__rollback={"drainDeadlineSeconds": 60},
        **GONE,
    )

    def stalled(seconds: float) -> str:
        reading = queue(resource, now=after(seconds), **FENCED, owned=1, owned_by={V1.name: 1})
        known = facts(resource, SERVES, reading=reading, now=after(seconds))
        condition = plan(resource, known, after(seconds)).status.condition("Stalled")
        return f"{condition.reason} {condition.message}" if condition else ""

    assert stalled(60) == ""
    assert stalled(61).startswith("DrainOverdue")
    assert f"{V1.name} (1)" in stalled(61)
    assert "spec.deletion.policy to Orphan" in stalled(61)


def test_a_listed_worker_holds_a_deletion_up_for_a_while_only() -> None:
    resource = wants(
        "demo:v1",
        2,
        stable_status(V1, rollout=RolloutStatus(stage=Stage.RETIRE, started_at=START, progressed_at=START)),
        **GONE,
    )
    live = {V1.name: LiveWorkers(1, 0)}

    def ended(seconds: float) -> act.Plan:
        reading = queue(resource, now=after(seconds), fences={V1.name: OURS}, live=live)
        return plan(resource, facts(resource, STOPPED, reading=reading, now=after(seconds)), after(seconds))

    assert steps(ended(120)) == []
    assert steps(ended(121)) == ["let go"]
    (told,) = (one for one in ended(121).actions if isinstance(one, act.EmitEvent))
    assert told.reason is EventReason.DRAIN_COMPLETED
    assert f"The fence on {V1.name} stays" in told.message


def test_what_was_not_proven_is_told() -> None:
    (row,) = (row for row in ROWS if row.sentence.startswith("a namespace that goes"))
    (told,) = (one for one in decide(row).actions if isinstance(one, act.EmitEvent))
    assert (told.reason, told.type) == (EventReason.DRAIN_UNPROVEN, "Warning")


def test_every_stage_of_a_deletion_is_told_once() -> None:
    resource, told = DRAIN, []
    owned: dict[str, Any] = {"owned": 1, "owned_by": {V1.name: 1}}
    story: list[tuple[tuple[RevisionFacts, ...], dict[str, Any]]] = [
        ((SERVES,), {}),
        ((SERVES,), FENCED | owned),
        ((SERVES,), FENCED | {"reserved": 2, "quiet_since": None}),
        ((SERVES,), FENCED),
        ((seen(V1, 0, alive=1),), FENCED),
        ((STOPPED,), {"fences": {V1.name: OURS}}),
    ]
    for revisions, changes in story:
        for _ in range(2):
            reading = queue(resource, *revisions, **changes)
            decided = plan(resource, facts(resource, *revisions, reading=reading), START)
            told += [one.reason.value for one in decided.actions if isinstance(one, act.EmitEvent)]
            resource = dataclasses.replace(resource, status=decided.status)
    begun = ["DrainStarted", "RollbackStarted", "ReceivingStopped", "WorkDrained", "RegistryEmpty"]
    assert told == [*begun, "DrainCompleted", "DrainCompleted"]


KEPT = wants("demo:v1", 2, on("v1"), spec__rollback={"keepFencesSeconds": 600})


@pytest.mark.parametrize(
    ("sentence", "changes", "forgotten"),
    [
        ("it is forgotten after its time", {}, True),
        ("its time is not over", {"at": 599}, False),
        ("a worker of it is listed", {"live": {V2.name: LiveWorkers(1, 0)}}, False),
        ("it owns something", {"owned": 1, "owned_by": {V2.name: 1}}, False),
        ("somebody else set it", {"reason": "by hand, since 2026-01-01T00:00:00Z"}, False),
        ("nobody knows since when", {"reason": f"{MARK}it leaves for v1"}, False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fence_on_a_revision_that_is_long_gone(
    sentence: str, changes: dict[str, Any], forgotten: bool
) -> None:
    now = START + timedelta(seconds=changes.pop("at", 600))
    reason = changes.pop("reason", f"{MARK}it leaves for v1, since 2026-01-01T00:00:00Z")
    live = {V1.name: LiveWorkers(2, 2), **changes.pop("live", {})}
    reading = queue(KEPT, now=now, fences={V2.name: reason}, live=live, **changes)
    decided = plan(KEPT, facts(KEPT, seen(V1, 2), reading=reading, now=now), now)
    assert steps(decided) == (["unfence v2"] if forgotten else [])


def test_a_fence_on_a_revision_that_is_still_there_stays() -> None:
    now = after(6000)
    fences = {V2.name: f"{MARK}it leaves for v1, since 2026-01-01T00:00:00Z"}
    reading = queue(KEPT, now=now, fences=fences, live={V1.name: LiveWorkers(2, 2)})
    rows = (seen(V1, 2), seen(V2, 0, alive=1))
    assert "unfence v2" not in steps(plan(KEPT, facts(KEPT, *rows, reading=reading, now=now), now))
