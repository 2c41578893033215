"""What the verbs of `kubectl queueworker` write, what they refuse, and what they say of it."""

from __future__ import annotations

from typing import Any

import pytest

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.request import RolledBackStatus
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.rollout import Step, steps_hash
from queueworker_operator.api.types import QueueWorkerStatus, RevisionStatus, Role, RolloutStatus
from queueworker_operator.cli.seen import of_body
from queueworker_operator.cli.spec_in_cluster import patch
from queueworker_operator.cli.wishes import (
    Decided,
    Edit,
    RefusedWishError,
    Subject,
    Verb,
    Wish,
    also_written_by,
    decide,
)
from tests.operator.resources import START, V1, V2, body, on, stable_status, template

STEPS = [{"setCanaryScale": {"replicas": 1}}, {"pause": {}}]
CANARY = {"strategy": "Canary", "steps": STEPS}
MANUAL = {"strategy": "Manual"}


def subject(
    status: QueueWorkerStatus,
    image: str = "demo:v2",
    observed: int | None = 1,
    running: tuple[Revision, ...] = (V1, V2),
    **changes: Any,
) -> Subject:
    """One whose status is of its generation, unless it says otherwise."""
    rows = [revision_status(one) for one in running] if status.stable else []
    status = status.model_copy(update={"observed_generation": observed, "revisions": tuple(rows)})
    one = body(spec__template=template(image), status=status.to_body(), **changes)
    found = of_body(one)
    return Subject(found, one, found.status.observed_generation == found.generation)


def revision_status(revision: Revision) -> RevisionStatus:
    return RevisionStatus(
        name=revision.name,
        version=revision.version,
        deployment=revision.deployment,
        role=Role.TARGET,
        replicas=1,
        ready_replicas=1,
        prefetch=revision.prefetch,
    )


def asked(verb: Verb, one: Subject, *, force: bool = False, **more: str) -> Decided:
    return decide(Wish(verb, f"{verb}-1", **more), one, START, force=force)


def refused(verb: Verb, one: Subject, *, force: bool = False, **more: str) -> str:
    with pytest.raises(RefusedWishError) as refusal:
        asked(verb, one, force=force, **more)
    return str(refusal.value)


def at_step(step: str, stage: Stage = Stage.PAUSED) -> QueueWorkerStatus:
    hashed = steps_hash([Step.model_validate(one) for one in STEPS])
    at = RolloutStatus(
        target=V2.name,
        stage=stage,
        started_at=START,
        step=step,
        attempt=1,
        steps_hash=hashed,
        step_started_at=START,
    )
    return stable_status(V1, rollout=at)


def test_a_request_has_its_action_and_its_id_and_says_what_follows() -> None:
    decided = asked(Verb.ABORT, subject(on("v1", "v2")))
    assert decided.edit == Edit("request", {"id": "abort-1", "action": "Abort"})
    assert decided.before == "spec.request was not set"
    assert f"the change to {V2.name} is aborted" in decided.following

    decided = asked(Verb.SKIP, subject(at_step("2/2"), spec__rollout=CANARY))
    assert decided.edit == Edit("request", {"id": "skip-1", "action": "SkipStep"})
    assert "step 2/2" in decided.following
    # A worker of the canary has just restarted: the pause is what is skipped all the same.
    decided = asked(Verb.SKIP, subject(at_step("2/2", Stage.CANARY_SCALING), spec__rollout=CANARY))
    assert "step 2/2" in decided.following

    kept = on("v2").model_copy(update={"kept": (V2.name, V1.name)})
    decided = asked(Verb.ROLLBACK, subject(kept), to=V1.name)
    assert decided.edit == Edit("request", {"id": "rollback-1", "action": "Rollback", "revision": V1.name})
    assert f"back to {V1.name}" in decided.following

    aborted = on("v1").model_copy(update={"aborted": V2.name})
    assert asked(Verb.RETRY, subject(aborted)).edit == Edit("request", {"id": "retry-1", "action": "Retry"})
    assert asked(Verb.PROMOTE, subject(on("v1"), spec__rollout=MANUAL)).following == f"{V2.name} is promoted."


