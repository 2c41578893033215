"""A canary: what is done at each step. That it survives every order of events is in the model check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorkerStatus
from queueworker_operator.plan.facts import Unknown, WorkerFailure
from queueworker_operator.plan.planner import plan
from tests.operator.canary_story import HALF, MINUTE, ONE, P4, P8, PAUSE, Story, arm, begin, canary
from tests.operator.plan_words import steps
from tests.operator.resources import (
    OLD,
    START,
    V1,
    V2,
    after,
    down,
    facts,
    image_revision,
    invalid,
    on,
    queue,
    seen,
    target_of,
    wants,
)


def test_each_arm_is_a_revision_and_the_one_before_leaves_fenced_when_it_serves() -> None:
    story = begin()
    assert story.look() == ["create v2-p4 at 1"]
    assert (story.stage, story.step) == (Stage.CANARY_SCALING, "1/8")
    assert story.look() == ["v1 to 3"]
    assert story.look() == []
    assert (story.stage, story.step) == (Stage.PAUSED, "3/8")

    story.wait(60)
    assert story.look() == ["create v2-p8 at 1"]
    assert (story.stage, story.step) == (Stage.ARM_CHANGING, "4/8")
    assert story.look() == ["fence v2-p4"]
    assert story.look() == ["v2-p4 to 0"]
    assert story.look() == ["delete v2-p4"]
    assert story.look() == []
    assert (story.stage, story.step) == (Stage.PAUSED, "5/8")
    assert story.numbers() == {V1.name: 3, P8.name: 1}

    story.wait(60)
    assert story.look() == ["create v2 at 2"], "what follows each other is set together"
    story.until(Stage.PAUSED, "8/8")
    assert story.numbers() == {V1.name: 2, V2.name: 2}
    story.wait(100_000)
    story.look()
    assert story.stage is Stage.PAUSED, "a pause without an end has none"
    assert story.status.stable == V1.as_stable()
    assert story.most <= 6, "as many as wanted, and one canary more"


def test_after_the_last_step_the_promoted_revision_takes_over() -> None:
    story = begin(ONE, MINUTE)
    story.until(Stage.PAUSED, "2/2")
    story.wait(60)
    assert story.look() == [], "it is written down first: whoever dies in between takes nothing back"
    assert (story.stage, story.status.promoted) == (Stage.PROMOTING, V2.name)
    assert story.look() == ["v2 to 4"]
    story.until(Stage.IDLE)
    assert story.numbers() == {V2.name: 4}
    assert story.status.stable == V2.as_stable()
    assert story.status.promoted is None
    assert story.status.rollout is not None
    assert story.status.rollout.step is None
    assert story.events.count("RolloutStarted") == 2, "as a canary, and to take over"
    assert story.events.count("Promoted") == 1
    assert story.events.count("StepCompleted") == 2


@pytest.mark.parametrize(
    ("wanted", "scale", "stable", "beside"),
    [
        (4, {"replicas": 1}, 3, 1),
        (4, {"replicas": 9}, 1, 3),
        (4, {"percent": 1}, 3, 1),
        (4, {"percent": 51}, 1, 3),
        (4, {"percent": 100}, 1, 3),
        (1, {"replicas": 1}, 1, 1),
        (1, {"percent": 100}, 1, 1),
        (2, {"percent": 50}, 1, 1),
    ],
)
def test_the_stable_revision_keeps_a_worker(
    wanted: int, scale: dict[str, int], stable: int, beside: int
) -> None:
    story = begin({"setCanaryScale": scale}, PAUSE, replicas=wanted)
    story.until(Stage.PAUSED)
    assert story.numbers() == {V1.name: stable, V2.name: beside}


def test_only_the_number_of_workers_changes_the_split_and_not_the_step() -> None:
    story = begin(HALF, PAUSE)
    story.until(Stage.PAUSED)
    for number, split in ((6, (3, 3)), (2, (1, 1))):
        story.wants(canary(story.status, HALF, PAUSE, replicas=number))
        story.until(Stage.PAUSED)
        assert (story.step, story.numbers()) == ("2/2", dict(zip((V1.name, V2.name), split, strict=True)))


def test_other_steps_begin_at_the_first_again() -> None:
    story = begin()
    story.until(Stage.PAUSED, "3/8")
    story.wait(60)
    story.until(Stage.PAUSED, "5/8")
    story.wants(canary(story.status, ONE, arm(4), PAUSE, arm(100)))
    assert story.look() == ["unfence v2-p4", "create v2-p4 at 1"]
    assert story.status.rollout is not None
    assert (story.step, story.status.rollout.attempt) == ("1/4", 2)
    story.until(Stage.PAUSED, "3/4")
    assert story.numbers() == {V1.name: 3, P4.name: 1}
    assert story.events.count("StepsRestarted") == 1


def test_another_template_takes_the_canary_back_before_the_next_one_begins() -> None:
    story = begin()
    story.until(Stage.PAUSED, "3/8")
    story.wants(canary(story.status, image="demo:v3"))
    done = story.until(Stage.IDLE)
    assert done == ["fence v2-p4", "v1 to 4", "v2-p4 to 0", "delete v2-p4"]
    ready = story.status.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Superseded")
    assert story.look() == ["create v3-p4 at 1"]
    assert (story.stage, story.step) == (Stage.CANARY_SCALING, "1/8")


def test_a_change_of_prefetch_alone_goes_through_the_stable_arm() -> None:
    stable = image_revision("demo:v1", spec__prefetch=4)
    status = on("v1").model_copy(update={"stable": stable.as_stable()})
    story = Story(canary(status, image="demo:v1"), seen(stable, 4))
    story.until(Stage.PAUSED, "3/8")
    assert story.numbers() == {stable.name: 4}, "the stable revision is that arm"
    story.wait(60)
    story.until(Stage.PAUSED, "5/8")
    assert story.numbers() == {stable.name: 3, image_revision("demo:v1", spec__prefetch=8).name: 1}
    assert stable.name not in story.fences


def test_an_abort_in_an_arm_takes_back_what_is_there() -> None:
    story = begin()
    story.until(Stage.PAUSED, "3/8")
    story.wait(60)
    story.look()
    assert set(story.numbers()) == {V1.name, P4.name, P8.name}, "between two arms"
    story.wants(canary(story.status, spec__request={"id": "1", "action": "Abort"}))
    story.until(Stage.IDLE)
    assert story.numbers() == {V1.name: 4}
    ready = story.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "RolloutAborted"
    assert story.look() == []
    story.wants(canary(story.status, spec__request={"id": "2", "action": "Retry"}))
    assert story.look() == ["unfence v2-p4", "create v2-p4 at 1"]
    assert story.step == "1/8"


def test_an_arm_that_cannot_start_leaves_the_one_before_serving() -> None:
    story = begin()
    story.until(Stage.PAUSED, "3/8")
    story.broken.add(P8.name)
    story.wait(60)
    for _ in range(5):
        story.look()
    assert story.numbers() == {V1.name: 3, P4.name: 1, P8.name: 1}
    assert story.stage is Stage.ARM_CHANGING
    assert not story.fences
    story.wait(700)
    story.look()
    stalled = story.status.condition("Stalled")
    assert stalled is not None
    assert stalled.reason == "ProgressDeadlineExceeded"


def test_a_canary_that_dies_in_a_pause_is_waited_for() -> None:
    story = begin(ONE, MINUTE)
    story.until(Stage.PAUSED)
    story.broken.add(V2.name)
    story.sized(V2.name, 1)
    story.wait(60)
    assert story.look() == ["v1 to 4"], "the stable revision serves for it"
    assert (story.stage, story.step) == (Stage.CANARY_SCALING, "2/2")
    story.broken.clear()
    story.sized(V2.name, 1)
    story.until(Stage.PROMOTING)


def test_a_broker_that_is_away_freezes_the_step() -> None:
    story = begin(ONE, MINUTE)
    story.until(Stage.PAUSED)
    story.wait(60)
    unread = Unknown("nobody could look", story.now)
    assert story.look(unread) == []
    assert (story.stage, story.step) == (Stage.PAUSED, "2/2")
    rows = tuple(story.revisions.values())
    decided = plan(story.resource, down(story.resource, *rows), START)
    assert steps(decided) == []
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is Stage.PAUSED
    ready = decided.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "BrokerUnreachable"
    assert story.look() == []
    assert story.look() == ["v2 to 4"]


def test_what_cannot_be_seen_takes_nothing_over() -> None:
    story = begin(ONE, MINUTE)
    story.look()
    assert story.look(Unknown("nobody could look", story.now)) == []
    assert story.numbers() == {V1.name: 4, V2.name: 1}
    del story.revisions[V2.name]
    story.sized(V1.name, 3)
    assert story.look(Unknown("nobody could look", story.now)) == ["v1 to 4"], "workers are missing"


def test_the_stable_arm_is_not_over_either_when_nobody_can_look() -> None:
    stable = image_revision("demo:v1", spec__prefetch=4)
    status = on("v1").model_copy(update={"stable": stable.as_stable()})
    story = Story(canary(status, image="demo:v1"), seen(stable, 4))
    story.until(Stage.PAUSED, "3/8")
    story.wait(60)
    story.look(Unknown("nobody could look", story.now))
    assert (story.stage, story.step) == (Stage.PAUSED, "3/8")


def test_a_pause_of_the_spec_stops_the_steps_and_no_number() -> None:
    story = begin(ONE, MINUTE)
    story.until(Stage.PAUSED)
    story.wait(60)
    story.wants(canary(story.status, ONE, MINUTE, replicas=6, spec__paused=True))
    assert story.look() == ["v1 to 5"]
    ready = story.status.condition("Ready")
    assert ready is not None
    assert (ready.reason, story.step) == ("Paused", "2/2")
    fresh = begin(spec__paused=True)
    assert fresh.look() == []
    assert fresh.stage is Stage.VALIDATING


def test_a_status_that_was_lost_begins_at_the_first_step_and_promotes_nothing() -> None:
    story = begin()
    story.until(Stage.PAUSED, "3/8")
    story.wait(60)
    story.until(Stage.PAUSED, "5/8")
    asked = {"id": "old", "action": "Promote"}
    story.resource = canary(QueueWorkerStatus(), spec__request=asked)
    assert story.look() == ["unfence v2-p4", "create v2-p4 at 1"]
    assert (story.step, story.status.stable) == ("1/8", V1.as_stable())
    assert story.events[-1] != "Promoted"
    assert "RequestIgnored" in story.events
    story.until(Stage.PAUSED, "3/8")


def test_a_lost_status_in_the_promotion_begins_at_the_first_step() -> None:
    story = begin(ONE, MINUTE)
    story.until(Stage.PAUSED)
    story.wait(60)
    story.look()
    story.look()
    assert story.numbers() == {V1.name: 3, V2.name: 4}
    story.resource = canary(QueueWorkerStatus(), ONE, MINUTE)
    story.until(Stage.PAUSED, "2/2")
    assert story.numbers() == {V1.name: 3, V2.name: 1}
    assert story.status.stable == V1.as_stable()


def test_a_lost_status_does_not_make_a_canary_stable_that_is_not_wanted_any_more() -> None:
    story = Story(canary(QueueWorkerStatus(), image="demo:v1"), seen(V1, 3), seen(V2, 1, created=1.0))
    assert "v2 to 3" not in story.look()
    assert story.status.stable == V1.as_stable()
    story.until(Stage.IDLE)
    assert story.numbers() == {V1.name: 4}


def test_a_typo_in_the_spec_costs_no_step_and_no_answer() -> None:
    story = begin(ONE, PAUSE, HALF, PAUSE)
    story.until(Stage.PAUSED, "2/4")
    asked: dict[str, Any] = {"spec__request": {"id": "p", "action": "SkipStep"}}
    story.wants(canary(story.status, ONE, PAUSE, HALF, PAUSE, **asked))
    story.until(Stage.PAUSED, "4/4")
    promote: dict[str, Any] = {"spec__request": {"id": "q", "action": "Promote"}}
    story.wants(canary(story.status, ONE, PAUSE, HALF, PAUSE, **promote))
    story.look()
    before = story.status
    assert (story.step, before.promoted) == ("4/4", V2.name)

    typo = invalid(spec__prefetch=1, status=before.to_body())
    rows = tuple(story.revisions.values())
    refused = plan(typo, facts(story.resource, *rows, now=story.now), story.now).status
    stalled = refused.condition("Stalled")
    assert stalled is not None
    assert stalled.reason == "InvalidSpec"
    assert (refused.rollout, refused.promoted) == (before.rollout, before.promoted)

    story.resource = canary(refused, ONE, PAUSE, HALF, PAUSE, **promote)
    story.until(Stage.IDLE)
    assert story.numbers() == {V2.name: 4}


def test_a_canary_that_cannot_start_says_why_from_the_first_on() -> None:
    story = begin(ONE, PAUSE)
    story.broken.add(V2.name)
    story.look()
    failure = WorkerFailure("CrashLoopBackOff", "exit code 1: no such table.")
    story.revisions[V2.name] = replace(story.revisions[V2.name], failure=failure)
    story.look()
    assert story.said() == ("False", "Degraded")
    assert "WorkersFailing" in story.events
    story.wait(600)
    story.look()
    stalled = story.status.condition("Stalled")
    assert stalled is not None
    assert stalled.reason == "ProgressDeadlineExceeded"
    assert "no such table" in stalled.message
    assert "request Abort" in stalled.message


def test_the_first_revision_of_all_takes_no_steps() -> None:
    story = Story(canary(QueueWorkerStatus()))
    assert story.look() == ["create v2 at 4"]
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_back_to_what_served_before_takes_no_steps() -> None:
    status = on("v1").model_copy(update={"previous": V2.name})
    story = Story(canary(status), seen(V1, 4))
    assert story.look() == ["create v2 at 4"]
    story.until(Stage.IDLE)
    assert story.numbers() == {V2.name: 4}
    assert V1.name in story.fences


def test_beside_a_legacy_revision_the_canary_is_the_only_one_that_recovers() -> None:
    status = on("old")
    story = Story(canary(status), seen(OLD, 4))
    story.until(Stage.PAUSED, "3/8")
    story.wait(60)
    story.look()
    rows = tuple(story.revisions.values())
    deaf = queue(story.resource, *rows, now=after(200), live={}, fences={P4.name: "x"})
    decided = plan(story.resource, facts(story.resource, *rows, reading=deaf, now=after(200)), after(200))
    assert not [word for word in steps(decided) if word in ("v2-p4 to 0", "delete v2-p4")]
    story.until(Stage.PAUSED, "5/8")
    assert story.numbers() == {OLD.name: 3, P8.name: 1}


def test_a_canary_of_no_workers_is_none() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED)
    story.wants(canary(story.status, ONE, PAUSE, replicas=0))
    story.until(Stage.IDLE)
    assert story.numbers() == {V1.name: 0}
    ready = story.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "NoWorkersWanted"
    story.wants(canary(story.status, ONE, PAUSE, replicas=2))
    story.until(Stage.PAUSED)
    assert story.numbers() == {V1.name: 1, V2.name: 1}


def test_a_stable_revision_that_is_gone_is_not_replaced_by_a_canary() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED)
    del story.revisions[V1.name]
    story.look()
    stalled = story.status.condition("Stalled")
    assert stalled is not None
    assert stalled.reason == "StableMissing"
    assert "Promote" in stalled.message
    story.wants(canary(story.status, ONE, PAUSE, spec__request={"id": "1", "action": "Promote"}))
    story.until(Stage.IDLE)
    assert story.numbers() == {V2.name: 4}


def test_what_nothing_changes_is_not_written_again() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED)
    before = story.status
    for _ in range(3):
        assert story.look() == []
        story.wait(1000)
    assert story.status == before


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("serves", [True, False])
def test_an_arm_that_still_leaves_takes_nobody_with_it_when_the_change_is_promoted(
    serves: bool, replicas: int
) -> None:
    steps = (ONE, arm(4), PAUSE, arm(100), PAUSE)
    story = begin(*steps, replicas=replicas)
    story.until(Stage.PAUSED, "3/5")
    asked: dict[str, Any] = {"spec__request": {"id": "1", "action": "SkipStep"}}
    story.wants(canary(story.status, *steps, replicas=replicas, **asked))
    story.until(Stage.ARM_CHANGING, "4/5")
    while P4.name not in story.fences:
        story.look()
    asked["spec__request"] = {"id": "2", "action": "Promote"}
    story.wants(canary(story.status, *steps, replicas=replicas, **asked))
    if not serves:
        story.broken.add(V2.name)
        story.sized(V2.name, 1)
    for _ in range(30):
        story.look()
        assert V1.name not in story.fences, "what serves is drained as in every change forward"
    assert P4.name not in story.numbers(), "it left, whether the other one serves or not"
    if not serves:
        assert story.numbers()[V1.name] == replicas
        story.broken.clear()
        story.sized(V2.name, 1)
        for _ in range(30):
            story.look()
            assert V1.name not in story.fences, "nor when the new one serves at last"
    assert story.stage is Stage.IDLE
    assert story.status.stable == V2.as_stable()
    assert story.numbers() == {V2.name: replicas}
    assert "Promoted" in story.events
    assert "RolledBack" not in story.events


def test_an_arm_whose_end_was_not_written_down_takes_nobody_with_it() -> None:
    steps = (ONE, arm(4), PAUSE, arm(100), PAUSE)
    story = begin(*steps, replicas=1)
    story.until(Stage.PAUSED, "3/5")
    asked: dict[str, Any] = {"spec__request": {"id": "1", "action": "SkipStep"}}
    story.wants(canary(story.status, *steps, replicas=1, **asked))
    story.until(Stage.ARM_CHANGING, "4/5")
    while P4.name not in story.fences:
        story.look()
    asked["spec__request"] = {"id": "2", "action": "Promote"}
    story.wants(canary(story.status, *steps, replicas=1, **asked))
    story.broken.add(V2.name)
    story.sized(V2.name, 1)
    before = story.resource
    while P4.name in story.numbers():
        before = story.resource
        story.look()
    # The operator was killed before it wrote that down, and by now the new one serves.
    story.resource = before
    story.broken.clear()
    story.sized(V2.name, 1)
    for _ in range(10):
        story.look()
        assert V1.name not in story.fences
    assert (story.stage, story.status.stable) == (Stage.IDLE, V2.as_stable())


@pytest.mark.parametrize("serves", [True, False])
def test_what_was_aborted_leaves_for_whatever_serves_when_another_version_comes(serves: bool) -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED)
    asked: dict[str, Any] = {"spec__request": {"id": "1", "action": "Abort"}}
    story.wants(canary(story.status, ONE, PAUSE, **asked))
    while V2.name not in story.fences:
        story.look()
    third = wants("demo:v3", 4, story.status)
    v3 = target_of(third)
    if not serves:
        story.broken.add(v3.name)
    story.wants(third)
    for _ in range(30):
        story.look()
        assert V1.name not in story.fences
    assert V2.name not in story.numbers(), "it left, whether the third serves or not"
    if serves:
        assert story.status.stable == v3.as_stable()
        assert story.events[-1] == "Promoted"
    else:
        assert story.numbers()[V1.name] == 4
