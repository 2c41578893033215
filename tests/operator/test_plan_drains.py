"""A guarded way out whose work does not go: what is told of it, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queueworker_operator.api.reasons import ConditionReason
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.planner import plan
from tests.operator.plan_words import steps
from tests.operator.resources import START, V1, V2, after, facts, on, queue, seen, wants
from tests.operator.test_plan_way_out import (
    ALONE,
    FENCED,
    LEGACY,
    OLD_WORKER,
    STOPPED,
    TO_OLD,
    V2_SERVES,
)

R = ConditionReason

#: v2 leaves for an older worker, is fenced, and holds this much.
HOLDS = {"fences": FENCED, "live": ALONE, "owned": 7, "owned_by": {V2.name: 5}, "quiet_since": None}
#: The same, and its work lies in reservations.
RESERVED = {"fences": FENCED, "live": ALONE, "reserved": 3, "quiet_since": None}
#: Nothing is there, since just now.
EMPTY = {"fences": FENCED, "live": ALONE, "quiet_since": None}


def looks(resource: QueueWorker, *story: tuple[float, dict[str, Any]]) -> list[act.Plan]:
    """What is decided at each of these seconds, when the broker shows this."""
    decided: list[act.Plan] = []
    for seconds, content in story:
        now = after(seconds)
        reading = queue(resource, V2_SERVES, OLD_WORKER, now=now, **content)
        world = facts(resource, V2_SERVES, OLD_WORKER, reading=reading, now=now)
        decided.append(plan(resource, world, now))
        resource = replace(resource, status=decided[-1].status)
    return decided


def overdue(decided: act.Plan) -> str | None:
    """What Stalled says of a drain."""
    stalled = decided.status.condition("Stalled")
    if stalled is None:
        return None
    assert stalled.reason == R.DRAIN_OVERDUE
    return stalled.message


@pytest.mark.parametrize(
    ("content", "said"),
    [(HOLDS, f"{V2.name} (5)"), (RESERVED, "3 reserved"), (EMPTY, "has to stay so")],
)
def test_a_drain_that_does_not_end_is_told(content: dict[str, Any], said: str) -> None:
    """An hour by default, whatever the progress deadline; nobody is retired all the same, and it ends."""
    story = looks(TO_OLD, (0, content), (3600, content), (3601, content), (9000, content), (9001, EMPTY))
    assert [overdue(one) is not None for one in story[:4]] == [False, False, True, True]
    assert said in str(overdue(story[2]))
    told = [[a.reason.value for a in one.actions if isinstance(a, act.EmitEvent)] for one in story[:4]]
    assert ("DrainOverdue" in told[2], "DrainOverdue" in told[3]) == (True, False)
    assert not any(word in steps(one) for one in story for word in ("v2 to 0", "delete v2"))
    done = {"fences": FENCED, "live": ALONE, "quiet_since": START}
    (last,) = looks(replace(TO_OLD, status=story[3].status), (9002, done))
    assert "v2 to 0" in steps(last)
    assert overdue(last) is None


def test_the_drain_deadline_is_a_field() -> None:
    resource = wants("demo:old", 2, on("v2", "old"), **LEGACY, spec__rollback={"drainDeadlineSeconds": 30})
    assert [overdue(one) is not None for one in looks(resource, (0, HOLDS), (30, HOLDS), (31, HOLDS))] == [
        False,
        False,
        True,
    ]


def test_a_drain_may_last_until_the_quiet_time_is_over() -> None:
    rollback = {"drainDeadlineSeconds": 30, "quietSeconds": 3600}
    resource = wants("demo:old", 2, on("v2", "old"), **LEGACY, spec__rollback=rollback)
    assert [overdue(one) for one in looks(resource, (0, EMPTY), (3599, EMPTY))] == [None, None]


def test_work_that_turns_up_again_and_again_is_no_progress() -> None:
    seconds = range(0, 3800, 100)
    story = looks(TO_OLD, *((n, RESERVED if n % 200 else EMPTY) for n in seconds))
    assert overdue(story[-1])
    assert overdue(story[1]) is None


def test_the_status_says_how_much_is_held_and_by_whom() -> None:
    (decided,) = looks(TO_OLD, (0, HOLDS))
    for kind in ("Ready", "Reconciling", "RegistryEmpty"):
        condition = decided.status.condition(kind)
        assert condition is not None
        assert kind == "RegistryEmpty" or f"{V2.name} (5)" in condition.message
    assert decided.status.rollout is not None
    assert (
        decided.status.rollout.evidence == "staging 0, reserved 0, owned 7 (5 by leaving workers), delayed 0"
    )


def test_the_event_of_an_empty_registry_says_whose_work_is_left() -> None:
    """Others recover, so it need not be empty: what is owned then is theirs."""
    reading: dict[str, Any] = {"fences": FENCED, "live": STOPPED, "owned": 100, "owned_by": {V1.name: 100}}
    resource = wants("demo:v1", 2, on("v2").model_copy(update={"previous": V1.name}))
    both = (V2_SERVES, seen(V1, 2))
    decided = plan(resource, facts(resource, *both, reading=queue(resource, *both, **reading)), START)
    (event,) = [
        a for a in decided.actions if isinstance(a, act.EmitEvent) and a.reason.value == "RegistryEmpty"
    ]
    assert "owned 100 (0 by leaving workers)" in event.message
