"""Pods on a node that the cluster lost: once fenced, and holding nothing, a revision leaves without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queueworker_operator.api.reasons import Stage
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.canary_story import P4, begin
from tests.operator.plan_words import steps
from tests.operator.resources import GONE, START, V1, V2, facts, on, queue, seen, wants

OURS = "QueueWorker workers/stats-usage: it leaves for somebody"
#: v1 serves and is wanted again; v2 is on its way out.
BACK = wants("demo:v1", 2, on("v1", "v2", Stage.RETIRE))
SERVES = seen(V1, 2, created=1)
#: One pod of v2 is on the lost node, where nobody can be told to stop; its worker still shows on the broker.
LOST = seen(V2, 0, alive=1, created=2, overdue=1)
STOPPED = {"fences": {V2.name: OURS}, "live": {V1.name: LiveWorkers(2, 2), V2.name: LiveWorkers(1, 0)}}

ROWS: list[tuple[str, RevisionFacts, dict[str, Any], list[str], Stage]] = [
    ("fenced and empty: it counts as gone", LOST, {}, ["delete v2"], Stage.IDLE),
    (
        "one pod still has time to stop: it is waited for",
        seen(V2, 0, alive=2, created=2, overdue=1),
        {},
        [],
        Stage.RETIRE,
    ),
    (
        "it owns something: it is waited for until that is taken over",
        LOST,
        {"owned": 1, "owned_by": {V2.name: 1}},
        ["recover"],
        Stage.DRAIN_OUTSTANDING,
    ),
    ("somebody lifted the fence: it is set again", LOST, {"fences": {}}, ["fence v2"], Stage.STOP_RECEIVING),
    (
        "it says that it receives: it is waited for",
        LOST,
        {"live": {V1.name: LiveWorkers(2, 2), V2.name: LiveWorkers(1, 1)}},
        [],
        Stage.STOP_RECEIVING,
    ),
]


@pytest.mark.parametrize(
    ("sentence", "leaving", "reading", "wanted", "stage"), ROWS, ids=[r[0] for r in ROWS]
)
def test_a_lost_pod(
    sentence: str, leaving: RevisionFacts, reading: dict[str, Any], wanted: list[str], stage: Stage
) -> None:
    shown = queue(BACK, SERVES, **{**STOPPED, **reading})
    decided = plan(BACK, facts(BACK, SERVES, leaving, reading=shown), START)
    assert steps(decided) == wanted
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is stage


def test_forward_without_a_fence_it_is_waited_for() -> None:
    resource = wants("demo:v2", 2, on("v1", "v2"))
    lost = seen(V1, 0, alive=1, created=1, overdue=1)
    decided = plan(resource, facts(resource, lost, seen(V2, 2, created=2)), START)
    assert steps(decided) == []
    assert decided.status.stable is not None
    assert decided.status.stable.revision == V1.name


def test_an_arm_that_left_is_not_waited_for_either() -> None:
    story = begin()
    story.until(Stage.PAUSED, "3/8")
    story.wait(60)
    story.until(Stage.ARM_CHANGING, "4/8")
    while story.look() != ["v2-p4 to 0"]:
        pass
    story.revisions[P4.name] = replace(story.revisions[P4.name], alive=1)
    assert story.look() == []
    story.revisions[P4.name] = replace(story.revisions[P4.name], overdue=1)
    assert story.look() == ["delete v2-p4"]


@pytest.mark.parametrize("gone", [{}, GONE], ids=["no worker is wanted", "the resource is deleted"])
def test_where_nobody_else_serves_it_is_waited_for(gone: dict[str, Any]) -> None:
    """A deletion lifts the fences, so that its worker could take work again."""
    resource = wants("demo:v1", 0, on("v1", "v1", Stage.RETIRE), **gone)
    lost = seen(V1, 0, alive=1, overdue=1)
    ours = "QueueWorker workers/stats-usage: it leaves"
    shown = queue(resource, fences={V1.name: ours}, live={})
    decided = plan(resource, facts(resource, lost, reading=shown), START)
    assert steps(decided) == []
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is Stage.RETIRE
