"""What a verb writes into a spec, when it is refused, and what follows from it. Pure.

Whether a request would be done is asked of the planner itself, so the plugin refuses what the operator would
ignore, in its words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from queueworker_operator.api.names import PLUGIN_MANAGER
from queueworker_operator.api.parse import NotAQueueWorkerError, parse
from queueworker_operator.api.reasons import WAY_OUT, ConditionReason, ConditionType, Stage
from queueworker_operator.api.request import Request, RequestAction
from queueworker_operator.api.revisions import revision_of
from queueworker_operator.api.rollout import Strategy
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.cli.seen import Seen
from queueworker_operator.plan.course import has_begun
from queueworker_operator.plan.pending import pending_of, place_of
from queueworker_operator.plan.requests import hear


class Verb(StrEnum):
    PROMOTE = "promote"
    SKIP = "skip"
    ABORT = "abort"
    RETRY = "retry"
    ROLLBACK = "rollback"
    PAUSE = "pause"
    RESUME = "resume"
    HOLD = "hold"
    RELEASE = "release"


_ACTIONS = {
    Verb.PROMOTE: RequestAction.PROMOTE,
    Verb.SKIP: RequestAction.SKIP_STEP,
    Verb.ABORT: RequestAction.ABORT,
    Verb.RETRY: RequestAction.RETRY,
    Verb.ROLLBACK: RequestAction.ROLLBACK,
}


class RefusedWishError(Exception):
    """Nothing is written. The text says why, and the way out."""


@dataclass(frozen=True, slots=True)
class Wish:
    verb: Verb
    #: Of a request: its id.
    id: str = ""
    #: Of rollback: the revision; empty leaves it to the operator.
    to: str = ""
    #: Of hold.
    reason: str = ""

    @property
    def request(self) -> Request | None:
        """What is put into spec.request; None for the verbs that set another field."""
        action = _ACTIONS.get(self.verb)
        return Request(id=self.id, action=action, revision=self.to or None) if action else None


@dataclass(frozen=True, slots=True)
class Edit:
    """One field of the spec is set, or removed where `value` is None."""

    field: str
    value: Any

    @property
    def path(self) -> str:
        return f"spec.{self.field}"


@dataclass(frozen=True, slots=True)
class Subject:
    """The QueueWorker that a verb is about."""

    seen: Seen
    #: As it was written: its metadata and its spec.
    body: Mapping[str, Any]
    #: Whether the status is about this very spec. What an older one says refuses nothing.
    current: bool

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.body.get("spec") or {}

    @property
    def request_id(self) -> str:
        """That of the request in the spec; empty where there is none."""
        request = self.spec.get("request")
        return str(request.get("id", "")) if isinstance(request, Mapping) else ""


@dataclass(frozen=True, slots=True)
class Decided:
    """What is to be written. `edit` is None where everything is as asked already."""

    edit: Edit | None
    #: What the field said.
    before: str
    #: What follows.
    following: str
    #: What a person should know besides.
    notices: tuple[str, ...] = ()


def decide(wish: Wish, subject: Subject, now: datetime, *, force: bool = False) -> Decided:
    """What to write. Raises RefusedWishError."""
    seen, spec = subject.seen, subject.spec
    if seen.deleting:
        raise RefusedWishError(
            "it is being deleted, and nothing is asked of it any more: see kubectl queueworker why"
        )
    if seen.abandoned:
        raise RefusedWishError(f"nobody would answer. {seen.abandoned}")
    notices = tuple(_notices(wish, subject))
    request = wish.request
    if request is not None:
        before = _request_before(subject)
        if subject.request_id not in ("", seen.status.handled_request) and not force:
            raise RefusedWishError(f"{before}: wait for the answer, or put this in its place with --force")
        done, text = _foreseen(subject, request, now)
        if not done and subject.current:
            raise RefusedWishError(f"it would be ignored: {text}{_besides(wish, subject)}")
        value = request.model_dump(mode="json", by_alias=True, exclude_none=True)
        following = text if done and subject.current else "the operator decides when it has seen the spec."
        return Decided(Edit("request", value), before, following, notices)
    held, paused = _reason_of_hold(spec), bool(spec.get("paused"))
    on, off = "spec.paused was true", "spec.paused was not set"
    match wish.verb:
        case Verb.PAUSE:
            edit = None if paused else Edit("paused", True)
            return Decided(edit, on if paused else off, _paused(seen), notices)
        case Verb.RESUME:
            edit = Edit("paused", None) if paused else None
            return Decided(edit, on if paused else off, _goes_on(seen), notices)
        case Verb.HOLD:
            if held and held != wish.reason and not force:
                raise RefusedWishError(f"it is held already ({held}): put your reason there with --force")
            edit = None if held == wish.reason else Edit("hold", {"reason": wish.reason})
            return Decided(edit, _hold_before(held), _held(seen), notices)
        case _:
            edit = Edit("hold", None) if held else None
            return Decided(edit, _hold_before(held), _released(seen), notices)


def rests_as_asked(verb: Verb, reason: str) -> bool:
    """Whether a change that waits for a person with this reason is where the verb was to bring it."""
    wanted = {
        Verb.ABORT: (ConditionReason.ROLLOUT_ABORTED,),
        Verb.ROLLBACK: (ConditionReason.ROLLED_BACK,),
        Verb.PAUSE: (ConditionReason.PAUSED,),
        Verb.HOLD: (ConditionReason.HELD,),
        Verb.PROMOTE: (),
    }
    on_the_way = (ConditionReason.PAUSE_STEP, ConditionReason.WAITING_FOR_PROMOTION)
    return reason in wanted.get(verb, on_the_way)


# -- requests ----------------------------------------------------------------------------------------


def _foreseen(subject: Subject, request: Request, now: datetime) -> tuple[bool, str]:
    """Whether the planner does it, and what it says, as far as the status tells."""
    status = subject.seen.status
    try:
        parsed = parse({**subject.body, "status": {}})
    except NotAQueueWorkerError:
        return True, "the operator decides."
    if not isinstance(parsed, QueueWorker):
        problems = "; ".join(map(str, parsed.problems))
        return True, f"nothing, before the spec can be used: {problems}"
    resource = replace(parsed, status=status)
    wanted = revision_of(resource.metadata.name, resource.spec)
    place = place_of(resource, wanted, status, now)
    there = status.stable is not None and any(r.name == status.stable.revision for r in status.revisions)
    kept = {name: name.rpartition("-p")[0] for name in status.kept}
    running = _running(status)
    heard = hear(request, pending_of(resource, wanted, status, place, there, kept, running), status)
    text = heard.events[0].message.partition(": ")[2] if heard.events else ""
    return heard.ignored is None, text + (_unproven(status) if heard.skipped else "")


def _unproven(status: QueueWorkerStatus) -> str:
    """What is known of a canary whose step is skipped before all of its workers serve."""
    rollout = status.rollout
    if rollout is None or rollout.stage not in (Stage.CANARY_SCALING, Stage.ARM_CHANGING):
        return ""
    ready = status.condition(ConditionType.READY)
    seen = f" ({ready.message.rstrip('.')})" if ready is not None else ""
    index, _, count = (rollout.step or "").partition("/")
    last = " It was the last step: the change takes over all the same." if index == count else ""
    return f" But the canary is not all available now{seen}, so nothing shows yet that it works.{last}"


def _has_begun(subject: Subject) -> bool:
    """Whether a hold does not stop the change that the spec asks for any more."""
    status = subject.seen.status
    parsed = parse({**subject.body, "status": {}})
    if not isinstance(parsed, QueueWorker):
        return False
    wanted = revision_of(parsed.metadata.name, parsed.spec)
    return has_begun(wanted, status, _running(status))


def _running(status: QueueWorkerStatus) -> dict[str, str]:
    return {r.name: r.version for r in status.revisions if r.replicas}


def _request_before(subject: Subject) -> str:
    request = subject.spec.get("request")
    if not isinstance(request, Mapping):
        return "spec.request was not set"
    status = subject.seen.status
    answered = subject.request_id == status.handled_request
    how = ("was ignored" if status.request_ignored else "was done") if answered else "is not answered yet"
    return f"request {subject.request_id} ({request.get('action')}) {how}"


def _besides(wish: Wish, subject: Subject) -> str:
    """What would have to be otherwise, where the planner's words leave it open."""
    status = subject.seen.status
    rollout = status.rollout
    stage = rollout.stage if rollout else Stage.IDLE
    step = f", step {rollout.step}" if rollout and rollout.step else ""
    where = f" It is at stage {stage}{step}."
    if wish.verb is Verb.SKIP and stage is Stage.CANARY_SCALING:
        return (
            f"{where} A pause or an analysis can be skipped; a step that sets something is over when that "
            "serves: see kubectl queueworker why. To go on without it: promote; to go back: abort."
        )
    if wish.verb is not Verb.PROMOTE:
        return where
    if status.aborted or status.rolled_back:
        return f"{where} What was aborted or rolled back is brought out by: retry."
    parsed = parse({**subject.body, "status": {}})
    if not isinstance(parsed, QueueWorker):
        return where
    wanted = revision_of(parsed.metadata.name, parsed.spec)
    if wanted.version in parsed.spec.revoked_versions:
        return f"{where} {wanted.version} is in spec.revokedVersions: ask for another version."
    if status.stable and status.stable.revision == wanted.name:
        return f"{where} {wanted.name} is what serves."
    if parsed.spec.strategy is Strategy.ROLLING:
        return f"{where} With the strategy Rolling a change takes over by itself."
    return where