@pytest.mark.parametrize(
    ("verb", "one", "wanted"),
    [
        (Verb.PROMOTE, subject(on("v1", "v2")), "With the strategy Rolling a change takes over by itself"),
        (Verb.PROMOTE, subject(on("v2"), spec__rollout=MANUAL), f"{V2.name} is what serves"),
        (
            Verb.PROMOTE,
            subject(on("v1"), spec__rollout=MANUAL, spec__revokedVersions=[V2.version]),
            f"{V2.version} is in spec.revokedVersions",
        ),
        (
            Verb.PROMOTE,
            subject(on("v1").model_copy(update={"aborted": V2.name}), spec__rollout=MANUAL),
            "is brought out by: retry",
        ),
        (
            Verb.SKIP,
            subject(at_step("1/2", Stage.CANARY_SCALING), spec__rollout=CANARY),
            "CanaryScaling, step 1/2. A pause or an analysis can be skipped",
        ),
        (Verb.ABORT, subject(on("v2")), "no change is under way"),
        (Verb.RETRY, subject(on("v2")), "nothing was aborted or rolled back"),
        (Verb.ROLLBACK, subject(on("v2")), "no revision is known that served before"),
        (
            Verb.ABORT,
            subject(on("v1", "v2"), metadata__deletionTimestamp="2026-01-01T00:00:00Z"),
            "being deleted",
        ),
    ],
)
def test_what_would_be_ignored_is_refused_with_the_way_out(verb: Verb, one: Subject, wanted: str) -> None:
    assert wanted in refused(verb, one)


def test_a_rollback_to_what_is_not_kept_lists_what_is() -> None:
    kept = subject(on("v2").model_copy(update={"kept": (V2.name, V1.name)}))
    told = refused(Verb.ROLLBACK, kept, to="h1-00000000-p1")
    assert V1.name in told
    bad = on("v2").model_copy(update={"kept": (V2.name, V1.name)})
    assert "spec.revokedVersions" in refused(
        Verb.ROLLBACK, subject(bad, spec__revokedVersions=[V1.version]), to=V1.name
    )


def test_an_unanswered_request_is_replaced_only_by_force() -> None:
    waiting = subject(on("v1", "v2"), spec__request={"id": "theirs", "action": "Abort"})
    told = refused(Verb.ROLLBACK, waiting)
    assert "request theirs (Abort) is not answered yet" in told
    assert "--force" in told
    decided = asked(Verb.ROLLBACK, waiting, force=True)
    assert decided.edit is not None
    assert decided.before == "request theirs (Abort) is not answered yet"


@pytest.mark.parametrize(("ignored", "how"), [(None, "was done"), ("nothing is there.", "was ignored")])
def test_an_answered_request_is_told_and_replaced(ignored: str | None, how: str) -> None:
    status = on("v1", "v2").model_copy(update={"handled_request": "theirs", "request_ignored": ignored})
    one = subject(status, spec__request={"id": "theirs", "action": "Promote"})
    decided = asked(Verb.ABORT, one)
    assert decided.before == f"request theirs (Promote) {how}"
    assert decided.edit is not None


def test_what_an_older_status_says_refuses_nothing() -> None:
    """The change may have come with the last write, which the operator has not seen."""
    decided = asked(Verb.PROMOTE, subject(on("v2"), observed=None, spec__rollout=MANUAL))
    assert decided.edit is not None
    assert "has not seen this spec yet" in " ".join(decided.notices)


def test_a_force_does_not_write_what_would_be_ignored() -> None:
    assert "would be ignored" in refused(Verb.ABORT, subject(on("v2")), force=True)


