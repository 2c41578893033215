"""A canary whose workers end again and again: what its steps, the deadline and the status make of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from queueworker_operator.api.reasons import Stage
from queueworker_operator.plan.facts import Restarts
from tests.operator.canary_story import MINUTE, ONE, PAUSE, Story, begin
from tests.operator.resources import V1, V2, V3, on, seen, wants

HOW = "worker pod-a: a process of it ended."


def falls(story: Story, name: str = V2.name) -> None:
    """A worker of it ends now, and is not available for a look."""
    r = story.revisions[name]
    number = r.restarts.number + 1 if r.restarts else 1
    story.revisions[name] = replace(r, available=0, ready=0, restarts=Restarts(number, story.now, HOW))


def stands_up(story: Story, name: str = V2.name) -> None:
    r = story.revisions[name]
    story.revisions[name] = replace(r, available=r.desired, ready=r.desired)


def restarts(story: Story) -> dict[str, int]:
    return {one.name: one.restarts for one in story.status.revisions}


def shows(story: Story, *places: tuple[str, int]) -> None:
    """What is seen of the canary now: by place, how often it fell. Nothing, where none is given."""
    r = story.revisions[V2.name]
    number = sum(count for _, count in places)
    told = Restarts(number, story.now, HOW, places) if places else None
    story.revisions[V2.name] = replace(r, restarts=told)


def test_the_number_stays_while_one_that_fell_is_away() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED, "2/2")
    shows(story, ("a/0", 2), ("b/0", 1))
    story.look()
    assert restarts(story)[V2.name] == 3
    before = story.status
    shows(story, ("b/0", 1))
    story.look()
    shows(story)
    story.look()
    assert story.status == before, "also the time and what is told of it"
    assert HOW in says(story, "Ready")
    shows(story, ("a/0", 3))
    story.look()
    assert restarts(story)[V2.name] == 4, "it came back, after one more"


def test_restarts_of_a_pod_that_was_replaced_are_not_forgotten() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED, "2/2")
    shows(story, ("a/worker", 3))
    story.look()
    shows(story, ("b/worker", 2))
    story.look()
    assert restarts(story)[V2.name] == 5


def test_more_places_than_a_status_has_room_for_never_take_the_number_back() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED, "2/2")
    crowd = [(f"p{number:03}", 2) for number in range(100)]
    shows(story, *crowd)
    story.look()
    for some in (crowd[90:], crowd[:10], [], [*crowd, ("new", 1)]):
        before = restarts(story)[V2.name]
        shows(story, *some)
        story.look()
        assert before <= restarts(story)[V2.name] <= 201
        row = next(row for row in story.status.revisions if row.name == V2.name)
        assert len(row.fallen) <= 64
    assert restarts(story)[V2.name] == 201


def test_a_revision_that_is_made_again_begins_at_none() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED, "2/2")
    shows(story, ("a/0", 2))
    story.look()
    kept = story.revisions.pop(V2.name)
    story.broken.add(V2.name)
    story.look()
    story.revisions[V2.name] = replace(kept, restarts=None)
    story.look()
    assert restarts(story)[V2.name] == 0


def test_a_pause_counts_from_a_restart_that_nobody_tells_any_more() -> None:
    story = begin(ONE, MINUTE, PAUSE)
    story.until(Stage.PAUSED, "2/3")
    story.wait(50)
    shows(story, ("a/0", 1))
    story.look()
    shows(story)
    story.wait(40)
    story.look()
    assert story.step == "2/3", "94 s, but only 42 without a restart"
    story.wait(20)
    story.look()
    assert story.step == "3/3"


def test_a_pause_counts_from_the_last_restart_of_the_canary() -> None:
    story = begin(ONE, MINUTE, PAUSE)
    story.until(Stage.PAUSED, "2/3")
    story.wait(50)
    falls(story)
    story.look()
    assert (story.stage, story.step) == (Stage.CANARY_SCALING, "2/3")
    stands_up(story)
    story.until(Stage.PAUSED)
    story.wait(30)
    story.look()
    assert (story.stage, story.step) == (Stage.PAUSED, "2/3"), "86 s, but only 32 without a restart"
    ready = story.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "TimedPause"
    assert "without a restart of the canary" in ready.message
    assert HOW in ready.message
    assert restarts(story)[V2.name] == 1
    story.wait(26)
    story.look()
    assert story.step == "3/3"


def test_a_pause_counts_from_when_the_canary_stands_again_whoever_took_it_away() -> None:
    story = begin(ONE, MINUTE, PAUSE)
    story.until(Stage.PAUSED, "2/3")
    story.wait(50)
    r = story.revisions[V2.name]
    story.revisions[V2.name] = replace(r, available=0, ready=0)
    story.wait(60)
    story.look()
    assert (story.stage, story.step) == (Stage.CANARY_SCALING, "2/3")
    stands_up(story)
    story.until(Stage.PAUSED, "2/3")
    story.wait(50)
    story.look()
    assert story.step == "2/3"
    story.wait(8)
    story.look()
    assert story.step == "3/3"


def test_a_pause_counts_from_the_start_of_its_youngest_worker() -> None:
    """As after a time in which nobody looked: all that is seen is a worker that is younger than the pause."""
    story = begin(ONE, MINUTE, PAUSE)
    story.until(Stage.PAUSED, "2/3")
    story.wait(70)
    story.revisions[V2.name] = replace(story.revisions[V2.name], started_at=story.now)
    story.wait(40)
    story.look()
    assert story.step == "2/3"
    story.wait(20)
    story.look()
    assert story.step == "3/3"


def test_a_restart_before_the_pause_is_told_and_counts_for_nothing() -> None:
    story = begin(ONE, MINUTE, PAUSE)
    story.look()
    falls(story)
    story.look()
    stands_up(story)
    story.until(Stage.PAUSED, "2/3")
    ready = story.status.condition("Ready")
    assert ready is not None
    assert HOW in ready.message
    story.wait(60)
    story.look()
    assert story.step == "3/3"


def test_restarts_of_the_stable_revision_are_not_held_against_the_canary() -> None:
    story = begin(ONE, MINUTE, PAUSE)
    story.until(Stage.PAUSED, "2/3")
    story.wait(50)
    assert story.status.stable is not None
    falls(story, story.status.stable.revision)
    stands_up(story, story.status.stable.revision)
    story.look()
    story.wait(10)
    story.look()
    assert story.step == "3/3"


def test_whoever_ends_a_pause_by_hand_is_told_of_the_restarts() -> None:
    story = begin(ONE, PAUSE)
    story.until(Stage.PAUSED, "2/2")
    falls(story)
    stands_up(story)
    story.look()
    ready = story.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "PauseStep"
    assert "restarted 1 time by now" in ready.message
    assert HOW in ready.message


def test_a_canary_that_falls_again_and_again_is_stalled_and_not_promoted() -> None:
    story = begin(ONE, MINUTE, spec__progressDeadlineSeconds=120)
    story.until(Stage.PAUSED, "2/2")
    begun = story.now
    while story.now - begun < timedelta(seconds=140):
        story.wait(26)
        falls(story)
        story.look()
        assert story.status.condition("Stalled") is None
        stands_up(story)
        story.until(Stage.PAUSED)
    story.wait(26)
    story.look()
    assert (story.stage, story.step) == (Stage.PAUSED, "2/2")
    stalled = story.status.condition("Stalled")
    assert stalled is not None, "a minute that the step asks for, and two that a change may stand still"
    assert stalled.reason == "ProgressDeadlineExceeded"
    assert HOW in stalled.message
    assert story.status.promoted is None

    story.wait(40)
    story.look()
    assert story.stage is Stage.PROMOTING, "when it stands after all, the change goes on"


def test_a_pause_longer_than_the_deadline_is_no_lack_of_progress() -> None:
    story = begin(ONE, {"pause": {"durationSeconds": 3600}}, spec__progressDeadlineSeconds=60)
    story.until(Stage.PAUSED, "2/2")
    story.wait(3000)
    falls(story)
    story.look()
    assert story.stage is Stage.CANARY_SCALING
    assert story.status.condition("Stalled") is None
    stands_up(story)
    story.look()
    assert story.status.condition("Stalled") is None


def test_workers_that_are_ready_and_not_for_long_enough_are_told() -> None:
    story = begin(ONE, MINUTE)
    story.broken.add(V2.name)
    story.look()
    r = story.revisions[V2.name]
    story.revisions[V2.name] = replace(r, ready=1)
    story.look()
    ready = story.status.condition("Ready")
    assert ready is not None
    assert "0 of 1 workers" in ready.message
    assert "1 more: ready, but not for minReadySeconds yet" in ready.message


def falls_for_good(story: Story, name: str) -> None:
    """No worker of it is available from now on, and each of them fell once."""
    story.broken.add(name)
    r = story.revisions[name]
    story.revisions[name] = replace(r, available=0, ready=0, restarts=Restarts(2, story.now, HOW))


def says(story: Story, condition: str) -> str:
    found = story.status.condition(condition)
    return found.message if found else ""


def stalls(story: Story) -> str:
    """What Stalled says when the deadline is over. What is said before stays the same meanwhile."""
    story.look()
    before = says(story, "Ready"), says(story, "Reconciling")
    story.wait(100)
    story.look()
    assert (says(story, "Ready"), says(story, "Reconciling")) == before
    assert all(f"restarted 2 times by now; {HOW}" in one for one in before)
    story.wait(600)
    story.look()
    assert f"restarted 2 times by now; {HOW}" in says(story, "Stalled")
    return says(story, "Stalled")


def test_a_canary_that_falls_before_its_first_step_is_over_says_how() -> None:
    story = begin(ONE, PAUSE)
    story.broken.add(V2.name)
    story.look()
    falls_for_good(story, V2.name)
    assert stalls(story).endswith("It is still tried: correct the spec, or request Abort.")
    assert story.stage is Stage.CANARY_SCALING


def test_a_revision_that_falls_while_it_is_promoted_says_how() -> None:
    story = Story(wants("demo:v2", 4, on("v1")), seen(V1, 4))
    story.broken.add(V2.name)
    story.look()
    falls_for_good(story, V2.name)
    assert stalls(story).endswith("It is still tried: correct the spec, or request Abort.")
    assert story.stage is Stage.PROMOTING


def test_a_stable_revision_that_falls_says_how_and_names_what_is_kept() -> None:
    kept = on("v1").model_copy(update={"kept": (V1.name, V3.name)})
    story = Story(wants("demo:v1", 4, kept), seen(V1, 4))
    story.look()
    falls_for_good(story, V1.name)
    assert stalls(story).endswith(f"It is still tried: correct the spec, or request Rollback to {V3.name}.")
    assert story.stage is Stage.IDLE


def test_a_stable_revision_that_falls_and_is_the_only_one_names_the_spec() -> None:
    story = Story(wants("demo:v1", 4, on("v1")), seen(V1, 4))
    story.look()
    falls_for_good(story, V1.name)
    assert stalls(story).endswith("It is still tried: correct the spec.")


def test_old_restarts_of_workers_that_are_all_there_are_not_told() -> None:
    story = begin(ONE, PAUSE)
    story.look()
    falls(story, V1.name)
    stands_up(story, V1.name)
    story.look()
    assert HOW not in says(story, "Ready")


def test_what_is_gone_back_to_and_falls_says_how() -> None:
    status = on("v1").model_copy(update={"previous": V2.name})
    story = Story(wants("demo:v2", 4, status), seen(V1, 4))
    story.broken.add(V2.name)
    story.look()
    falls_for_good(story, V2.name)
    assert stalls(story).endswith("It is still tried: correct the spec, or request Abort.")
    assert story.said() == ("False", "ProgressDeadlineExceeded")
