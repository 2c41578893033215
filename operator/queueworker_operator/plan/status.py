"""The status that a pass leads to, rebuilt from the world: the same world gives the same status."""

from __future__ import annotations

from datetime import datetime

from queueworker_operator.api.names import selector
from queueworker_operator.api.reasons import CANARY_STAGES, WAY_OUT, ConditionReason, ConditionType, Stage
from queueworker_operator.api.rollout import Reached
from queueworker_operator.api.types import (
    BrokerStatus,
    Condition,
    Metadata,
    QueueWorkerStatus,
    RevisionStatus,
    Role,
    RolloutStatus,
)
from queueworker_operator.plan.broker_words import Word as _Word, broker_words, queue_words
from queueworker_operator.plan.facts import RevisionFacts, Unknown
from queueworker_operator.plan.failure_words import failure, remedy, trouble
from queueworker_operator.plan.gate_words import gates_word
from queueworker_operator.plan.guards import Fail, Guard, Pass, Wait
from queueworker_operator.plan.priority import evidence
from queueworker_operator.plan.restarts import shown_restarts
from queueworker_operator.plan.split import serving, young
from queueworker_operator.plan.view import HALTED, View
from queueworker_operator.plan.way_out import WayOut

_OF_THE_BROKER = (
    ConditionType.BROKER_REACHABLE,
    ConditionType.PLACEMENT_VALID,
    ConditionType.QUEUE_PROVISIONED,
    ConditionType.PRIORITY_DRAINED,
)


def build_status(
    metadata: Metadata, previous: QueueWorkerStatus, view: View, now: datetime
) -> QueueWorkerStatus:
    """The whole status. `now` is in whole seconds."""
    revisions = _revisions(view, previous)
    rollout = _rollout(previous, view, now)
    conditions = _conditions(metadata.generation, previous, _words(view, rollout, now), now)
    return QueueWorkerStatus(
        conditions=conditions,
        observed_generation=metadata.generation,
        selector=selector(metadata.name),
        replicas=sum(r.alive for r in view.revisions),
        ready_replicas=sum(r.ready for r in view.revisions),
        available_replicas=sum(r.available for r in view.revisions),
        broker=BrokerStatus(type=view.broker_type) if view.broker_type else previous.broker,
        stable=view.stable,
        previous=view.previous,
        handled_request=view.handled_request,
        request_ignored=view.request_ignored,
        aborted=view.aborted,
        rolled_back=view.rolled_back,
        kept=view.kept,
        promoted=view.promoted,
        revoked=previous.revoked if view.revoked is None else view.revoked,
        rollout=rollout,
        gates=view.gates,
        revisions=revisions,
    )


def _revisions(view: View, previous: QueueWorkerStatus) -> tuple[RevisionStatus, ...]:
    before = {row.name: row for row in previous.revisions}
    stable = view.stable.revision if view.stable else None

    def role(name: str) -> Role:
        if name == stable:
            return Role.STABLE
        if view.canary:
            return Role.CANARY if name == view.canary[0] else Role.LEAVING
        return Role.TARGET if name == view.target else Role.LEAVING

    def order(r: RevisionFacts) -> tuple[bool, float, str]:
        return (role(r.name) is Role.LEAVING, -r.created, r.name)

    return tuple(
        RevisionStatus(
            name=r.name,
            version=r.version,
            deployment=r.deployment,
            role=role(r.name),
            replicas=r.alive,
            ready_replicas=r.ready,
            prefetch=r.prefetch,
            coroutines=r.coroutines,
            **shown_restarts(r.restarts, before.get(r.name)),
        )
        for r in sorted(view.revisions, key=order)[:20]
    )


