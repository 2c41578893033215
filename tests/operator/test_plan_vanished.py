"""What was on its way out and is gone before its time, killed or deleted: what it held is proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.plan_words import steps
from tests.operator.resources import OLD, START, V1, V2, facts, on, queue, seen, wants

FENCED = {V2.name: "QueueWorker workers/stats-usage: it leaves for somebody"}
HELD: dict[str, Any] = {"owned": 3, "owned_by": {V2.name: 3}, "quiet_since": None}
SILENT: dict[str, LiveWorkers] = {}
#: An older worker, or v1, serves and is wanted again; v2 is on its way out.
TO_OLD = wants("demo:old", 2, on("old", "v2"), spec__protocol="Legacy")
TO_V1 = wants("demo:v1", 2, on("v1", "v2"))
OLD_SERVES, V1_SERVES = seen(OLD, 2, created=1), seen(V1, 2, created=1)


def vanished(resource: QueueWorker, serves: RevisionFacts) -> QueueWorker:
    """What the status says after a look at v2 that still held something; v2 is gone by then."""
    leaving = seen(V2, 1, created=2)
    shown = queue(resource, serves, leaving, fences=FENCED, **{**HELD, "live": {V2.name: LiveWorkers(1, 0)}})
    decided = plan(resource, facts(resource, serves, leaving, reading=shown), START)
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is Stage.DRAIN_OUTSTANDING
    return replace(resource, status=decided.status)


ROWS: list[tuple[str, dict[str, Any], list[str], Stage]] = [
    (
        "its workers are not silent yet: they are waited for",
        {**HELD, "live": {V2.name: LiveWorkers(1, 1)}},
        ["recover"],
        Stage.STOP_RECEIVING,
    ),
    ("it owns something: that is recovered", {**HELD, "live": SILENT}, ["recover"], Stage.DRAIN_OUTSTANDING),
    (
        "it has reserved something: that is recovered",
        {"reserved": 1, "quiet_since": None, "live": SILENT},
        ["recover"],
        Stage.RECOVER_RESERVATIONS,
    ),
    (
        "nothing is left, but not for long enough",
        {"quiet_since": START, "live": SILENT},
        [],
        Stage.VERIFY_REGISTRY_EMPTY,
    ),
    (
        "its fence was lifted: it is set again",
        {"fences": {}, "live": SILENT},
        ["fence v2"],
        Stage.STOP_RECEIVING,
    ),
    ("nothing is left, and stays so", {"live": SILENT}, [], Stage.IDLE),
]


@pytest.mark.parametrize(("sentence", "reading", "wanted", "stage"), ROWS, ids=[r[0] for r in ROWS])
def test_back_to_an_older_worker(
    sentence: str, reading: dict[str, Any], wanted: list[str], stage: Stage
) -> None:
    resource = vanished(TO_OLD, OLD_SERVES)
    shown = queue(resource, OLD_SERVES, **{"fences": FENCED, **reading})
    decided = plan(resource, facts(resource, OLD_SERVES, reading=shown), START)
    assert steps(decided) == wanted
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is stage
    assert decided.status.rollout.leaving == (None if stage is Stage.IDLE else V2.name)


def test_where_others_recover_what_it_owns_is_waited_for() -> None:
    resource = vanished(TO_V1, V1_SERVES)
    live = {V1.name: LiveWorkers(2, 2)}
    shown = queue(resource, V1_SERVES, fences=FENCED, **{**HELD, "live": live})
    decided = plan(resource, facts(resource, V1_SERVES, reading=shown), START)
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is Stage.DRAIN_OUTSTANDING
    shown = queue(resource, V1_SERVES, fences=FENCED, live=live, reserved=2, quiet_since=None)
    decided = plan(resource, facts(resource, V1_SERVES, reading=shown), START)
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is Stage.IDLE, "what others reserved is no matter"
