"""What a person asked of the change that is under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queueworker_operator.api.reasons import EventReason
from queueworker_operator.api.request import Request, RequestAction, RolledBackStatus
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import QueueWorkerSpec, QueueWorkerStatus, StableStatus
from queueworker_operator.plan.actions import EmitEvent
from queueworker_operator.plan.facts import RevisionFacts


@dataclass(frozen=True, slots=True)
class Heard:
    """Where the requests stand."""

    #: The id of the last one that was answered.
    handled: str | None
    #: The revision that the spec asks for and that is not brought out.
    aborted: str | None
    #: The revision that takes over without any more steps.
    promoted: str | None = None
    #: The kept revision that serves in the place of the one that the spec asks for.
    rolled_back: RolledBackStatus | None = None
    #: The step that waits is over.
    skipped: bool = False
    #: The analysis that did not pass is done again.
    again: bool = False
    #: Why the request that the spec has was not done; None when it was, or when there is none.
    ignored: str | None = None
    events: tuple[EmitEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """What a request could bring on: the change to `wanted`, where one is waited for."""

    wanted: str
    #: The change goes forward and waits for steps or for a person.
    promotable: bool
    #: The step that waits, as the status shows it; None where none does.
    waiting_step: str | None
    #: The stable revision is there, so that there is something to go back to.
    stable_is_there: bool
    #: Nothing is remembered of what was answered before, although workers run.
    forgotten: bool
    #: Revisions that can be made again, with their versions, and versions that may not be brought out.
    kept: Mapping[str, str]
    revoked: Sequence[str]
    #: The step is an analysis that did not pass, and that nobody skipped.
    analysed: bool = False
    #: The spec keeps the change from beginning.
    held: bool = False


def hear(request: Request | None, pending: Pending, previous: QueueWorkerStatus) -> Heard:
    """Answer a request that was not answered before."""
    wanted, stable = pending.wanted, previous.stable
    aborted = previous.aborted if previous.aborted == wanted else None
    promoted = previous.promoted if previous.promoted == wanted and not aborted else None
    rolled_back = previous.rolled_back
    rolled_back = rolled_back if rolled_back and rolled_back.asked == wanted else None
    before = Heard(previous.handled_request, aborted, promoted, rolled_back)
    if request is None:
        return before
    if request.id == previous.handled_request:
        return replace(before, ignored=previous.request_ignored)

    def handled(text: str, **changes: Any) -> Heard:
        return _answered(replace(before, **changes), request, EventReason.REQUEST_HANDLED, text)

    def ignored(text: str) -> Heard:
        return _answered(replace(before, ignored=text), request, EventReason.REQUEST_IGNORED, text)

    match request.action:
        case RequestAction.ABORT:
            if stable is None or stable.revision == wanted or aborted or rolled_back:
                return ignored("no change is under way that could be aborted.")
            if not pending.stable_is_there:
                return ignored(f"{stable.deployment} is gone, so there is nothing to go back to.")
            text = f"the change to {wanted} is aborted; {stable.revision} goes on serving."
            return handled(text, aborted=wanted, promoted=None)
        case RequestAction.RETRY:
            if not aborted and not rolled_back and pending.analysed and not promoted:
                return handled(f"the analysis at step {pending.waiting_step} is done again.", again=True)
            if not aborted and not rolled_back:
                return ignored("nothing was aborted or rolled back that could be tried again.")
            return handled(f"{wanted} is brought out after all.", aborted=None, rolled_back=None)
        case RequestAction.ROLLBACK:
            to, refusal = _way_back(request, pending, before, previous)
            if to is None:
                return ignored(refusal)
            back = RolledBackStatus(asked=wanted, revision=to)
            text = f"back to {to}, until the spec asks for another revision than {wanted}."
            return handled(text, rolled_back=back, aborted=None, promoted=None)
        case _ if pending.forgotten:
            return ignored(
                "the status was lost, and with it whether this was answered before: use another id."
            )
        case RequestAction.PROMOTE:
            if not pending.promotable or aborted or promoted or rolled_back:
                return ignored("no change is under way that waits to be promoted.")
            if pending.held:
                return ignored(
                    f"spec.hold keeps {wanted} from beginning: remove it, then request Promote with "
                    "another id."
                )
            return handled(f"{wanted} is promoted.", promoted=wanted)
        case RequestAction.SKIP_STEP:
            if pending.waiting_step is None or aborted or promoted or rolled_back:
                return ignored("no step of a change waits that could be skipped.")
            return handled(f"step {pending.waiting_step} of the change to {wanted} is over.", skipped=True)


def _way_back(
    request: Request, pending: Pending, before: Heard, previous: QueueWorkerStatus
) -> tuple[str | None, str]:
    """The revision to go back to, or why there is none."""
    stable, wanted = previous.stable, pending.wanted
    if stable is None:
        return None, "no revision serves yet."
    to = request.revision
    if to is None:
        comes = stable.revision != wanted and not before.aborted and not before.rolled_back
        to = stable.revision if comes else previous.previous
    if to is None:
        return None, "no revision is known that served before: name one of status.kept."
    if to == wanted:
        return None, f"{to} is what the spec asks for."
    if before.rolled_back and before.rolled_back.revision == to:
        return None, f"it went back to {to} already."
    there = to == stable.revision and pending.stable_is_there
    if to not in pending.kept and not there:
        names = ", ".join(pending.kept) or "none"
        return None, f"{to} is not kept for this broker (kept: {names})."
    version = pending.kept.get(to, stable.version)
    if version in pending.revoked:
        return None, f"{version} is in spec.revokedVersions."
    return to, ""


def _answered(heard: Heard, request: Request, reason: EventReason, text: str) -> Heard:
    event = EmitEvent(reason, "Normal", f"Request {request.id}: {text}", f"request:{request.id}")
    return replace(heard, handled=request.id, events=(event,))


def as_target(stable: StableStatus, spec: QueueWorkerSpec, child: RevisionFacts | None) -> Revision:
    """The stable revision, to be kept as it is. Nothing can be created of it: its template is not known."""
    return Revision(
        name=stable.revision,
        version=stable.version,
        deployment=stable.deployment,
        queue=spec.queue.name,
        broker=spec.broker,
        coroutines=child.coroutines or spec.coroutines if child else spec.coroutines,
        prefetch=stable.prefetch,
        shutdown_seconds=spec.shutdown_seconds,
        template={},
        protocol=child.protocol if child else spec.protocol,
    )
