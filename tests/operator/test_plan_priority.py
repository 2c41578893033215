"""An upgrade from older workers on NATS: nobody else starts before what only they take is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queueworker_operator.api.reasons import ConditionReason as R, Stage
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.cli.seen import Seen
from queueworker_operator.cli.verdict import BLOCKED, WAITING, verdict
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import Priority, PriorityWork, RevisionFacts, Unknown
from queueworker_operator.plan.planner import plan
from tests.operator.resources import (
    START,
    after,
    facts,
    image_revision,
    priority_work,
    reachable,
    seen,
    stable_status,
    wants,
)

NATS: dict[str, Any] = {"spec__broker": {"nats": {"url": "nats://nats:4222"}}}
OLD = image_revision("demo:old", spec__protocol="Legacy", **NATS)
NEW = image_revision("demo:v2", **NATS)
ARM = image_revision("demo:v2", spec__prefetch=4, **NATS)
STEPS = [{"setCanaryScale": {"replicas": 1}}, {"setPrefetch": 4}, {"pause": {}}, {"setPrefetch": 100}]
STRATEGIES: dict[str, dict[str, Any]] = {
    "Rolling": {},
    "Canary": {"spec__rollout": {"strategy": "Canary", "steps": STEPS}},
    "Manual": {"spec__rollout": {"strategy": "Manual"}, "spec__request": {"id": "1", "action": "Promote"}},
}
FIRST = {"Rolling": f"create {NEW.name} at 2", "Canary": f"create {ARM.name} at 1"}
LONG_AGO = after(-3600)
OLDER = seen(OLD, 2, started_at=LONG_AGO)


def work(left: int = 0, *, quiet: float = 60, published: float | None = None, at: float = 0) -> PriorityWork:
    """`left` messages; nothing for `quiet` seconds; somebody published at `published`."""
    when = None if published is None else after(published)
    return priority_work(left, after(at - quiet), after(at), published_at=when)


def upgrade(strategy: str, status: QueueWorkerStatus | None = None, **more: Any) -> QueueWorker:
    return wants("demo:v2", 2, status or stable_status(OLD), **NATS, **STRATEGIES[strategy], **more)


def look(resource: QueueWorker, priority: Priority, *revisions: RevisionFacts, at: float = 0) -> act.Plan:
    check = replace(reachable(resource, after(at)), priority=priority)
    return plan(resource, facts(resource, *revisions, check=check, now=after(at)), after(at))


def done(decided: act.Plan) -> list[str]:
    words = []
    for action in decided.actions:
        match action:
            case act.ApplyRevision(revision, number):
                words.append(f"create {revision.name} at {number}")
            case act.ScaleRevision(name, _, number):
                words.append(f"{name} to {number}")
            case act.RetireRevision(name, _):
                words.append(f"{name} to 0")
    return words


def stage(decided: act.Plan) -> Stage:
    assert decided.status.rollout is not None
    return decided.status.rollout.stage


def look_at(status: QueueWorkerStatus) -> Seen:
    return Seen("workers", "stats-usage", 1, "stats-usage", False, status, {}, "Look at the operator.")


def told(decided: act.Plan) -> list[str]:
    return [action.reason.value for action in decided.actions if isinstance(action, act.EmitEvent)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "priority", [work(3), work(quiet=30), work(published=-10), Unknown("it cannot be read", START)]
)
def test_older_workers_stay_and_no_other_starts_before_their_work_is_gone(
    priority: Priority, strategy: str
) -> None:
    decided = look(upgrade(strategy), priority, OLDER)
    assert done(decided) == []
    assert stage(decided) is Stage.DRAINING_LEGACY
    assert done(look(replace(upgrade(strategy), status=decided.status), work(), OLDER)) == [
        FIRST.get(strategy, FIRST["Rolling"])
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_worker_that_started_after_the_look_is_no_part_of_its_proof(strategy: str) -> None:
    begun = seen(OLD, 2, started_at=after(-1))
    assert done(look(upgrade(strategy), work(), begun)) == []
    beside = (replace(begun, created=1), seen(NEW, 2, created=2))
    promoting = stable_status(OLD, promoted=NEW.name)
    assert done(look(upgrade(strategy, promoting), work(), *beside)) == []
    later = look(upgrade(strategy, promoting), work(at=40), *beside, at=40)
    assert done(later) == [f"{OLD.name} to 0"]


def test_work_that_comes_back_stops_a_canary_at_its_step() -> None:
    rows = (replace(OLDER, desired=1, ready=1, available=1, alive=1), seen(ARM, 1, created=2))
    resource, stages = upgrade("Canary"), []
    for priority in (work(), work(2), work()):
        decided = look(resource, priority, *rows)
        stages.append((stage(decided), decided.status.rollout.step if decided.status.rollout else ""))
        resource = replace(resource, status=decided.status)
    assert stages == [(Stage.PAUSED, "3/4"), (Stage.PAUSED, "3/4"), (Stage.PAUSED, "3/4")]
    skips = replace(resource, spec=upgrade("Canary", spec__request={"id": "2", "action": "SkipStep"}).spec)
    held = look(skips, work(2), *rows)
    assert done(held) == []
    assert done(look(skips, work(), *rows)) == [f"create {NEW.name} at 1"]


def test_what_is_left_is_told_with_numbers_and_producers_block() -> None:
    waits = look(upgrade("Rolling"), work(3), OLDER)
    assert told(waits) == ["LegacyDrainStarted"]
    rollout, drained = waits.status.rollout, waits.status.condition("PriorityDrained")
    assert rollout is not None
    assert drained is not None
    assert (rollout.reason, drained.reason) == (R.PRIORITY_LEFT, R.PRIORITY_LEFT)
    assert "3 pending, 0 unacknowledged and 3 stored" in (rollout.evidence or "")
    assert "3 pending" in drained.message
    assert verdict(look_at(waits.status)).code == WAITING

    blocked = look(upgrade("Rolling", waits.status), work(1, published=0), OLDER)
    assert told(blocked) == ["ProducersStillPublishing"]
    found = verdict(look_at(blocked.status))
    assert (found.code, found.reason) == (BLOCKED, "ProducersStillPublishing")
    assert "publish to q.stats-usage.normal" in found.message
    assert any("1 pending" in one.message for one in found.besides)

    free = look(upgrade("Rolling", blocked.status), work(), OLDER)
    assert told(free) == ["LegacyDrained"]
    assert done(free) == [FIRST["Rolling"]]


def test_work_that_nobody_finishes_is_overdue() -> None:
    began = look(upgrade("Rolling", spec__rollback={"drainDeadlineSeconds": 60}), work(3), OLDER)
    resource = upgrade("Rolling", began.status, spec__rollback={"drainDeadlineSeconds": 60})
    for seconds, stalled in ((60, False), (61, True)):
        status = look(resource, work(3, at=seconds), OLDER, at=seconds).status
        assert (status.condition("Stalled") is not None) is stalled
    assert verdict(look_at(status)).reason == R.DRAIN_OVERDUE


def test_without_older_workers_nothing_is_waited_for() -> None:
    assert done(look(upgrade("Rolling"), work(3))) == [FIRST["Rolling"]]


def test_older_workers_that_are_missing_come_back_first() -> None:
    assert done(look(upgrade("Rolling"), work(3), seen(OLD, 0))) == [f"{OLD.name} to 2"]


def test_a_change_to_no_workers_at_all_waits_for_no_work() -> None:
    nobody = replace(upgrade("Rolling"), spec=upgrade("Rolling").spec.model_copy(update={"replicas": 0}))
    assert stage(look(nobody, work(1), seen(OLD, 0))) is not Stage.DRAINING_LEGACY


def test_a_broker_that_is_lost_leaves_the_stage() -> None:
    waits = look(upgrade("Rolling"), work(3), OLDER)
    lost = plan(
        upgrade("Rolling", waits.status),
        replace(facts(upgrade("Rolling"), OLDER), broker=Unknown("nobody looked", START)),
        START,
    )
    assert stage(lost) is Stage.DRAINING_LEGACY
    assert done(lost) == []