# -- pause and hold ----------------------------------------------------------------------------------


def _reason_of_hold(spec: Mapping[str, Any]) -> str:
    hold = spec.get("hold")
    return str(hold.get("reason", "")) if isinstance(hold, Mapping) else ""


def _hold_before(held: str) -> str:
    return f"it was held ({held})" if held else "spec.hold was not set"


def _under_way(status: QueueWorkerStatus) -> str:
    """The change that is under way, for people; empty when none is."""
    rollout = status.rollout
    if rollout is None or rollout.stage is Stage.IDLE:
        return ""
    return f"{rollout.stage} to {rollout.target}"


def _paused(seen: Seen) -> str:
    under_way, rollout = _under_way(seen.status), seen.status.rollout
    if not under_way:
        return "a change that comes waits until: resume."
    if rollout and rollout.stage in WAY_OUT:
        return f"{under_way} goes on: a pause does not stop the way back."
    return f"{under_way} stays where it is until: resume. What runs goes on, and so would a way back."


def _goes_on(seen: Seen) -> str:
    under_way = _under_way(seen.status)
    return f"{under_way} goes on." if under_way else "changes go on as they come."


def _held(seen: Seen) -> str:
    under_way = _under_way(seen.status)
    rest = f" {under_way} has begun and goes on: pause stops it." if under_way else ""
    return f"no change begins until: release.{rest}"


