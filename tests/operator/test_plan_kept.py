"""Revisions that are kept, and the request Rollback that goes back to one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queueworker_operator.api.kept import Kept, kept_from, to_kept
from queueworker_operator.api.reasons import ConditionReason, Stage
from queueworker_operator.api.request import RolledBackStatus
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.observe.kept import needs_kept
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.plan_words import steps
from tests.operator.resources import GONE, OLD, START, V1, V2, V3, facts, on, queue, seen, wants

R = ConditionReason


def kept(image: str, number: int, **more: Any) -> Kept:
    resource = wants(f"demo:{image}", 2, **more)
    revision = {"v1": V1, "v2": V2, "v3": V3, "old": OLD}[image]
    return Kept(revision, number, to_kept(resource.spec, revision))


ALL = (kept("v1", 1), kept("v2", 2), kept("v3", 3))
TO_V2 = RolledBackStatus(asked=V3.name, revision=V2.name)
ON_V3 = on("v3").model_copy(update={"previous": V2.name, "kept": (V3.name, V2.name, V1.name)})


def look(
    resource: QueueWorker, *revisions: RevisionFacts, known: tuple[Kept, ...] | None = ALL, **changes: Any
) -> act.Plan:
    reading = queue(resource, *revisions, **changes)
    return plan(resource, facts(resource, *revisions, reading=reading, kept=known), START)


def asks(
    action: str = "Rollback",
    id_: str = "1",
    revision: Revision | str | None = None,
    status: QueueWorkerStatus = ON_V3,
    image: str = "demo:v3",
    **more: Any,
) -> QueueWorker:
    request: dict[str, Any] = {"id": id_, "action": action}
    if revision is not None:
        request["revision"] = revision if isinstance(revision, str) else revision.name
    return wants(image, 2, status, spec__request=request, **more)


def reason(decided: act.Plan) -> str:
    ready = decided.status.condition("Ready")
    assert ready is not None
    return ready.reason


def told(decided: act.Plan, word: str) -> str:
    found = [a.message for a in decided.actions if isinstance(a, act.EmitEvent) and a.reason.value == word]
    return found[0] if found else ""


# -- what is kept ------------------------------------------------------------------------------------


def test_what_serves_is_kept_once() -> None:
    resource = wants("demo:v2", 2, on("v2"))
    decided = look(resource, seen(V2, 2), known=ALL[:1])
    assert steps(decided) == ["keep v2 as 2"]
    assert decided.status.kept == (V2.name, V1.name)
    settled = replace(resource, status=decided.status)
    assert steps(look(settled, seen(V2, 2), known=ALL[:2])) == []


def test_what_serves_is_kept_in_the_pass_that_promotes_it() -> None:
    """Afterwards the spec may ask for something else already."""
    decided = look(wants("demo:v2", 2, on("v1", "v2")), seen(V1, 0), seen(V2, 2), known=ALL[:1])
    assert decided.status.stable == V2.as_stable()
    assert "keep v2 as 2" in steps(decided)


def test_what_serves_again_is_the_last_one() -> None:
    decided = look(wants("demo:v1", 2, on("v1")), seen(V1, 2))
    assert steps(decided) == ["keep v1 as 4"]
    assert decided.status.kept == (V1.name, V3.name, V2.name)


def test_the_oldest_are_forgotten() -> None:
    resource = wants("demo:v3", 2, on("v3"), spec__sunset={"keepVersions": 1})
    decided = look(resource, seen(V3, 2))
    assert steps(decided) == ["forget v1"]
    assert decided.status.kept == (V3.name, V2.name)


def test_nothing_is_decided_where_nobody_looked() -> None:
    decided = look(wants("demo:v3", 2, ON_V3), seen(V3, 2), known=None)
    assert steps(decided) == []
    assert decided.status.kept == ON_V3.kept


def test_a_kept_spec_leads_back_to_its_revision() -> None:
    legacy = kept("old", 1, spec__protocol="Legacy")
    for one in (*ALL, legacy):
        assert kept_from("stats-usage", one.revision.name, one.number, one.spec) == one
    assert kept_from("stats-usage", V1.name, 1, ALL[1].spec) is None
    assert kept_from("stats-usage", V1.name, 1, {"queue": 1}) is None
    assert kept_from("stats-usage", V1.name, 1, None) is None


@pytest.mark.parametrize(
    ("resource", "needed"),
    [
        (wants("demo:v3", 2, ON_V3), False),
        (wants("demo:v2", 2, ON_V3), True),
        (asks(), True),
        (asks(status=ON_V3.model_copy(update={"handled_request": "1"})), False),
        (asks(status=ON_V3.model_copy(update={"handled_request": "1", "rolled_back": TO_V2})), True),
        (wants("demo:v3", 2, ON_V3.model_copy(update={"kept": (V2.name,)})), True),
        (wants("demo:v3", 2, ON_V3, spec__sunset={"keepVersions": 1}), True),
        (wants("demo:v3", 2, ON_V3, **GONE), False),
    ],
    ids=[
        "settled",
        "a change",
        "a request",
        "answered",
        "on the way back",
        "not kept",
        "too many",
        "deleted",
    ],
)
def test_a_cluster_is_asked_for_them_only_when_a_decision_needs_them(
    resource: QueueWorker, needed: bool
) -> None:
    assert needs_kept(resource) == needed


# -- the request -------------------------------------------------------------------------------------


def test_back_to_the_revision_before_and_there_it_stays() -> None:
    decided = look(asks(), seen(V3, 2, created=3))
    assert steps(decided) == ["create v2 at 2"]
    assert f"back to {V2.name}" in told(decided, "RequestHandled")
    assert decided.status.rolled_back is not None
    assert decided.status.rolled_back.revision == V2.name

    resource = replace(asks(), status=decided.status)
    both = (seen(V3, 2, created=3), seen(V2, 2, created=4))
    decided = look(resource, *both)
    assert steps(decided) == ["fence v3", "v3 to 1"]
    assert decided.status.rollout is not None
    assert (decided.status.rollout.stage, decided.status.rollout.target) == (Stage.STOP_RECEIVING, V2.name)
    (fence,) = (a for a in decided.actions if isinstance(a, act.FenceRevision))
    fenced: dict[str, Any] = {"fences": {V3.name: fence.reason}}

    resource = replace(resource, status=decided.status)
    live = {V2.name: LiveWorkers(2, 2), V3.name: LiveWorkers(1, 0)}
    decided = look(resource, seen(V3, 1, created=3), both[1], live=live, **fenced)
    assert steps(decided) == ["v3 to 0"]
    decided = look(
        replace(resource, status=decided.status), seen(V3, 0, created=3), both[1], live=live, **fenced
    )
    assert steps(decided) == ["delete v3", "keep v2 as 4"]
    assert told(decided, "RolledBack")
    assert decided.status.stable == V2.as_stable()

    resource = replace(resource, status=decided.status)
    there = (kept("v1", 1), kept("v2", 4), kept("v3", 3))
    decided = look(resource, both[1], known=there, **fenced)
    assert steps(decided) == []
    assert reason(decided) == R.ROLLED_BACK
    assert decided.status.condition("Stalled") is None

    retried = replace(asks("Retry", "2", status=decided.status), status=decided.status)
    assert "create v3 at 2" in steps(look(retried, both[1], known=there, **fenced))
    edited = wants("demo:v1", 2, decided.status)
    decided = look(edited, both[1], known=there, **fenced)
    assert steps(decided) == ["create v1 at 2"]
    assert decided.status.rolled_back is None


def test_back_to_an_older_one_goes_by_the_guarded_way_too() -> None:
    decided = look(asks(revision=V1), seen(V3, 2, created=3), seen(V1, 2, created=4))
    assert steps(decided) == ["fence v3", "v3 to 1"]


def test_a_canary_is_taken_back_to_the_stable_revision() -> None:
    steps_of_it = {"strategy": "Canary", "steps": [{"setCanaryScale": {"replicas": 1}}, {"pause": {}}]}
    status = on("v2", "v3", Stage.PAUSED).model_copy(update={"previous": V1.name})
    resource = asks(status=status, spec__rollout=steps_of_it)
    decided = look(resource, seen(V2, 1, created=2), seen(V3, 1, created=3))
    assert decided.status.rolled_back is not None
    assert decided.status.rolled_back.revision == V2.name
    assert "fence v3" in steps(decided)


def test_a_stable_revision_whose_deployment_is_gone_is_made_again() -> None:
    aborted = on("v2").model_copy(update={"aborted": V3.name, "kept": (V2.name, V1.name)})
    resource = wants("demo:v3", 2, aborted)
    assert steps(look(resource, known=ALL[:2])) == ["create v2 at 2"]
    assert reason(look(resource, known=())) == R.STABLE_MISSING


@pytest.mark.parametrize(
    ("resource", "known", "why"),
    [
        (asks(revision="h1-00000000-p1"), ALL, f"not kept for this broker (kept: {V3.name}, {V2.name}"),
        (asks(revision=V1), ALL[1:], "not kept for this broker"),
        (asks(revision=V3), ALL, "is what the spec asks for"),
        (asks(revision=V1, spec__revokedVersions=[V1.version]), ALL, "in spec.revokedVersions"),
        (asks(status=on("v3")), ALL, "no revision is known that served before"),
        (asks(status=QueueWorkerStatus()), ALL, "no revision serves yet"),
        (
            asks(revision=V1, spec__broker={"redis": {"url": "redis://elsewhere:6379/0"}}),
            ALL,
            "not kept for this broker (kept: none)",
        ),
    ],
    ids=["unknown", "forgotten", "asked for", "revoked", "none before", "first", "another broker"],
)
def test_a_rollback_is_refused_with_the_reason(
    resource: QueueWorker, known: tuple[Kept, ...], why: str
) -> None:
    decided = look(resource, seen(V3, 2), known=known)
    assert why in told(decided, "RequestIgnored")
    assert decided.status.rolled_back is None
    assert decided.status.handled_request == "1"


def test_a_hold_and_a_pause_do_not_stop_a_rollback() -> None:
    resource = asks(spec__hold={"reason": "until Friday"}, spec__paused=True)
    decided = look(resource, seen(V3, 2, created=3), seen(V2, 2, created=4))
    assert steps(decided) == ["fence v3", "v3 to 1"]


def test_what_is_revoked_on_the_way_back_is_not_gone_back_to() -> None:
    revoked: dict[str, Any] = {"spec__revokedVersions": [V2.version]}
    status = look(asks(), seen(V3, 2, created=3)).status
    both = (seen(V3, 2, created=3), seen(V2, 2, created=4))
    fence = f"QueueWorker workers/stats-usage: it leaves for {V2.name}"
    fenced: dict[str, Any] = {"fences": {V3.name: fence}}
    decided = look(replace(asks(**revoked), status=status), *both, **fenced)
    assert steps(decided) == ["unfence v3"]
    decided = look(replace(asks(**revoked), status=decided.status), *both)
    assert steps(decided) == ["fence v2", "v2 to 1"]
    decided = look(replace(asks(**revoked), status=status), both[0])
    assert decided.status.stable == V3.as_stable()
    ready = decided.status.condition("Ready")
    assert ready is not None
    assert ready.reason == R.VERSION_REVOKED
    assert f"{V2.version} is in spec.revokedVersions" in ready.message
    assert decided.status.rolled_back is not None, "it goes on when the version is off the list"


@pytest.mark.parametrize("change", [{"aborted": V3.name}, {"rolled_back": TO_V2}])
def test_what_serves_in_the_place_of_a_change_and_is_revoked_says_so(change: dict[str, Any]) -> None:
    status = on("v2").model_copy(update=change)
    decided = look(wants("demo:v3", 2, status, spec__revokedVersions=[V2.version]), seen(V2, 2))
    ready = decided.status.condition("Ready")
    assert ready is not None
    assert f"{V2.version}, which serves, is in spec.revokedVersions" in ready.message


def test_what_is_forgotten_on_the_way_back_is_told() -> None:
    status = look(asks(), seen(V3, 2)).status
    decided = look(replace(asks(), status=status), seen(V3, 2), known=())
    assert steps(decided) == ["keep v3 as 1"]
    assert reason(decided) == R.REVISION_NOT_KEPT


def test_the_end_of_a_rollback_never_looks_ready() -> None:
    """Whoever waits for Ready waits for what the spec asks for."""
    asked = wants("demo:v3", 2, ON_V3.model_copy(update={"rolled_back": TO_V2}))
    decided = look(asked, seen(V3, 0), seen(V2, 2))
    assert decided.status.stable == V2.as_stable()
    assert reason(decided) == "RolledBack"