def _rollout(previous: QueueWorkerStatus, view: View, now: datetime) -> RolloutStatus:
    before = previous.rollout
    out, place = view.out, view.place
    # A change that is brought out after all counts on from the attempt that was aborted.
    tried = before.attempt if before and view.aborted else None
    if view.settled:
        return RolloutStatus(target=view.target, stage=view.stage, attempt=tried)
    reached = _reached(view)
    shown = RolloutStatus(
        target=view.target,
        stage=view.stage,
        started_at=now,
        progressed_at=now,
        reached=reached,
        step=place.shown if place else None,
        attempt=place.attempt if place else tried,
        steps_hash=place.steps_hash if place else None,
        step_started_at=place.since if place else None,
        analysis=view.analysis,
        leaving=out.leaving if out else None,
        reason=_reason(out.guard).value if out else None,
        evidence=out.evidence if out else None,
    )
    if view.stage is Stage.DRAINING_LEGACY:
        shown = shown.model_copy(update=_priority_drain(view))
    same = before is not None and before.target == view.target and before.started_at is not None
    same = same and deletes(before) == view.deleting
    if before is None or not same:
        return shown
    ready = previous.condition(ConditionType.READY)
    goes_on = ready is not None and ready.reason in HALTED and not view.halted
    leg = _same_leg(before.stage, view.stage)
    leg = leg and (before.step, before.attempt) == (shown.step, shown.attempt)
    moved = goes_on or not leg
    # Another number that is wanted makes a new beginning, and is no progress itself.
    if leg and before.reached is not None and before.reached.wanted == reached.wanted:
        reached = _furthest(before.reached, reached)
        moved = moved or reached != before.reached
    progressed_at = now if moved else before.progressed_at or before.started_at
    kept = {"started_at": before.started_at, "progressed_at": progressed_at, "reached": reached}
    return shown.model_copy(update=kept)


def deletes(rollout: RolloutStatus | None) -> bool:
    """Whether a status is of a resource that was on its way out."""
    return rollout is not None and rollout.target is None and rollout.stage in (Stage.DELETING, *WAY_OUT)


def _priority_drain(view: View) -> dict[str, str | None]:
    """What the stage waits for: who would leave is the stable revision."""
    reason = view.blocker.reason.value if isinstance(view.blocker, (Wait, Fail)) else None
    counted = evidence(view.priority) if view.priority else None
    return {"reason": reason or ConditionReason.NOT_PROBED.value, "evidence": counted}


#: Between these it goes to and fro, where work turns up again and again, or the workers of a canary fall in
#: one step and stand up again: that is no progress.
_LEGS = (frozenset({Stage.RECOVER_RESERVATIONS, Stage.VERIFY_REGISTRY_EMPTY}), frozenset(CANARY_STAGES))


def _same_leg(one: Stage, other: Stage) -> bool:
    return one is other or any({one, other} <= leg for leg in _LEGS)


def _reason(guard: Guard) -> ConditionReason:
    """The one word of a guard of the guarded way."""
    match guard:
        case Wait(reason, _) | Fail(reason, _):
            return reason
        case Unknown():
            return ConditionReason.REGISTRY_NOT_READABLE
        case Pass():
            return ConditionReason.RETIRING


def _reached(view: View) -> Reached:
    """How far it is: workers that are to come and are available, and others that are to go and are alive."""
    name, wanted = (None, 0) if view.deleting else view.comes
    ready = sum(r.available for r in view.revisions if r.name == name)
    others = sum(r.alive for r in view.revisions if r.name != name)
    return Reached(ready=ready, others=others, wanted=wanted)


def _furthest(one: Reached, other: Reached) -> Reached:
    ready, others = max(one.ready, other.ready), min(one.others, other.others)
    return Reached(ready=ready, others=others, wanted=other.wanted)