def _released(seen: Seen) -> str:
    ready = seen.status.condition(ConditionType.READY)
    if ready is not None and ready.reason == ConditionReason.HELD:
        return "the change that waited begins."
    return "changes begin as they come."


# -- who else writes ---------------------------------------------------------------------------------


def _notices(wish: Wish, subject: Subject) -> Iterator[str]:
    if not subject.current:
        observed = subject.seen.status.observed_generation
        yield (
            f"the operator has not seen this spec yet (its status is of generation {observed or 'none'}), "
            "so what is said of the change may be out of date"
        )
    forward = wish.verb in (Verb.PROMOTE, Verb.SKIP, Verb.RETRY)
    if forward and subject.spec.get("paused"):
        yield "spec.paused is true: nothing goes forward until: resume"
    held = _reason_of_hold(subject.spec)
    if wish.verb in (Verb.PROMOTE, Verb.RETRY) and held and not _has_begun(subject):
        yield f"it is held ({held}): what has not begun does not begin until: release"


def also_written_by(managed: Sequence[Mapping[str, Any]], edit: Edit, before: Any) -> list[str]:
    """Other managers of a field, as metadata.managedFields has them. Whoever only took over the default of
    the schema (false) by creating the object is left out."""
    found = []
    for entry in managed:
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        manager = str(entry.get("manager", ""))
        only_default = entry.get("operation") != "Apply" and not before
        if f"f:{edit.field}" in fields and manager not in ("", PLUGIN_MANAGER) and not only_default:
            found.append(manager)
    return sorted(set(found))
