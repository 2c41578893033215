"""Edits in the middle of a canary and of the way back from one, under load."""

from __future__ import annotations

import pytest

from e2e.fixtures import wait_until
from queueworker_operator.api.reasons import WAY_OUT
from tests.cluster.operators import Installed
from tests.cluster.story import LONG, NAME, SOON, Story, event_payloads, with_version
from tests.cluster.test_canary import PAUSE, arm, asks, in_steps, numbers, then_at

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]


def then_leaves(story: Story) -> None:
    """The canary is on its way back."""
    wait_until(lambda: story.stage() in WAY_OUT, "the canary leaves by the guarded way", SOON)


def test_a_canary_that_is_edited_all_the_time_and_deleted_in_the_end(
    installed: Installed, story: Story
) -> None:
    first = in_steps(story.given_broker(), arm(4), PAUSE, arm(20), PAUSE, shutdownSeconds=5)
    stable = story.given_ready(first)
    second, third, fourth = (with_version(first, version) for version in ("v2", "v3", "v4"))

    with story.publishing(event_payloads(1500), pause=0.4):
        story.apply(second)
        then_at(story, "Paused", "3/5")

        # Another number: the workers are split anew, and the step stays.
        story.kubectl("scale", f"qw/{NAME}", "--replicas=3")
        wait_until(lambda: numbers(story) == {"Stable p20": 2, "Canary p4": 1}, "it is split anew", SOON)
        then_at(story, "Paused", "3/5")
        for one in (second, third, fourth):
            one["spec"]["replicas"] = 3

        # Paused: what was asked for begins when the pause is over.
        waits = asks(second, "1", "SkipStep")
        story.apply(waits | {"spec": waits["spec"] | {"paused": True}})
        story.then_condition("Ready", "False", "Paused")
        assert [one["spec"]["replicas"] for one in story.deployments()] == [2, 1], "no other arm starts"
        story.apply(waits)
        then_at(story, "Paused", "5/5")
        assert numbers(story) == {"Stable p20": 2, "Canary p20": 1}
        left = story.resource()["status"]["rollout"]["target"]

        # Another template, and another one in the middle of the way back: the last is brought out.
        story.apply(third)
        then_leaves(story)
        story.apply(fourth)
        then_at(story, "Paused", "3/5")
        rollout = story.resource()["status"]["rollout"]
        assert rollout["attempt"] == 1
        assert rollout["target"] not in (left, stable)
        assert left in story.reading().fences, "the first change was taken back by the guarded way"
        assert numbers(story) == {"Stable p20": 2, "Canary p4": 1}

        # The spec is put back, with the smaller number.
        story.apply(first)
        assert story.then_serves(first) == stable
        assert [one["spec"]["replicas"] for one in story.deployments()] == [2]

        # The same change once more, put back, and deleted in the middle of that.
        story.apply(second | {"spec": second["spec"] | {"replicas": 2}})
        then_at(story, "Paused", "3/5")
        first_arm = f"{left.rpartition('-p')[0]}-p4"
        assert first_arm not in story.reading().fences, "it was fenced once, and is wanted again"
        story.apply(first)
        then_leaves(story)
        story.kubectl("delete", "queueworker", NAME, "--wait=false")
        story.then_gone(seconds=LONG)

    reading = story.reading()
    committed = sum(row.committed for row in reading.ledger.values())
    assert reading.private == reading.failed == reading.dead == reading.poison == 0, reading
    assert reading.fences == {}, "they go with the resource"
    assert committed + reading.ready == 1500
    assert len(story.handled()) == committed
    assert set(story.handled().values()) == {1}
