"""The guarded way out of service: what was not seen, what is told, and what only older workers take."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from queueworker_operator.api.reasons import ConditionReason, Stage
from queueworker_operator.cli.seen import of_body
from queueworker_operator.cli.verdict import Answer, verdict
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import BrokerCheck, PriorityWork, RevisionFacts, Unknown
from queueworker_operator.plan.planner import plan
from tests.operator.plan_words import steps
from tests.operator.resources import (
    NOBODY_LOOKED,
    OLD,
    START,
    V1,
    V2,
    after,
    body,
    facts,
    on,
    queue,
    reachable,
    seen,
    wants,
)
from tests.operator.test_plan_way_out import ALONE, FENCED, LEGACY, OLD_WORKER, TO_OLD, V2_SERVES, expect

R = ConditionReason

STAGES = [Stage.STOP_RECEIVING, Stage.DRAIN_OUTSTANDING, Stage.VERIFY_REGISTRY_EMPTY, Stage.RETIRE]


@pytest.mark.parametrize("others", [(), (seen(V2, 2, created=1),)], ids=["alone", "beside another"])
def test_a_fence_that_a_person_set_is_told(others: tuple[RevisionFacts, ...]) -> None:
    resource = wants("demo:v1", 2, on("v1") if not others else on("v2", "v1"))
    revisions = (seen(V1, 2, created=2), *others)
    reading = queue(resource, *revisions, fences={V1.name: "looks wrong"})
    status = plan(resource, facts(resource, *revisions, reading=reading), START).status
    ready = status.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", R.TARGET_FENCED)
    assert (
        f"(looks wrong): lift it with `queueworker unfence stats-usage --revision {V1.name}`" in ready.message
    )
    assert status.condition("Stalled") is None


def test_a_fence_of_its_own_that_is_being_lifted_waits_for_nobody() -> None:
    resource = wants("demo:v1", 2, on("v1").model_copy(update={"aborted": V2.name}))
    revisions = seen(V1, 2, created=2), seen(V2, 2, created=1)
    fences = {V1.name: "QueueWorker workers/stats-usage: it leaves"}
    reading = queue(resource, *revisions, fences=fences)
    decided = plan(resource, facts(resource, *revisions, reading=reading), START)
    assert any(isinstance(action, act.UnfenceRevision) for action in decided.actions)
    status = decided.status
    words = {one.type: one.reason for one in status.conditions}
    assert R.TARGET_FENCED not in words.values()
    assert (words["Ready"], words["Reconciling"]) == (R.ROLLOUT_IN_PROGRESS,) * 2
    assert verdict(of_body(body(status=status.to_body()))).answer is Answer.MOVING


@pytest.mark.parametrize("stage", STAGES)
def test_a_queue_that_nobody_could_read_freezes_the_stage(stage: Stage) -> None:
    resource = wants("demo:old", 2, on("v2", "old", stage), **LEGACY)
    status = expect(resource, (V2_SERVES, OLD_WORKER), NOBODY_LOOKED, [])
    assert status.rollout is not None
    assert (status.rollout.stage, status.rollout.reason) == (stage, R.REGISTRY_NOT_READABLE)
    condition = status.condition("RegistryEmpty")
    assert condition is not None
    assert (condition.status, condition.reason) == ("Unknown", R.REGISTRY_NOT_READABLE)


def test_a_reading_older_than_15_seconds_counts_as_none() -> None:
    resource = wants("demo:old", 2, on("v2", "old", Stage.RETIRE), **LEGACY)
    world = facts(resource, V2_SERVES, OLD_WORKER, now=after(16))
    proof = queue(resource, V2_SERVES, OLD_WORKER, fences=FENCED, live=ALONE)
    assert steps(plan(resource, replace(world, queue=replace(proof, observed_at=after(2))), after(16))) == [
        "v2 to 0"
    ]
    assert steps(plan(resource, replace(world, queue=proof), after(16))) == []


def test_older_workers_stay_while_work_is_left_that_only_they_take() -> None:
    resource = wants("demo:v2", 2, on("old", "v2"))
    revisions = (seen(OLD, 2, created=1), seen(V2, 2, created=2))

    def with_priority(pending: int) -> BrokerCheck:
        work = PriorityWork(
            subject="q.stats.priority",
            pending=pending,
            unacknowledged=0,
            stored=pending,
            stuck=0,
            last_sequence=1,
            stream_sequence=1,
            ack_wait=timedelta(seconds=30),
            consumed=True,
            observed_at=START,
            empty_since=None if pending else START - timedelta(seconds=60),
        )
        return replace(reachable(resource), priority=work)

    held = plan(resource, facts(resource, *revisions, check=with_priority(1)), START)
    assert steps(held) == []
    assert "q.stats.priority" in (held.status.condition("Ready") or pytest.fail("no condition")).message
    assert steps(plan(resource, facts(resource, *revisions, check=with_priority(0)), START)) == ["old to 0"]
    unseen = replace(reachable(resource), priority=Unknown("the stream cannot be read", START))
    assert steps(plan(resource, facts(resource, *revisions, check=unseen), START)) == []


def test_every_stage_is_told_once() -> None:
    resource, told = TO_OLD, []
    empty = {"fences": FENCED, "live": ALONE}
    story: list[tuple[tuple[RevisionFacts, ...], dict[str, Any]]] = [
        ((V2_SERVES, OLD_WORKER), {}),
        ((V2_SERVES, OLD_WORKER), {"fences": FENCED, "owned": 1, "owned_by": {V2.name: 1}, "live": ALONE}),
        ((V2_SERVES, OLD_WORKER), empty | {"reserved": 2, "quiet_since": None}),
        ((V2_SERVES, OLD_WORKER), empty | {"quiet_since": START}),
        ((V2_SERVES, OLD_WORKER), empty),
        ((seen(V2, 0, created=1), OLD_WORKER), {"fences": FENCED}),
    ]
    for revisions, changes in story:
        for _ in range(2):
            reading = queue(resource, *revisions, **changes)
            decided = plan(resource, facts(resource, *revisions, reading=reading), START)
            told += [action.reason.value for action in decided.actions if isinstance(action, act.EmitEvent)]
            resource = replace(resource, status=decided.status)
    assert told == ["RollbackStarted", "ReceivingStopped", "WorkDrained", "RegistryEmpty", "RolledBack"]
    assert resource.status.stable is not None
    assert (resource.status.stable.revision, resource.status.previous) == (OLD.name, V2.name)
    assert resource.status.rollout is not None
    assert resource.status.rollout.evidence is None


def test_an_older_worker_that_serves_alone_is_not_stable_before_the_proof() -> None:
    """As after a crash, or when somebody deleted the Deployment of the leaving revision."""

    def stable(**changes: Any) -> str:
        decided = plan(
            TO_OLD, facts(TO_OLD, OLD_WORKER, reading=queue(TO_OLD, OLD_WORKER, live={}, **changes)), START
        )
        assert decided.status.stable is not None
        return decided.status.stable.revision

    assert stable(reserved=1, quiet_since=None) == V2.name
    assert stable(quiet_since=START) == V2.name
    assert stable() == OLD.name


def test_a_first_legacy_target_is_said_to_be_waited_for_itself() -> None:
    resource = wants("demo:old", 2, **LEGACY)
    starting = seen(OLD, 2, 0)
    reading = queue(resource, starting, quiet_since=after(-60))
    status = plan(resource, facts(resource, starting, reading=reading), START).status
    assert status.rollout is not None
    assert status.rollout.stage is Stage.PROMOTING
    reconciling = status.condition("Reconciling")
    assert reconciling is not None
    assert "0 of 2 workers" in reconciling.message
