"""What a person asked of the change that is under way."""

from __future__ import annotations

from dataclasses import dataclass

from queueworker_operator.api.reasons import ConditionReason, EventReason
from queueworker_operator.api.request import Request, RequestAction
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import QueueWorkerSpec, QueueWorkerStatus, StableStatus
from queueworker_operator.plan.actions import EmitEvent
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.guards import Fail, Pass, Wait


@dataclass(frozen=True, slots=True)
class Heard:
    """Where the requests stand."""

    #: The id of the last one that was answered.
    handled: str | None
    #: The revision that the spec asks for and that is not brought out.
    aborted: str | None
    events: tuple[EmitEvent, ...] = ()


def hear(request: Request | None, wanted: Revision, previous: QueueWorkerStatus) -> Heard:
    """Answer a request that was not answered before. `wanted` is what the spec asks for."""
    aborted = previous.aborted if previous.aborted == wanted.name else None
    if request is None or request.id == previous.handled_request:
        return Heard(previous.handled_request, aborted)

    def answer(reason: EventReason, text: str, aborted: str | None) -> Heard:
        event = EmitEvent(reason, "Normal", f"Request {request.id}: {text}", f"request:{request.id}")
        return Heard(request.id, aborted, (event,))

    stable = previous.stable
    match request.action:
        case RequestAction.ABORT if stable and stable.revision != wanted.name and not aborted:
            text = f"the change to {wanted.name} is aborted; {stable.revision} goes on serving."
            return answer(EventReason.REQUEST_HANDLED, text, wanted.name)
        case RequestAction.ABORT:
            return answer(
                EventReason.REQUEST_IGNORED, "no change is under way that could be aborted.", aborted
            )
        case RequestAction.RETRY if aborted:
            return answer(EventReason.REQUEST_HANDLED, f"{wanted.name} is brought out after all.", None)
        case RequestAction.RETRY:
            return answer(EventReason.REQUEST_IGNORED, "nothing was aborted that could be tried again.", None)


def aborted_guard(heard: Heard) -> Pass | Wait:
    """What is said while the spec asks for something that was aborted."""
    if heard.aborted is None:
        return Pass()
    return Wait(
        ConditionReason.ROLLOUT_ABORTED,
        f"The change to {heard.aborted} was aborted by a request: change the spec, or request Retry.",
    )


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


def kept_guard(stable: StableStatus, child: RevisionFacts | None) -> Pass | Fail:
    """Whether the stable revision can be kept without its template."""
    if child is not None:
        return Pass()
    return Fail(
        ConditionReason.STABLE_MISSING,
        f"{stable.deployment} is gone, and its template is not known any more: put the spec back to it, or "
        "request Retry.",
    )
