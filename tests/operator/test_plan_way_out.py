"""The guarded way out of service, one row a sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from queueworker_operator.api.reasons import ConditionReason, Stage
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.plan_words import steps
from tests.operator.resources import (
    OLD,
    START,
    V1,
    V2,
    facts,
    on,
    queue,
    seen,
    wants,
)

R = ConditionReason
OURS = "QueueWorker workers/stats-usage: it leaves for somebody"
LEGACY: dict[str, Any] = {"spec__protocol": "Legacy"}
#: v2 serves; v1 served before and is wanted again.
BACK = wants("demo:v1", 2, on("v2").model_copy(update={"previous": V1.name}))
#: v1 serves, v2 was coming, v1 is wanted again.
ABORT = wants("demo:v1", 2, on("v1", "v2"))
#: v2 serves; an older worker is wanted.
TO_OLD = wants("demo:old", 2, on("v2", "old"), **LEGACY)
#: v1 serves, and no worker is wanted any more.
TO_NONE = wants("demo:v1", 0, on("v1"))
#: v2 serves, v1 did before it, and no worker is wanted any more.
GONE_V1 = wants("demo:v2", 0, on("v2").model_copy(update={"previous": V1.name}))
FENCED = {V2.name: OURS}
#: Nobody of v2 receives any more; v1 is on the list.
STOPPED = {V2.name: LiveWorkers(2, 0), V1.name: LiveWorkers(2, 2)}
#: The same beside workers that announce nothing.
ALONE = {V2.name: LiveWorkers(2, 0)}
OLD_WORKER = seen(OLD, 2, created=2)
V2_SERVES = seen(V2, 2, created=1)


@dataclass
class Row:
    sentence: str
    resource: QueueWorker
    revisions: tuple[RevisionFacts, ...]
    reading: dict[str, Any]
    steps: list[str]
    stage: Stage
    reason: ConditionReason | None
    #: status and reason of RegistryEmpty
    registry: tuple[str, ConditionReason] | None = None
    #: What another QueueWorker has workers of.
    shared: frozenset[str] = frozenset()


ROWS = [
    Row(
        "back after a promotion: the target is created first, nothing is fenced",
        BACK,
        (V2_SERVES,),
        {},
        ["create v1 at 2"],
        Stage.VALIDATING,
        None,
    ),
    Row(
        "back after a promotion: before the target serves as many, nothing is fenced",
        BACK,
        (V2_SERVES, seen(V1, 2, 1, created=2)),
        {},
        ["v2 to 1"],
        Stage.STOP_RECEIVING,
        R.WAITING_FOR_RECEIVER,
    ),
    Row(
        "the target serves: the leaving revision is fenced, and one worker of it stays",
        BACK,
        (V2_SERVES, seen(V1, 2, created=2)),
        {},
        ["fence v2", "v2 to 1"],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
        ("False", R.RECEIVING_NOT_STOPPED),
    ),
    Row(
        "a change that is taken back: the new revision is fenced as soon as one of the stable serves",
        ABORT,
        (seen(V1, 1, created=1), seen(V2, 2, created=2)),
        {},
        ["fence v2", "v2 to 1", "v1 to 2"],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
    ),
    Row(
        "a new image that cannot start is fenced, too",
        ABORT,
        (seen(V1, 2, created=1), seen(V2, 2, 0, created=2)),
        {"live": {V1.name: LiveWorkers(2, 2)}},
        ["fence v2", "v2 to 1"],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
    ),
    Row(
        "a new image that cannot start and left work: the operator recovers it, nothing is retired",
        ABORT,
        (seen(V1, 2, created=1), seen(V2, 1, 0, created=2)),
        {"live": {V1.name: LiveWorkers(2, 2)}, "fences": FENCED, "owned": 1, "owned_by": {V2.name: 1}},
        ["recover"],
        Stage.DRAIN_OUTSTANDING,
        R.WORK_OUTSTANDING,
    ),
    Row(
        "fenced, and a worker has not said that it receives nothing: wait",
        ABORT,
        (seen(V1, 2, created=1), seen(V2, 1, created=2)),
        {"fences": FENCED},
        [],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
    ),
    Row(
        "a fence of somebody else on every revision: the target cannot take over, nothing is done",
        ABORT,
        (seen(V1, 2, created=1), seen(V2, 1, created=2)),
        {"fences": {"*": "maintenance"}, "live": STOPPED},
        [],
        Stage.RECOVER_RESERVATIONS,
        R.NO_CAPABLE_CONSUMER,
    ),
    Row(
        "it owns nothing and others recover: retired, and the registry does not matter",
        ABORT,
        (seen(V1, 2, created=1), seen(V2, 1, created=2)),
        {"fences": FENCED, "live": STOPPED, "reserved": 7, "quiet_since": None},
        ["v2 to 0"],
        Stage.RETIRE,
        R.RETIRING,
        ("True", R.NOT_APPLICABLE),
    ),
    Row(
        "the target serves but is not on the broker's list: the last one that recovers stays",
        ABORT,
        (seen(V1, 2, created=1), seen(V2, 1, created=2)),
        {"fences": FENCED, "live": ALONE},
        [],
        Stage.RECOVER_RESERVATIONS,
        R.NO_CAPABLE_CONSUMER,
        ("False", R.NO_CAPABLE_CONSUMER),
    ),
    Row(
        "the leaving worker has stopped: deleted, and all is as before",
        wants("demo:v1", 2, on("v1", "v2", Stage.RETIRE)),
        (seen(V1, 2, created=1), seen(V2, 0, created=2)),
        {"fences": FENCED, "live": {V1.name: LiveWorkers(2, 2)}},
        ["delete v2"],
        Stage.IDLE,
        None,
    ),
    Row(
        "to an older worker: reserved, staged and delayed work is returned first",
        TO_OLD,
        (V2_SERVES, OLD_WORKER),
        {"fences": FENCED, "live": ALONE, "reserved": 1, "staging": 1, "delayed": 1, "quiet_since": None},
        ["recover", "return staged", "promote delayed", "v2 to 1"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
        ("False", R.RESERVATIONS_OUTSTANDING),
    ),
    Row(
        "to an older worker: empty, but not for long enough",
        TO_OLD,
        (seen(V2, 1, created=1), OLD_WORKER),
        {"fences": FENCED, "live": ALONE, "quiet_since": START - timedelta(seconds=4)},
        [],
        Stage.VERIFY_REGISTRY_EMPTY,
        R.NOT_QUIET_YET,
        ("False", R.NOT_QUIET_YET),
    ),
    Row(
        "to an older worker: empty by the word of a server that may be a replica proves nothing",
        TO_OLD,
        (seen(V2, 1, created=1), OLD_WORKER),
        {"fences": FENCED, "live": ALONE, "primary": False},
        [],
        Stage.VERIFY_REGISTRY_EMPTY,
        R.REGISTRY_NOT_READABLE,
        ("Unknown", R.REGISTRY_NOT_READABLE),
    ),
    Row(
        "to an older worker: empty and quiet, the last one that recovers is retired",
        TO_OLD,
        (seen(V2, 1, created=1), OLD_WORKER),
        {"fences": FENCED, "live": ALONE},
        ["v2 to 0"],
        Stage.RETIRE,
        R.RETIRING,
        ("True", R.EMPTY_AND_QUIET),
    ),
    Row(
        "to an older worker: work that turns up after all leads back",
        wants("demo:old", 2, on("v2", "old", Stage.RETIRE), **LEGACY),
        (seen(V2, 1, created=1), OLD_WORKER),
        {"fences": FENCED, "live": ALONE, "reserved": 1, "quiet_since": None},
        ["recover"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
    ),
    Row(
        "to an older worker: a fence that somebody lifted is set again",
        wants("demo:old", 2, on("v2", "old", Stage.RETIRE), **LEGACY),
        (seen(V2, 1, created=1), OLD_WORKER),
        {"live": ALONE},
        ["fence v2"],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
    ),
    Row(
        "to an older worker: the empty Deployment of one that recovers stays until the proof",
        TO_OLD,
        (seen(V2, 0, created=1), OLD_WORKER),
        {"fences": FENCED, "reserved": 1, "quiet_since": None},
        ["recover"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
    ),
    Row(
        "while an older worker serves, what a late wait staged is returned",
        wants("demo:old", 2, on("old"), **LEGACY),
        (OLD_WORKER,),
        {"staging": 1, "live": {}, "quiet_since": None},
        ["return staged"],
        Stage.IDLE,
        None,
    ),
    Row(
        "no workers any more: fenced first",
        TO_NONE,
        (seen(V1, 2),),
        {},
        ["fence v1"],
        Stage.STOP_RECEIVING,
        R.RECEIVING_NOT_STOPPED,
    ),
    Row(
        "no workers any more: delayed retries wait for the next worker, reserved work does not",
        TO_NONE,
        (seen(V1, 2),),
        {"fences": {V1.name: OURS}, "live": {V1.name: LiveWorkers(2, 0)}, "delayed": 3},
        ["v1 to 0"],
        Stage.RETIRE,
        R.RETIRING,
    ),
    Row(
        "no workers any more: a killed one of before is listed until it falls silent, and recovers nothing",
        GONE_V1,
        (seen(V2, 2),),
        {
            "fences": FENCED,
            "live": STOPPED,
            "reserved": 4,
            "owned": 1,
            "owned_by": {V1.name: 1},
            "quiet_since": None,
        },
        ["recover"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
        ("False", R.RESERVATIONS_OUTSTANDING),
    ),
    Row(
        "the same with its empty Deployment still there, and going back to it",
        wants("demo:v1", 0, on("v2").model_copy(update={"previous": V1.name})),
        (seen(V1, 0, created=1), seen(V2, 1, created=2)),
        {"fences": FENCED, "live": STOPPED, "reserved": 4, "quiet_since": None},
        ["recover"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
    ),
    Row(
        "the same where that one has a worker of another QueueWorker, which recovers",
        GONE_V1,
        (seen(V2, 1),),
        {"fences": FENCED, "live": STOPPED, "reserved": 4, "quiet_since": None},
        ["v2 to 0"],
        Stage.RETIRE,
        R.RETIRING,
        shared=frozenset({V1.name}),
    ),
    Row(
        "to an older worker: a killed one of before is listed until it falls silent, and recovers nothing",
        wants("demo:old", 2, on("v2", "old").model_copy(update={"previous": V1.name}), **LEGACY),
        (seen(V2, 1, created=1), OLD_WORKER),
        {"fences": FENCED, "live": STOPPED, "reserved": 4, "quiet_since": None},
        ["recover"],
        Stage.RECOVER_RESERVATIONS,
        R.RESERVATIONS_OUTSTANDING,
    ),
    Row(
        "workers again after none: our fence is lifted",
        wants("demo:v1", 2, on("v1")),
        (seen(V1, 0),),
        {"fences": {V1.name: OURS}},
        ["unfence v1", "v1 to 2"],
        Stage.IDLE,
        None,
    ),
    Row(
        "a fence that a person set is not lifted, and nothing is drained in its favour",
        wants("demo:v2", 2, on("v1", "v2")),
        (seen(V1, 2, created=1), seen(V2, 2, created=2)),
        {"fences": {V2.name: "looks wrong"}},
        [],
        Stage.PROMOTING,
        None,
    ),
    Row(
        "forward: the last workers that recover stay until one of the target is on the list",
        wants("demo:v2", 2, on("v1", "v2")),
        (seen(V1, 1, created=1), seen(V2, 2, created=2)),
        {"live": {V1.name: LiveWorkers(1, 1)}},
        [],
        Stage.PROMOTING,
        None,
    ),
    Row(
        "forward: with one on the list the old ones go",
        wants("demo:v2", 2, on("v1", "v2")),
        (seen(V1, 1, created=1), seen(V2, 2, created=2)),
        {"live": {V1.name: LiveWorkers(1, 1), V2.name: LiveWorkers(1, 1)}},
        ["v1 to 0"],
        Stage.PROMOTING,
        None,
    ),
    Row(
        "on a broker without a registry only fence and drain count",
        TO_NONE,
        (seen(V1, 2),),
        {
            "has_registry": False,
            "fences": {V1.name: OURS},
            "live": {V1.name: LiveWorkers(2, 0)},
            "owned": 5,
            "quiet_since": None,
        },
        ["v1 to 0"],
        Stage.RETIRE,
        R.RETIRING,
        ("True", R.NOT_APPLICABLE),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_way_out(row: Row) -> None:
    reading = queue(row.resource, *row.revisions, **row.reading)
    status = expect(row.resource, row.revisions, reading, row.steps, row.shared)
    assert status.rollout is not None
    assert (status.rollout.stage, status.rollout.reason) == (row.stage, row.reason)
    if row.registry:
        condition = status.condition("RegistryEmpty")
        assert condition is not None
        assert (condition.status, condition.reason) == row.registry
    if row.stage is Stage.IDLE:
        assert status.condition("RegistryEmpty") is None


def expect(
    resource: QueueWorker,
    revisions: tuple[RevisionFacts, ...],
    reading: object,
    wanted: list[str],
    shared: frozenset[str] = frozenset(),
) -> QueueWorkerStatus:
    world = facts(resource, *revisions, reading=reading)  # type: ignore[arg-type]
    decided = plan(resource, replace(world, shared=shared), START)
    assert steps(decided) == wanted
    return decided.status