def test_pause_and_hold_are_set_once_and_taken_away() -> None:
    moving = on("v1", "v2")
    free, stopped = subject(moving), subject(moving, spec__paused=True, spec__hold={"reason": "night"})
    paused = asked(Verb.PAUSE, free)
    assert paused.edit == Edit("paused", True)
    assert f"Promoting to {V2.name} stays where it is" in paused.following
    assert asked(Verb.PAUSE, stopped).edit is None
    assert asked(Verb.RESUME, stopped).edit == Edit("paused", None)
    assert asked(Verb.RESUME, free).edit is None
    held = asked(Verb.HOLD, free, reason="night")
    assert held.edit == Edit("hold", {"reason": "night"})
    assert f"Promoting to {V2.name} has begun and goes on" in held.following
    assert asked(Verb.HOLD, stopped, reason="night").edit is None
    assert "it is held already (night)" in refused(Verb.HOLD, stopped, reason="day")
    assert asked(Verb.HOLD, stopped, reason="day", force=True).edit == Edit("hold", {"reason": "day"})
    assert asked(Verb.RELEASE, stopped).edit == Edit("hold", None)
    assert asked(Verb.RELEASE, free).edit is None


def test_a_request_forward_tells_of_a_pause_and_a_hold() -> None:
    back = on("v1").model_copy(update={"rolled_back": RolledBackStatus(asked=V2.name, revision=V1.name)})
    stopped: dict[str, Any] = {"spec__paused": True, "spec__hold": {"reason": "night"}}
    decided = asked(Verb.RETRY, subject(back, running=(V1,), **stopped))
    assert [text.split(":")[0] for text in decided.notices] == ["spec.paused is true", "it is held (night)"]


def test_a_promotion_of_what_has_begun_tells_of_no_hold() -> None:
    one = subject(at_step("2/2"), spec__rollout=CANARY, spec__hold={"reason": "night"})
    assert asked(Verb.PROMOTE, one).notices == ()
    fresh = subject(on("v1"), observed=None, running=(V1,), spec__rollout=MANUAL, spec__hold={"reason": "x"})
    assert "it is held (x)" in " ".join(asked(Verb.PROMOTE, fresh).notices)


@pytest.mark.parametrize(("step", "last"), [("2/3", False), ("3/3", True)])
def test_a_skip_while_workers_of_the_canary_are_missing_warns(step: str, last: bool) -> None:
    steps = [*STEPS, {"pause": {}}]
    rollout = {"strategy": "Canary", "steps": steps}
    hashed = steps_hash([Step.model_validate(one) for one in steps])

    def at(stage: Stage) -> str:
        status = at_step(step, stage)
        assert status.rollout is not None
        shown = status.rollout.model_copy(update={"steps_hash": hashed})
        one = subject(status.model_copy(update={"rollout": shown}), spec__rollout=rollout)
        return asked(Verb.SKIP, one).following

    warned = at(Stage.CANARY_SCALING)
    assert f"step {step}" in warned
    assert "the canary is not all available now" in warned
    assert ("It was the last step" in warned) is last
    assert "not all available" not in at(Stage.PAUSED)


def test_the_patch_fails_when_the_spec_is_another_one() -> None:
    one = subject(on("v1", "v2"))
    assert patch(one, Edit("hold", None)) == [
        {"op": "test", "path": "/metadata/uid", "value": "u1"},
        {"op": "test", "path": "/metadata/generation", "value": 1},
        {"op": "remove", "path": "/spec/hold"},
    ]
    assert patch(one, Edit("paused", True))[-1] == {"op": "add", "path": "/spec/paused", "value": True}


def managed(manager: str, operation: str, *fields: str) -> dict[str, Any]:
    return {
        "manager": manager,
        "operation": operation,
        "fieldsV1": {"f:spec": {f"f:{field}": {} for field in fields}},
    }


def test_other_writers_of_a_field_are_named() -> None:
    entries = [
        managed("argocd-controller", "Apply", "paused", "request"),
        managed("kubectl-create", "Update", "paused"),
        managed("kubectl-queueworker", "Update", "paused", "request"),
        {"manager": "queueworker-operator", "operation": "Apply", "subresource": "status", "fieldsV1": {}},
    ]
    assert also_written_by(entries, Edit("paused", True), False) == ["argocd-controller"]
    assert also_written_by(entries, Edit("paused", None), True) == ["argocd-controller", "kubectl-create"]
    assert also_written_by(entries, Edit("request", {}), None) == ["argocd-controller"]
    assert also_written_by(entries, Edit("hold", None), {"reason": "x"}) == []
