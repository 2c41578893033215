"""A change to another broker: nothing moves with it, and that is said before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from queueworker_operator.api.kept import Kept, to_kept
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.revisions import revision_of
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.resources import START, V1, facts, on, queue, seen, wants

ELSEWHERE: dict[str, Any] = {"spec__broker": {"redis": {"url": "redis://elsewhere:6379/0"}}}
CANARY: dict[str, Any] = {
    "spec__rollout": {"strategy": "Canary", "steps": [{"setCanaryScale": {"replicas": 1}}, {"pause": {}}]}
}


def look(resource: QueueWorker) -> act.Plan:
    """A pass of one whose stable revision is V1, and kept."""
    kept = Kept(V1, 1, to_kept(wants("demo:v1", 2).spec, V1))
    reading = queue(resource, seen(V1, 2))
    return plan(resource, facts(resource, seen(V1, 2), reading=reading, kept=(kept,)), START)


def warnings(decided: act.Plan) -> list[str]:
    events = (a for a in decided.actions if isinstance(a, act.EmitEvent))
    return [event.message for event in events if event.reason.value == "BrokerChanged"]


@pytest.mark.parametrize("strategy", [{}, CANARY])
def test_the_beginning_of_a_change_to_another_broker_says_that_nothing_moves(
    strategy: dict[str, Any],
) -> None:
    decided = look(wants("demo:v1", 2, on("v1"), **ELSEWHERE, **strategy))
    (told,) = warnings(decided)
    assert V1.name in told
    assert "stays there" in told
    assert warnings(look(wants("demo:v1", 2, decided.status, **ELSEWHERE, **strategy))) == [], "once"


@pytest.mark.parametrize(
    "resource",
    [
        wants("demo:v2", 2, on("v1")),
        wants("demo:v1", 2, on("v1")),
        wants("demo:v1", 2, on("v1", "v2", Stage.PROMOTING)),
        wants("demo:v1", 2, QueueWorkerStatus(), **ELSEWHERE),
        wants("demo:v1", 2, on("v1"), **ELSEWHERE, spec__hold={"reason": "until Monday"}),
    ],
    ids=["another image", "nothing", "back", "the first of all", "held"],
)
def test_nothing_is_said_where_no_change_leads_elsewhere(resource: QueueWorker) -> None:
    assert warnings(look(resource)) == []


# -- back from there ---------------------------------------------------------------------------------


def aborted(replicas: int = 2) -> QueueWorker:
    """V1 serves; the change to the other broker was aborted."""
    there = wants("demo:v1", 2, **ELSEWHERE)
    name = revision_of(there.metadata.name, there.spec).name
    return wants("demo:v1", replicas, on("v1").model_copy(update={"aborted": name}), **ELSEWHERE)


def test_an_abort_of_a_change_to_another_broker_ends_although_nobody_is_left_there_to_recover() -> None:
    resource = aborted()
    arm = revision_of(resource.metadata.name, resource.spec)
    revisions = (seen(V1, 2), seen(arm, 1, created=2))
    kept = Kept(V1, 1, to_kept(wants("demo:v1", 2).spec, V1))
    fences = {arm.name: "QueueWorker workers/stats-usage: it leaves"}

    def look_there(**changes: Any) -> act.Plan:
        reading = queue(resource, *revisions, fences=fences, live={arm.name: LiveWorkers(1, 0)}, **changes)
        return plan(resource, facts(resource, *revisions, reading=reading, kept=(kept,)), START)

    left = look_there(reserved=1)
    assert any(isinstance(a, act.RecoverWork) for a in left.actions), "the operator does"
    assert not any(isinstance(a, act.RetireRevision) for a in left.actions)
    empty = look_there(quiet_since=START - timedelta(minutes=1))
    assert [a.revision for a in empty.actions if isinstance(a, act.RetireRevision)] == [arm.name]
    assert warnings(empty) == [], "the way back leads to no other broker"


def test_no_worker_is_given_up_for_what_another_broker_shows() -> None:
    resource = aborted(replicas=0)
    decided = look(resource)
    assert not [a for a in decided.actions if isinstance(a, act.FenceRevision | act.RetireRevision)]
    ready = decided.status.condition("Ready")
    assert ready is not None
    assert "put spec.broker back" in ready.message
