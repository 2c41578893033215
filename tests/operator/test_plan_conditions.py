"""What the planner says in conditions and events, one row a sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest

from queueworker_operator.api.reasons import ConditionReason, Stage
from queueworker_operator.api.types import (
    InvalidQueueWorker,
    QueueWorker,
    QueueWorkerStatus,
    RolloutStatus,
)
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import BrokerVerdict, Facts, Refusal, WorkerFailure
from queueworker_operator.plan.planner import plan
from tests.operator.canary_story import MINUTE, ONE, Story, canary
from tests.operator.resources import (
    ANY,
    FIRST,
    GONE,
    IDLE,
    MID,
    NOBODY_LOOKED,
    ROLL,
    START,
    V1,
    V2,
    after,
    broker,
    down,
    facts,
    invalid,
    on,
    queue,
    reachable,
    seen,
    stable_status,
    template,
    wants,
    worker,
)


@dataclass
class Says:
    sentence: str
    resource: QueueWorker | InvalidQueueWorker
    facts: Facts
    #: type -> (status, reason, a part of the message), or None when it must be absent
    conditions: dict[str, tuple[str, ConditionReason, str] | None]
    now: datetime = START


R = ConditionReason
#: v1 is fenced and gone from the list: nothing is left that could be stranded.
FENCED = queue(IDLE, fences={V1.name: "QueueWorker workers/stats-usage: it leaves"})
FAILS = WorkerFailure("ImagePullBackOff", "pod a cannot pull image demo:v2. Push it or fix it.")

MANAGED = template("demo:v1")
MANAGED["spec"]["containers"][0]["env"] = [{"name": "QUEUEWORKER_PREFETCH", "value": "1"}]

SAYS = [
    Says(
        "all serve: Ready, and neither Reconciling nor Stalled",
        IDLE,
        facts(IDLE, seen(V1, 4)),
        {
            "Ready": ("True", R.SERVING, "4 of 4"),
            "Available": ("True", R.MINIMUM_REPLICAS_AVAILABLE, "4 of 4"),
            "BrokerReachable": ("True", R.REACHABLE, ""),
            "PlacementValid": ("True", R.NOT_CLUSTERED, ""),
            "Reconciling": None,
            "Stalled": None,
        },
    ),
    Says(
        "a change under way: Reconciling, still Available, not Ready",
        MID,
        facts(MID, seen(V1, 3), seen(V2, 4, 1)),
        {
            "Ready": ("False", R.PROGRESSING, V2.name),
            "Available": ("True", R.MINIMUM_REPLICAS_AVAILABLE, ""),
            "Reconciling": (
                "True",
                R.ROLLOUT_IN_PROGRESS,
                f"1 of 4 workers of {V2.name}",
            ),
            "Stalled": None,
        },
    ),
    Says(
        "an image that cannot be pulled: Reconciling says which pod, image and way out; the old serve",
        MID,
        facts(MID, seen(V1, 4), seen(V2, 4, 0, failure=FAILS)),
        {
            "Ready": ("False", R.DEGRADED, "demo:v2"),
            "Available": ("True", R.MINIMUM_REPLICAS_AVAILABLE, ""),
            "Reconciling": ("True", R.WORKERS_FAILING, "ImagePullBackOff: pod a cannot pull image demo:v2"),
            "Stalled": None,
        },
    ),
    Says(
        "no progress within the deadline: Stalled with the cause",
        wants(
            "demo:v2",
            4,
            on("v1").model_copy(
                update={
                    "rollout": RolloutStatus(
                        target=V2.name, stage=Stage.PROMOTING, started_at=START, progressed_at=START
                    )
                }
            ),
        ),
        facts(MID, seen(V1, 4), seen(V2, 4, 0, failure=FAILS), now=after(601)),
        {
            "Ready": ("False", R.PROGRESS_DEADLINE_EXCEEDED, "demo:v2"),
            "Stalled": ("True", R.PROGRESS_DEADLINE_EXCEEDED, "No progress within 600 s. ImagePullBackOff"),
            "Reconciling": None,
        },
        after(601),
    ),
    Says(
        "an unreachable broker: not Ready, the workers go on",
        IDLE,
        down(IDLE, seen(V1, 4)),
        {
            "Ready": ("False", R.BROKER_UNREACHABLE, "redis:6379 refused the connection. Workers that run"),
            "BrokerReachable": ("False", R.CONNECTION_FAILED, "redis:6379 refused"),
            "PlacementValid": ("Unknown", R.NOT_PROBED, ""),
            "Available": ("True", R.MINIMUM_REPLICAS_AVAILABLE, ""),
            "Reconciling": None,
            "Stalled": None,
        },
    ),
    Says(
        "an observation that ends with a question gets no full stop after it",
        IDLE,
        facts(IDLE, seen(V1, 4), check=broker(IDLE, BrokerVerdict.CONNECTION_FAILED, "Refused; its port?")),
        {"Ready": ("False", R.BROKER_UNREACHABLE, "Refused; its port? Workers that run are left alone.")},
    ),
    Says(
        "a wrong password: Stalled, since somebody must act",
        ROLL,
        facts(
            ROLL,
            seen(V1, 4),
            check=broker(ROLL, BrokerVerdict.AUTHENTICATION_FAILED, "WRONGPASS. Fix it."),
        ),
        {
            "Ready": ("False", R.AUTHENTICATION_FAILED, "WRONGPASS"),
            "BrokerReachable": ("False", R.AUTHENTICATION_FAILED, "WRONGPASS"),
            "Stalled": ("True", R.AUTHENTICATION_FAILED, "WRONGPASS. Fix it."),
            "Reconciling": None,
        },
    ),
    Says(
        "a missing Secret: Stalled with the name to create",
        FIRST,
        facts(FIRST, check=broker(FIRST, BrokerVerdict.SECRET_NOT_FOUND, "Secret usage-redis is missing.")),
        {
            "Stalled": ("True", R.SECRET_NOT_FOUND, "usage-redis"),
            "BrokerReachable": ("False", R.SECRET_NOT_FOUND, "usage-redis"),
            "Available": ("False", R.MINIMUM_REPLICAS_UNAVAILABLE, "0 of 3"),
        },
    ),
    Says(
        "keys that would be split over slots: the broker is reachable, the placement is not valid",
        FIRST,
        facts(FIRST, check=broker(FIRST, BrokerVerdict.UNSAFE_PLACEMENT, "Keys lie in 2 slots.")),
        {
            "Stalled": ("True", R.UNSAFE_PLACEMENT, "2 slots"),
            "BrokerReachable": ("True", R.REACHABLE, ""),
            "PlacementValid": ("False", R.UNSAFE_PLACEMENT, "2 slots"),
        },
    ),
    Says(
        "a broker that nobody could see: Unknown, and Ready stays with the workers",
        IDLE,
        facts(IDLE, seen(V1, 4), check=NOBODY_LOOKED),
        {
            "Ready": ("True", R.SERVING, ""),
            "BrokerReachable": ("Unknown", R.NOT_PROBED, "nobody looked"),
            "PlacementValid": ("Unknown", R.NOT_PROBED, ""),
        },
    ),
    Says(
        "a template that sets a managed variable: Stalled with its name",
        worker(spec__template=MANAGED),
        facts(ANY),
        {"Stalled": ("True", R.INVALID_TEMPLATE, "QUEUEWORKER_PREFETCH"), "Reconciling": None},
    ),
    Says(
        "a refused template: Stalled with what the server said",
        ROLL,
        facts(ROLL, seen(V1, 4), refusals=(Refusal(V2.name, "quota exceeded."),)),
        {"Stalled": ("True", R.INVALID_TEMPLATE, "quota exceeded.")},
    ),
    Says(
        "somebody else's Deployment in the way: Stalled with its owner",
        ROLL,
        facts(ROLL, seen(V1, 4), seen(V2, 9, conflict="owned by StatefulSet x.")),
        {"Stalled": ("True", R.NAME_CONFLICT, "StatefulSet x")},
    ),
    Says(
        "an invalid spec: Stalled with the rule's message",
        invalid(spec__prefetch=1),
        facts(ANY, seen(V1, 4)),
        {
            "Ready": ("False", R.INVALID_SPEC, "prefetch"),
            "Stalled": ("True", R.INVALID_SPEC, "spec.prefetch: prefetch must be at least coroutines"),
            "Available": ("True", R.MINIMUM_REPLICAS_AVAILABLE, ""),
        },
    ),
    Says(
        "fewer replicas: Reconciling until the surplus has stopped",
        IDLE,
        facts(IDLE, seen(V1, 4, alive=6)),
        {"Ready": ("False", R.PROGRESSING, ""), "Reconciling": ("True", R.SCALING_STABLE, "")},
    ),
    Says(
        "deletion: Reconciling until the workers have stopped",
        wants("demo:v1", 4, on("v1"), **GONE),
        facts(IDLE, seen(V1, 0, alive=2), reading=FENCED),
        {"Ready": ("False", R.DELETING, "2 workers"), "Reconciling": ("True", R.RETIRING, "")},
    ),
    Says(
        "a drain that does not end: Stalled, later than a worker may take to stop",
        wants(
            "demo:v1",
            4,
            stable_status(
                V1, rollout=RolloutStatus(stage=Stage.RETIRE, started_at=START, progressed_at=START)
            ),
            **GONE,
        ),
        facts(
            IDLE,
            seen(V1, 0, alive=2),
            reading=dataclasses.replace(FENCED, observed_at=after(646)),
            now=after(646),
        ),
        {"Stalled": ("True", R.DRAIN_OVERDUE, "2 workers"), "Reconciling": None},
        after(646),
    ),
]


@pytest.mark.parametrize("row", SAYS, ids=lambda row: row.sentence)
def test_conditions(row: Says) -> None:
    status = plan(row.resource, row.facts, row.now).status
    for type_, expected in row.conditions.items():
        condition = status.condition(type_)
        if expected is None:
            assert condition is None, condition
            continue
        assert condition is not None, f"{type_} is missing"
        state, reason, part = expected
        assert (condition.status, condition.reason) == (state, reason), condition
        assert part in condition.message
        assert condition.observed_generation == row.resource.metadata.generation


def events(decided: act.Plan) -> list[str]:
    return [action.reason.value for action in decided.actions if isinstance(action, act.EmitEvent)]


def test_a_change_is_told_once_per_transition() -> None:
    """The same facts twice: the second pass writes nothing and posts nothing."""
    story = [
        (IDLE, facts(IDLE, seen(V1, 4)), []),
        (ROLL, facts(ROLL, seen(V1, 4)), []),
        (ROLL, facts(ROLL, seen(V1, 4), seen(V2, 4, 0)), ["RolloutStarted"]),
        (ROLL, facts(ROLL, seen(V1, 4), seen(V2, 4, 0, failure=FAILS)), ["WorkersFailing"]),
        (ROLL, facts(ROLL, seen(V1, 1), seen(V2, 4, 3)), []),
        (ROLL, facts(ROLL, seen(V1, 0), seen(V2, 4)), ["Promoted"]),
        (ROLL, down(ROLL, seen(V2, 4)), ["BrokerUnreachable"]),
        (ROLL, facts(ROLL, seen(V2, 4)), ["BrokerRecovered"]),
    ]
    status = on("v1")
    for resource, observed, expected in story:
        first = plan(dataclasses.replace(resource, status=status), observed, START)
        assert events(first) == expected
        second = plan(dataclasses.replace(resource, status=first.status), observed, after(9))
        assert events(second) == []
        assert not any(isinstance(action, act.WriteStatus) for action in second.actions)
        status = first.status


def test_an_event_keeps_its_key_when_a_crash_repeats_it() -> None:
    resource = dataclasses.replace(ROLL, status=on("v1"))
    observed = down(resource, seen(V1, 4))
    keys = [
        [action.key for action in plan(resource, observed, now).actions if isinstance(action, act.EmitEvent)]
        for now in (START, after(7))
    ]
    assert keys[0]
    assert keys[0] == keys[1]


def test_a_transition_time_moves_with_the_status_only() -> None:
    status = plan(IDLE, facts(IDLE, seen(V1, 4)), START).status
    later = plan(
        dataclasses.replace(IDLE, status=status), facts(IDLE, seen(V1, 4, 3), now=after(60)), after(60)
    ).status
    times = {c.type: c.last_transition_time for c in later.conditions}
    assert times["BrokerReachable"] == START
    assert times["Ready"] == after(60)


def test_a_change_that_moves_is_not_stalled_however_long_it_takes() -> None:
    """The deadline counts from the last step forward, not from the start."""
    status = on("v1")
    for minute, available in enumerate(range(5)):
        now = after(minute * 500)
        resource = dataclasses.replace(ROLL, status=status)
        observed = facts(resource, seen(V1, 4 - available, alive=4), seen(V2, 4, available), now=now)
        status = plan(resource, observed, now).status
        assert status.condition("Stalled") is None
    stuck = plan(
        dataclasses.replace(ROLL, status=status),
        facts(ROLL, seen(V1, 0, alive=4), seen(V2, 4), now=after(2601)),
        after(2601),
    ).status
    assert stuck.condition("Stalled") is not None


def test_workers_that_get_ready_for_a_moment_again_and_again_are_no_progress() -> None:
    for make in (wants, canary_at_its_end):
        story = Story(make("demo:v2", 4, on("v1"), spec__progressDeadlineSeconds=30), seen(V1, 4))
        story.broken.add(V2.name)
        story.until(Stage.PROMOTING)
        for ready in (0, 1) * 12:
            story.revisions[V2.name] = replace(story.revisions[V2.name], ready=ready, available=ready)
            story.look()
        stalled = story.status.condition("Stalled")
        assert stalled is not None
        assert stalled.reason == R.PROGRESS_DEADLINE_EXCEEDED
        two = replace(story.revisions[V2.name], ready=2, available=2)
        story.revisions[V2.name] = two
        story.look()
        assert story.status.condition("Stalled") is None, "two of them were never ready before"


def canary_at_its_end(image: str, replicas: int, status: QueueWorkerStatus, **more: Any) -> QueueWorker:
    promoted = status.model_copy(update={"promoted": V2.name})
    return canary(promoted, ONE, MINUTE, image=image, replicas=replicas, **more)


def test_a_broker_that_takes_no_writes_is_told_where_workers_are_missing() -> None:
    full = "Redis at redis:6379 refuses to take writes (OOM ...): raise maxmemory."

    def look(status: QueueWorkerStatus, available: int, refuses: str) -> act.Plan:
        resource = wants("demo:v1", 4, status)
        check = dataclasses.replace(reachable(resource), refuses_writes=refuses)
        return plan(resource, facts(resource, seen(V1, 4, available), check=check), START)

    def event(decided: act.Plan) -> list[str]:
        return [one for one in events(decided) if one in ("WritesRefused", "BrokerRecovered")]

    whole = look(look(on("v1"), 4, "").status, 4, full)
    told, ready = (whole.status.condition(kind) for kind in ("BrokerReachable", "Ready"))
    assert told is not None
    assert (told.status, told.reason, told.message) == ("True", "WritesRefused", full)
    assert event(whole) == ["WritesRefused"]
    assert event(look(whole.status, 4, full)) == []
    assert ready is not None
    assert ready.status == "True", "what runs is left alone"
    short = look(whole.status, 3, full).status.condition("Ready")
    assert short is not None
    assert "3 of 4 workers" in short.message
    assert full in short.message
    healed = look(whole.status, 4, "")
    again = healed.status.condition("BrokerReachable")
    assert again is not None
    assert again.reason == "Reachable"
    assert event(healed) == ["BrokerRecovered"]
