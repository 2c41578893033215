"""A change to another broker: nothing moves with it, and that is said before."""

from __future__ import annotations

from typing import Any

import pytest

from queueworker_operator.api.kept import Kept, to_kept
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.planner import plan
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
