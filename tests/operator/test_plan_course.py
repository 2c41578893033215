"""What keeps a change from going on, and what a person may ask of it."""

from __future__ import annotations

from typing import Any

import pytest

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.plan.revoked import told_unknown, unknown_revoked
from tests.operator.canary_story import HALF, MINUTE, ONE, PAUSE, Story, arm, begin, canary
from tests.operator.resources import OLD, V1, V2, on, seen, wants

HOLD: dict[str, Any] = {"spec__hold": {"reason": "a migration until Friday"}}
REVOKED: dict[str, Any] = {"spec__revokedVersions": [V2.version]}


def asks(action: str, id_: str = "1") -> dict[str, Any]:
    return {"spec__request": {"id": id_, "action": action}}


def manual(status: QueueWorkerStatus, image: str = "demo:v2", **more: Any) -> QueueWorker:
    return wants(image, 4, status, spec__rollout={"strategy": "Manual"}, **more)


# -- SkipStep and Promote --------------------------------------------------------------------------


def test_a_step_that_waits_may_be_skipped() -> None:
    story = begin(ONE, PAUSE, HALF, PAUSE)
    story.until(Stage.PAUSED, "2/4")
    story.wants(canary(story.status, ONE, PAUSE, HALF, PAUSE, **asks("SkipStep")))
    assert story.look() == ["v2 to 2"]
    assert (story.step, story.status.handled_request) == ("3/4", "1")
    assert "RequestHandled" in story.events
    story.until(Stage.PAUSED, "4/4")
    assert story.numbers() == {V1.name: 2, V2.name: 2}
    story.wants(canary(story.status, ONE, PAUSE, HALF, PAUSE, **asks("SkipStep", "2")))
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_a_step_that_is_being_set_is_not_skipped() -> None:
    story = begin(ONE, PAUSE)
    story.look()
    story.wants(canary(story.status, ONE, PAUSE, **asks("SkipStep")))
    story.look()
    assert "RequestIgnored" in story.events
    story.until(Stage.PAUSED, "2/2")


def test_promote_ends_the_steps() -> None:
    story = begin(ONE, arm(4), PAUSE, arm(100), PAUSE)
    story.until(Stage.PAUSED, "3/5")
    story.wants(canary(story.status, ONE, arm(4), PAUSE, arm(100), PAUSE, **asks("Promote")))
    assert story.look() == ["create v2 at 4"]
    assert (story.stage, story.step, story.status.promoted) == (Stage.VALIDATING, "5/5", V2.name)
    story.until(Stage.PROMOTING)
    story.wants(canary(story.status, ONE, arm(4), PAUSE, arm(100), PAUSE))
    story.until(Stage.IDLE)
    assert story.numbers() == {V2.name: 4}
    assert story.status.promoted is None


def test_a_promotion_is_taken_back_by_an_abort_and_by_other_steps() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED)
    story.wants(canary(story.status, ONE, PAUSE, **asks("Promote")))
    story.look()
    promoted = story.status
    story.wants(canary(story.status, ONE, PAUSE, **asks("Abort", "2")))
    story.until(Stage.IDLE)
    assert (story.numbers(), story.status.promoted) == ({V1.name: 4}, None)

    again = Story(canary(promoted, ONE, MINUTE), seen(V1, 4), seen(V2, 4, created=1))
    again.until(Stage.PAUSED)
    assert again.status.rollout is not None
    assert (again.step, again.status.rollout.attempt, again.status.promoted) == ("2/2", 2, None)
    assert again.numbers() == {V1.name: 3, V2.name: 1}


@pytest.mark.parametrize("action", ["Promote", "SkipStep"])
def test_a_request_without_a_change_is_ignored_once(action: str) -> None:
    story = Story(canary(on("v1"), image="demo:v1", **asks(action)), seen(V1, 4))
    story.look()
    story.look()
    assert story.events == ["RequestIgnored"]
    assert story.status.handled_request == "1"


@pytest.mark.parametrize("action", ["Promote", "SkipStep"])
def test_a_rolling_change_has_nothing_to_promote(action: str) -> None:
    story = Story(wants("demo:v2", 4, on("v1"), **asks(action)), seen(V1, 4))
    story.look()
    assert "RequestIgnored" in story.events


def test_a_promotion_of_one_target_is_none_of_the_next() -> None:
    story = Story(manual(on("v1"), **asks("Promote")), seen(V1, 4))
    story.look()
    assert story.status.promoted == V2.name
    story.wants(manual(story.status, "demo:v3", **asks("Promote")))
    story.until(Stage.IDLE)
    assert story.numbers() == {V1.name: 4}
    assert story.said() == ("False", "WaitingForPromotion")


# -- Manual ----------------------------------------------------------------------------------------