def _words(view: View, rollout: RolloutStatus, now: datetime) -> dict[ConditionType, _Word]:
    available = sum(r.available for r in view.revisions)
    count = f"{available} of {view.wanted} workers are available{young(*view.revisions)}"
    words: dict[ConditionType, _Word] = {}
    stalled = _stalled(view, rollout, now)
    reconciling = None if stalled or view.settled or view.halted else _reconciling(view)
    words[ConditionType.READY] = _ready(view, stalled, reconciling, count)
    words[ConditionType.AVAILABLE] = (
        _Word("True", ConditionReason.MINIMUM_REPLICAS_AVAILABLE, f"{count}.")
        if available >= view.wanted
        else _Word("False", ConditionReason.MINIMUM_REPLICAS_UNAVAILABLE, f"{count}.")
    )
    if view.broker is not None:
        words |= broker_words(view.broker)
        if view.broker_type == "NATS":
            words |= queue_words(view.broker, view.old_work, evidence(view.priority) if view.priority else "")
    if view.out:
        words[ConditionType.REGISTRY_EMPTY] = _registry_word(view.out)
    if gates := gates_word(view.analysis, view.gates):
        words[ConditionType.GATES_PASSED] = gates
    if reconciling:
        words[ConditionType.RECONCILING] = reconciling
    if stalled:
        words[ConditionType.STALLED] = stalled
    return words


def _stalled(view: View, rollout: RolloutStatus, now: datetime) -> _Word | None:
    if isinstance(view.blocker, Fail):
        return _Word("True", view.blocker.reason, view.blocker.message)
    timed = isinstance(view.blocker, Wait) and view.blocker.reason is ConditionReason.TIMED_PAUSE
    if view.stage is Stage.ANALYZING or (view.stage is Stage.PAUSED and not timed):
        return None
    deadline = view.drain_deadline if view.drains else view.deadline
    if view.halted or rollout.progressed_at is None or now - rollout.progressed_at <= deadline:
        return None
    seconds = int(deadline.total_seconds())
    if view.drains:
        orphan = (
            " To let the resource go with its workers left as they are, set spec.deletion.policy to Orphan; "
            "to `queueworker up`, put the document back with that policy."
        )
        return _Word(
            "True",
            ConditionReason.DRAIN_OVERDUE,
            f"{view.stage} has not ended within {seconds} s. {_waits(view)} Look at who holds the work "
            "(`queueworker inspect`), and end the pod or process of a worker whose handlers never end; "
            "nothing is retired before, and it is still waited for."
            f"{orphan if view.deleting else ''}",
        )
    if view.deleting:
        return _Word(
            "True",
            ConditionReason.DRAIN_OVERDUE,
            f"No worker stopped within {seconds} s. {_waits(view)} Look at the workers that are left; "
            "the drain goes on.",
        )
    return _Word(
        "True",
        ConditionReason.PROGRESS_DEADLINE_EXCEEDED,
        f"No progress within {seconds} s. {_waits(view)} It is still tried{remedy(view)}",
    )


def _reconciling(view: View) -> _Word:
    match view.blocker:
        case Wait(ConditionReason.ROLLOUT_IN_PROGRESS, _) if failure(view):
            return _Word("True", ConditionReason.WORKERS_FAILING, _waits(view))
        case Wait(reason, _):
            return _Word("True", reason, _waits(view))
        case Unknown() if view.deleting:
            return _Word("True", ConditionReason.REGISTRY_NOT_READABLE, _waits(view))
        case Unknown(reason=reason) if view.out:
            text = f"{view.out.leaving or view.target} is not retired: {reason}."
            return _Word("True", ConditionReason.REGISTRY_NOT_READABLE, text)
        case Unknown(reason=reason):
            return _Word("True", ConditionReason.VALIDATING, f"Waits before {view.target}: {reason}.")
        case _:
            pass
    if fails := failure(view):
        return _Word("True", ConditionReason.WORKERS_FAILING, fails)
    match view.stage:
        case Stage.DELETING:
            return _Word("True", ConditionReason.DELETING, _waits(view))
        case Stage.IDLE:
            return _Word("True", ConditionReason.SCALING_STABLE, _waits(view))
        case Stage.VALIDATING:
            return _Word("True", ConditionReason.VALIDATING, f"{view.target} is checked and created.")
        case Stage.RETIRE:
            return _Word("True", ConditionReason.RETIRING, _retires(view))
        case _:
            return _Word("True", ConditionReason.ROLLOUT_IN_PROGRESS, _waits(view))


