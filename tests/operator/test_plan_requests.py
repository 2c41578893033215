"""Requests in the spec: each id is answered once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.plan_words import steps
from tests.operator.resources import START, V1, V2, facts, on, queue, seen, wants

HALF_WAY = (seen(V1, 2, created=1), seen(V2, 2, 1, created=2))
STOPPED = {"live": {V1.name: LiveWorkers(2, 2), V2.name: LiveWorkers(2, 0)}}


def asks(action: str, id_: str, status: QueueWorkerStatus, image: str = "demo:v2") -> QueueWorker:
    return wants(image, 2, status, spec__request={"id": id_, "action": action})


def look(resource: QueueWorker, *revisions: RevisionFacts, **changes: Any) -> act.Plan:
    return plan(resource, facts(resource, *revisions, reading=queue(resource, *revisions, **changes)), START)


def told(decided: act.Plan) -> list[str]:
    return [action.reason.value for action in decided.actions if isinstance(action, act.EmitEvent)]


def test_abort_goes_back_by_the_guarded_way_and_retry_forward_again() -> None:
    resource = asks("Abort", "1", on("v1", "v2"))
    decided = look(resource, *HALF_WAY)
    assert steps(decided) == ["fence v2", "v2 to 1"]
    assert "RequestHandled" in told(decided)
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is Stage.STOP_RECEIVING
    assert (decided.status.handled_request, decided.status.aborted) == ("1", V2.name)

    fence = {V2.name: next(a.reason for a in decided.actions if isinstance(a, act.FenceRevision))}
    resource = replace(resource, status=decided.status)
    decided = look(resource, seen(V1, 2, created=1), seen(V2, 1, created=2), fences=fence, **STOPPED)
    assert steps(decided) == ["v2 to 0"]
    assert "RequestHandled" not in told(decided)

    resource = replace(resource, status=decided.status)
    decided = look(resource, seen(V1, 2, created=1), seen(V2, 0, created=2), fences=fence)
    assert steps(decided) == ["delete v2"]
    ready = decided.status.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "RolloutAborted")
    assert decided.status.condition("Reconciling") is None
    assert decided.status.condition("Stalled") is None
    assert decided.status.rollout is not None
    assert decided.status.rollout.stage is Stage.IDLE

    resource = replace(resource, status=decided.status)
    assert steps(look(resource, seen(V1, 2), fences=fence)) == [], "it stays so"

    again = asks("Retry", "2", decided.status)
    decided = look(again, seen(V1, 2), fences=fence)
    assert steps(decided) == ["unfence v2", "create v2 at 2"]
    assert (decided.status.handled_request, decided.status.aborted) == ("2", None)


def test_another_wish_ends_an_abort() -> None:
    aborted = on("v1").model_copy(update={"aborted": V2.name, "handled_request": "1"})
    decided = look(asks("Abort", "1", aborted, image="demo:v3"), seen(V1, 2))
    assert steps(decided) == ["create v3 at 2"]
    assert decided.status.aborted is None
    back = look(asks("Abort", "1", aborted, image="demo:v1"), seen(V1, 2))
    ready = back.status.condition("Ready")
    assert ready is not None
    assert (ready.status, back.status.aborted) == ("True", None)


def test_a_request_that_does_not_apply_is_ignored_once() -> None:
    for action in ("Abort", "Retry"):
        resource = asks(action, "7", on("v1"), image="demo:v1")
        first = look(resource, seen(V1, 2))
        assert (steps(first), told(first)) == ([], ["RequestIgnored"])
        assert first.status.handled_request == "7"
        again = look(replace(resource, status=first.status), seen(V1, 2))
        assert told(again) == []
        assert first.status.request_ignored
        assert again.status.request_ignored == first.status.request_ignored, "as long as the spec has it"
        gone = look(wants("demo:v1", 2, again.status), seen(V1, 2))
        assert gone.status.request_ignored is None


def test_why_a_request_was_ignored_ends_with_the_next_one() -> None:
    ignored = on("v1", "v2").model_copy(update={"handled_request": "7", "request_ignored": "too late."})
    decided = look(asks("Abort", "8", ignored), *HALF_WAY)
    assert (decided.status.handled_request, decided.status.request_ignored) == ("8", None)


def test_a_change_that_never_had_a_stable_revision_cannot_be_aborted() -> None:
    decided = look(asks("Abort", "1", QueueWorkerStatus()), seen(V2, 2, 1))
    assert "RequestIgnored" in told(decided)
    assert decided.status.aborted is None


def test_a_stable_revision_that_is_gone_cannot_be_made_anew() -> None:
    aborted = on("v1").model_copy(update={"aborted": V2.name, "handled_request": "1"})
    decided = look(asks("Abort", "1", aborted), seen(V2, 2))
    assert steps(decided) == []
    stalled = decided.status.condition("Stalled")
    assert stalled is not None
    assert stalled.reason == "StableMissing"


def test_without_the_stable_revision_there_is_nothing_to_go_back_to() -> None:
    """As when the operator died after it had deleted the last of it and before it could write so."""
    decided = look(asks("Abort", "1", on("v1", "v2")), seen(V2, 2))
    assert "RequestIgnored" in told(decided)
    assert decided.status.stable == V2.as_stable()


def test_a_crash_before_the_status_is_written_repeats_the_same() -> None:
    resource = asks("Abort", "1", on("v1", "v2"))
    first, second = look(resource, *HALF_WAY), look(resource, *HALF_WAY)
    assert first == second
    keys = [action.key for action in first.actions if isinstance(action, act.EmitEvent)]
    assert len(keys) == len(set(keys))