def test_manual_waits_for_promote_and_then_rolls() -> None:
    story = Story(manual(on("v1")), seen(V1, 4))
    assert story.look() == []
    assert story.said() == ("False", "WaitingForPromotion")
    before = story.status
    story.wait(10_000)
    assert story.look() == []
    assert story.status == before
    story.wants(manual(story.status, **asks("Promote")))
    assert story.look() == ["create v2 at 4"]
    story.until(Stage.IDLE)
    assert story.numbers() == {V2.name: 4}


def test_manual_goes_on_with_a_number_and_with_what_served_before() -> None:
    story = Story(manual(on("v1")), seen(V1, 3))
    assert story.look() == ["v1 to 4"]
    back = Story(manual(on("v1").model_copy(update={"previous": V2.name})), seen(V1, 4))
    assert back.look() == ["create v2 at 4"]


def test_a_lost_status_promotes_nothing_that_was_promoted_before() -> None:
    story = Story(manual(QueueWorkerStatus(), **asks("Promote")), seen(V1, 4))
    assert story.look() == []
    assert story.said() == ("False", "WaitingForPromotion")
    assert story.status.stable == V1.as_stable()


def test_what_is_skipped_or_promoted_in_a_paused_change_is_not_shown_as_its_beginning() -> None:
    for action, at in (("SkipStep", "4/4"), ("Promote", "2/4")):
        story = begin(ONE, PAUSE, HALF, PAUSE)
        story.until(Stage.PAUSED, "2/4")
        if at == "4/4":
            story.wants(canary(story.status, ONE, PAUSE, HALF, PAUSE, **asks("SkipStep", "0")))
            story.until(Stage.PAUSED, at)
        paused: dict[str, Any] = {**asks(action), "spec__paused": True}
        story.wants(canary(story.status, ONE, PAUSE, HALF, PAUSE, **paused))
        for _ in range(3):
            assert story.look() == []
            assert (story.stage, story.step) == (Stage.PAUSED, "4/4")
        assert story.said() == ("False", "Paused")
        story.wants(canary(story.status, ONE, PAUSE, HALF, PAUSE))
        story.look()
        assert story.numbers()[V2.name] == 4
        story.until(Stage.IDLE)
        assert story.status.stable == V2.as_stable()


def test_a_change_that_is_brought_out_after_all_counts_on_and_tells_its_steps_again() -> None:
    story = begin(ONE, MINUTE, HALF, PAUSE)
    story.until(Stage.PAUSED, "2/4")
    assert attempt(story) == 1
    told = story.events.count("StepCompleted")
    assert told == 1
    for n, wanted in ((2, 2), (4, 3)):
        story.wants(canary(story.status, ONE, MINUTE, HALF, PAUSE, **asks("Abort", str(n))))
        story.until(Stage.IDLE)
        story.wants(canary(story.status, ONE, MINUTE, HALF, PAUSE, **asks("Retry", str(n + 1))))
        story.until(Stage.PAUSED, "2/4")
        assert (attempt(story), story.events.count("StepCompleted")) == (wanted, wanted)


def test_the_same_change_asked_for_anew_tells_its_steps_again() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED)
    story.wants(canary(story.status, ONE, PAUSE, image="demo:v1"))
    story.until(Stage.IDLE)
    story.wants(canary(story.status, ONE, PAUSE))
    story.until(Stage.PAUSED)
    assert story.events.count("StepCompleted") == 2


def attempt(story: Story) -> int | None:
    assert story.status.rollout is not None
    return story.status.rollout.attempt


# -- hold ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [canary, manual, lambda status, **more: wants("demo:v2", 4, status, **more)])
def test_a_hold_keeps_a_change_from_beginning(make: object) -> None:
    assert callable(make)
    story = Story(make(on("v1"), **HOLD), seen(V1, 4))
    assert story.look() == []
    assert story.said() == ("False", "Held")
    story.wants(make(story.status, **asks("Promote")))
    assert story.look() != []


@pytest.mark.parametrize("make", [canary, manual])
def test_promote_does_not_outlast_a_hold(make: object) -> None:
    """Nobody meant the steps to be left out on the day when the hold goes."""
    assert callable(make)
    story = Story(make(on("v1"), **HOLD, **asks("Promote")), seen(V1, 4))
    assert story.look() == []
    assert (story.said(), story.events) == (("False", "Held"), ["RequestIgnored"])
    assert story.status.promoted is None
    story.wants(make(story.status, **HOLD, **asks("Promote")))
    assert (story.look(), story.events) == ([], ["RequestIgnored"])
    begun = begin(ONE, PAUSE)
    begun.until(Stage.PAUSED)
    begun.wants(canary(begun.status, ONE, PAUSE, **HOLD, **asks("Promote")))
    begun.until(Stage.IDLE)
    assert begun.status.stable == V2.as_stable(), "what has begun is not held"