def _retires(view: View) -> str:
    leaving = view.out.leaving if view.out else None
    return f"Workers of {leaving or 'other revisions'} stop: nothing that they held is left behind."


def _registry_word(out: WayOut) -> _Word:
    """The condition RegistryEmpty. What has not been asked yet is not proven."""
    match out.registry:
        case None:
            reason = _reason(out.guard)
            known = not isinstance(out.guard, Unknown)
            return _Word(
                "False" if known else "Unknown", reason, "Asked when nobody receives or owns any more."
            )
        case Unknown(reason=text):
            return _Word("Unknown", ConditionReason.REGISTRY_NOT_READABLE, f"{text}.")
        case Wait(reason, message) | Fail(reason, message):
            return _Word("False", reason, message)
        case Pass() if out.applicable:
            text = "Nothing was reserved, staged or owned, and nothing moved, for as long as asked."
            return _Word("True", ConditionReason.EMPTY_AND_QUIET, text)
        case Pass():
            text = "Live workers of other revisions recover what is reserved."
            return _Word("True", ConditionReason.NOT_APPLICABLE, text)


def _ready(view: View, stalled: _Word | None, reconciling: _Word | None, count: str) -> _Word:
    if stalled:
        return _Word("False", stalled.reason, stalled.message)
    if view.deleting:
        return _Word("False", ConditionReason.DELETING, _waits(view))
    if reconciling and reconciling.reason is ConditionReason.WORKERS_FAILING:
        return _Word("False", ConditionReason.DEGRADED, reconciling.message)
    if isinstance(view.blocker, Wait):
        return _Word("False", view.blocker.reason, _waits(view))
    if view.settled:
        return _Word("True", ConditionReason.SERVING, f"{view.target} serves: {count}.")
    message = reconciling.message if reconciling else f"{count}."
    return _Word("False", ConditionReason.PROGRESSING, message)


def _waits(view: View) -> str:
    match view.blocker:
        case Wait(ConditionReason.ROLLOUT_IN_PROGRESS | ConditionReason.WAITING_FOR_RECEIVER, message):
            # Workers are to start: what they report is why it takes long.
            return f"{message} {trouble(view)}".rstrip()
        case Wait(_, message) | Fail(_, message):
            return message
        case Unknown(reason=reason) if view.deleting:
            return f"Nothing is stopped before the broker was asked: {reason}."
        case Unknown(reason=reason):
            return f"Waits before {view.target}: {reason}."
        case Pass() if view.deleting:
            alive = sum(r.alive for r in view.revisions)
            return f"Waits for {alive} workers to finish and stop; ready messages stay on the broker."
        case Pass():
            pass
    if fails := failure(view):
        return fails
    name, wanted = view.comes
    own = [r for r in view.revisions if r.name == name]
    target = sum(map(serving, own))
    others = sum(r.alive for r in view.revisions if r.name != name)
    text = f"{target} of {wanted} workers of {name} are available{young(*own)}"
    text += f"; {others} of other revisions are still there." if others else "."
    return f"{text} {trouble(view)}".rstrip()


def _conditions(
    generation: int, previous: QueueWorkerStatus, words: dict[ConditionType, _Word], now: datetime
) -> tuple[Condition, ...]:
    conditions = []
    for type_ in ConditionType:
        before = previous.condition(type_)
        word = words.get(type_)
        if word is None:
            # What an invalid spec cannot say anew stays; the abnormal-true ones go when they are not true.
            # (The broker stays of one kind, so what only one kind has does not go stale.)
            if before and type_ in _OF_THE_BROKER:
                conditions.append(before)
            continue
        unchanged = before is not None and before.status == word.state
        conditions.append(
            Condition(
                type=type_.value,
                status=word.state,
                observed_generation=generation,
                last_transition_time=before.last_transition_time if before and unchanged else now,
                reason=word.reason.value,
                message=word.message[:32768],
            )
        )
    return tuple(conditions)
