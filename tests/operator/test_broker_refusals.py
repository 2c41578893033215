"""The broker refuses what was decided: where the resource stands is told all the same."""

from __future__ import annotations

from typing import Any

import pytest

from queueworker_operator.act.executor import Executor
from queueworker_operator.api.reasons import EventReason
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.planner import plan
from tests.operator.resources import GONE, START, V1, facts, on, seen, wants
from worker_runtime.brokers.base import BrokerError, BrokerFullError

STATUS = act.WriteStatus(on("v1"))
RETIRE = act.RetireRevision("v1", "work-v1")
FENCE = act.FenceRevision("v1", "it leaves")
LEAVES = act.EmitEvent(EventReason.ROLLBACK_STARTED, "Normal", "v1 leaves", "leaves")
SCALED = act.EmitEvent(EventReason.SCALED, "Normal", "v1 goes from 1 to 2 workers", "scaled")


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ((FENCE, RETIRE, LEAVES, STATUS), (LEAVES, STATUS)),
        ((RETIRE, SCALED, STATUS), (STATUS,)),
        ((RETIRE, LEAVES), ()),
        ((act.KillWorker("v1", "work-v1"), LEAVES, STATUS), ()),
        ((LEAVES, act.RemoveFinalizer()), ()),
        ((), ()),
    ],
    ids=["a fence", "what was not done", "no status", "noted in the status", "the end", "nothing"],
)
def test_what_is_done_of_the_rest(rest: tuple[act.Action, ...], told: tuple[act.Action, ...]) -> None:
    assert act.still_told(rest) == told


async def test_a_deletion_whose_fence_is_refused_writes_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = wants("demo:v1", 2, on("v1"), **GONE)
    decided = plan(resource, facts(resource, seen(V1, 2)), START)
    assert any(isinstance(a, act.FenceRevision) for a in decided.actions)
    done: list[act.Action] = []

    async def do(self: Executor, action: act.Action) -> None:
        if isinstance(action, act.BrokerAction):
            raise BrokerFullError("no room")
        done.append(action)

    monkeypatch.setattr(Executor, "_do", do)
    nothing: Any = None
    executor = Executor(nothing, nothing, lambda: START, "me", {}, resource, nothing)
    with pytest.raises(BrokerError):
        await executor.run(decided.actions)
    assert done
    assert done[-1] == act.WriteStatus(decided.status)
    assert all(isinstance(one, act.EmitEvent) for one in done[:-1])
