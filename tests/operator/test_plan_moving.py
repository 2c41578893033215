"""A change to another broker: nothing moves with it, and that is said before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from queueworker_operator.api.kept import Kept, to_kept
from queueworker_operator.api.reasons import EventReason, Stage
from queueworker_operator.api.revisions import revision_of
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.cli.seen import Seen
from queueworker_operator.cli.verdict import Answer, verdict
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.resources import GONE, START, V1, facts, on, queue, seen, stable_status, target_of, wants

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
    found = verdict(Seen("shop", "mails", 1, "mails", False, decided.status, {}, ""))
    assert (found.answer, found.reason) == (Answer.BLOCKED, "NoWorkersWanted"), "only a person ends it"


def test_where_both_brokers_have_workers_the_way_out_is_not_the_other_broker() -> None:
    """Put back, the spec would say the same of those of the other one."""
    resource = aborted(replicas=0)
    arm = revision_of(resource.metadata.name, resource.spec)
    for one in (resource, wants("demo:v1", 0, on("v1"))):
        decided = plan(one, facts(one, seen(V1, 1), seen(arm, 1, created=2), kept=KEPT), START)
        ready = decided.status.condition("Ready")
        assert ready is not None
        assert (ready.reason, "ask for a worker until" in ready.message) == ("NoWorkersWanted", True)
        assert not [a for a in decided.actions if isinstance(a, act.FenceRevision | act.RetireRevision)]


KEPT = (Kept(V1, 1, to_kept(wants("demo:v1", 2).spec, V1)),)
THERE = wants("demo:v1", 2, **ELSEWHERE)
V1_THERE = target_of(THERE)


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        (stable_status(V1_THERE, previous=V1.name), (Kept(V1_THERE, 2, to_kept(THERE.spec, V1_THERE)),)),
        (on("v1"), ()),
    ],
    ids=["after the change", "in the middle of it"],
)
def test_what_consumes_from_the_other_broker_is_not_fenced_nor_proven_on_this_one(
    status: QueueWorkerStatus, kept: tuple[Kept, ...]
) -> None:
    resource = wants("demo:v1", 2, status)
    revisions = (seen(V1, 2), seen(V1_THERE, 2, created=2))
    decided = plan(resource, facts(resource, *revisions, kept=kept), START)
    assert not [a for a in decided.actions if isinstance(a, act.FenceRevision | act.RecoverWork)]
    assert [a.revision for a in decided.actions if isinstance(a, act.RetireRevision)] == [V1_THERE.name]
    assert decided.status.condition("RegistryEmpty") is None
    assert decided.status.rollout is not None
    assert (decided.status.rollout.stage, decided.status.rollout.leaving) == (Stage.PROMOTING, None)
    if kept:
        assert len(warnings(decided)) == 1

    alone = facts(resource, seen(V1, 2), seen(V1_THERE, 0, created=2), kept=kept)
    ended = plan(wants("demo:v1", 2, decided.status), alone, START)
    assert [a.revision for a in ended.actions if isinstance(a, act.DeleteRevision)] == [V1_THERE.name]
    told = [a.message for a in (*decided.actions, *ended.actions) if isinstance(a, act.EmitEvent)]
    assert not [text for text in told if "left behind" in text or "stranded" in text]


def test_other_options_of_the_same_stream_are_the_same_broker() -> None:
    nats = {"nats": {"url": "nats://nats:4222", "stream": {"replicas": 1}}}
    resource = wants("demo:v1", 2, spec__broker=nats)
    serves = target_of(resource)
    kept = Kept(serves, 1, to_kept(resource.spec, serves))
    nats = {"nats": {"url": "nats://nats:4222", "stream": {"replicas": 3}}}
    resource = wants("demo:v1", 0, stable_status(serves, kept=(serves.name,)), spec__broker=nats)
    reading = queue(resource, seen(serves, 2), has_registry=False)
    known = facts(resource, seen(serves, 2), reading=reading, kept=(kept,))
    decided = plan(resource, known, START)
    assert [a.revision for a in decided.actions if isinstance(a, act.FenceRevision)] == [serves.name]


def test_a_deletion_claims_a_proof_of_the_broker_that_was_read_only() -> None:
    resource = wants("demo:v1", 2, on("v1"), **ELSEWHERE, **GONE)
    decided = plan(resource, facts(resource, seen(V1, 2)), START)
    assert not [a for a in decided.actions if isinstance(a, act.FenceRevision)]
    assert [a.revision for a in decided.actions if isinstance(a, act.RetireRevision)] == [V1.name]

    ended = plan(resource, facts(resource, seen(V1, 0)), START)
    assert any(isinstance(a, act.RemoveFinalizer) for a in ended.actions)
    (told,) = (a for a in ended.actions if isinstance(a, act.EmitEvent))
    assert (told.reason, told.type) == (EventReason.DRAIN_UNPROVEN, "Warning")
    assert f"{V1.name} consumed from another broker" in told.message