def test_what_has_begun_is_not_held_and_what_goes_back_neither() -> None:
    story = begin(ONE, MINUTE)
    story.look()
    story.wants(canary(story.status, ONE, MINUTE, **HOLD))
    story.until(Stage.PAUSED)
    story.wait(60)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()
    story.wants(canary(story.status, ONE, MINUTE, image="demo:v1", **HOLD))
    story.until(Stage.IDLE)
    assert story.status.stable == V1.as_stable()


def test_the_first_revision_of_all_is_held_too() -> None:
    story = Story(wants("demo:v2", 4, QueueWorkerStatus(), **HOLD))
    assert story.look() == []
    assert story.said() == ("False", "Held")


# -- revoked versions ------------------------------------------------------------------------------


def test_a_revoked_version_is_never_brought_out() -> None:
    story = Story(wants("demo:v2", 4, on("v1"), **REVOKED), seen(V1, 4))
    assert story.look() == []
    assert story.said() == ("False", "VersionRevoked")
    first = Story(wants("demo:v2", 4, QueueWorkerStatus(), **REVOKED))
    assert first.look() == []
    assert first.said() == ("False", "VersionRevoked")


def test_a_version_that_is_revoked_on_its_way_leaves_by_the_guarded_way() -> None:
    story = begin()
    story.until(Stage.PAUSED, "3/8")
    story.wants(canary(story.status, **REVOKED))
    assert story.until(Stage.IDLE) == ["fence v2-p4", "v1 to 4", "v2-p4 to 0", "delete v2-p4"]
    assert story.said() == ("False", "VersionRevoked")
    story.wants(canary(story.status, **REVOKED, **asks("Promote")))
    assert story.look() == []
    assert story.events[-1] == "RequestIgnored"


def test_a_stable_revision_that_is_revoked_goes_on_serving_and_says_so() -> None:
    story = Story(wants("demo:v2", 3, on("v2"), **REVOKED), seen(V2, 2))
    assert story.look() == ["v2 to 3"]
    story.look()
    assert story.said() == ("False", "VersionRevoked")
    assert story.status.condition("Stalled") is None


def test_a_legacy_revision_that_is_revoked_is_not_gone_to() -> None:
    revoked = {"spec__revokedVersions": [OLD.version], "spec__protocol": "Legacy"}
    story = Story(wants("demo:old", 4, on("v1"), **revoked), seen(V1, 4))
    assert story.look() == []
    assert story.numbers() == {V1.name: 4}


# -- a revoked version that nobody knows -----------------------------------------------------------


def test_a_word_that_is_no_version_is_warned_of_once() -> None:
    typo = f"{V1.version[:-1]}x"
    story = begin(ONE, PAUSE, spec__revokedVersions=[typo, OLD.version, V1.version])
    story.look()
    assert story.events.count("RevokedVersionUnknown") == 1
    assert unknown_revoked(story.status) == (typo, OLD.version)
    told = told_unknown(unknown_revoked(story.status), story.status)
    assert typo in told
    assert V1.version in told.partition("known:")[2]
    assert V2.version in told.partition("known:")[2]
    story.until(Stage.PAUSED, "2/2")
    assert story.events.count("RevokedVersionUnknown") == 1
    assert story.step == "2/2", "it is no error"


def test_a_version_that_was_known_once_is_no_typing_mistake_later() -> None:
    story = Story(wants("demo:v1", 4, on("v1"), spec__revokedVersions=[V2.version]), seen(V1, 4), seen(V2, 0))
    story.look()
    assert unknown_revoked(story.status) == ()
    story.revisions.pop(V2.name, None)
    story.look()
    story.wants(wants("demo:v1", 4, story.status, spec__revokedVersions=[V2.version], metadata__generation=2))
    story.look()
    assert unknown_revoked(story.status) == ()
    assert "RevokedVersionUnknown" not in story.events


def test_a_version_that_comes_is_known_and_kept_out() -> None:
    story = Story(wants("demo:v1", 4, on("v1"), **REVOKED), seen(V1, 4))
    story.look()
    assert unknown_revoked(story.status) == (V2.version,)
    story.wants(wants("demo:v2", 4, story.status, **REVOKED))
    story.look()
    assert unknown_revoked(story.status) == ()
    ready = story.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "VersionRevoked"


def test_the_warning_goes_with_the_word() -> None:
    story = Story(wants("demo:v1", 4, on("v1"), **REVOKED), seen(V1, 4))
    story.look()
    story.wants(wants("demo:v1", 4, story.status))
    story.look()
    assert story.status.revoked == ()
