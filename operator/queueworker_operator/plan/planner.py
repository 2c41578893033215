"""The next step towards what a QueueWorker asks for.

Priority: what cannot be seen is left as it is; a deletion drains; an invalid spec leaves the workers alone;
else the strategy of the spec decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from queueworker_operator.api.names import FINALIZER
from queueworker_operator.api.reasons import WAY_OUT, ConditionReason, EventReason, Stage
from queueworker_operator.api.revisions import revision_of
from queueworker_operator.api.template import termination_grace_seconds
from queueworker_operator.api.types import (
    InvalidQueueWorker,
    QueueWorker,
    QueueWorkerSpec,
    QueueWorkerStatus,
    whole_seconds,
)
from queueworker_operator.plan.actions import (
    Action,
    AdoptRevision,
    EmitEvent,
    EnsureFinalizer,
    ForgetRevision,
    KeepRevision,
    Plan,
    RemoveAudit,
    UnfenceRevision,
    WriteStatus,
)
from queueworker_operator.plan.analysis import longest
from queueworker_operator.plan.autoscaler import gives_way
from queueworker_operator.plan.deletion import ending
from queueworker_operator.plan.events import transitions
from queueworker_operator.plan.facts import (
    Facts,
    QueueFacts,
    Refusal,
    RevisionFacts,
    Unknown,
    Workers,
    fresh_workers,
)
from queueworker_operator.plan.forward import Change, change_of, scaled
from queueworker_operator.plan.guards import Fail, Guard, Pass
from queueworker_operator.plan.kept import keeping
from queueworker_operator.plan.moving import moving
from queueworker_operator.plan.priority import older_work
from queueworker_operator.plan.restarts import with_restarts
from queueworker_operator.plan.revoked import revoked_versions
from queueworker_operator.plan.rolling import Decision
from queueworker_operator.plan.status import build_status
from queueworker_operator.plan.steps import Place, whole_since
from queueworker_operator.plan.view import View

#: Seconds until the next look when nothing is reported before.
MOVING, BLOCKED, SETTLED = 2.0, 10.0, 30.0
#: For a resource whose spec cannot be read.
_DEFAULT_DEADLINE = timedelta(seconds=600)


def plan(resource: QueueWorker | InvalidQueueWorker, facts: Facts, now: datetime) -> Plan:
    """Decide the next actions. Total and deterministic; `now` is aware, and so are all times in facts."""
    now = whole_seconds(now)
    workers = fresh_workers(facts, now)
    if isinstance(workers, Unknown):
        return Plan((), resource.status, MOVING)
    if resource.metadata.deletion_timestamp is not None:
        return _delete(resource, workers, facts, now)
    if isinstance(resource, InvalidQueueWorker):
        return _refuse(resource, workers, now)
    return _forward(resource, workers, facts, now)


def seconds_until_next(decided: Plan, facts: Facts, refusal: Refusal | None) -> float:
    """When to look again. A refusal of this pass that its facts did not know is not in the status yet: at
    once. One that was known is tried again at the pace of the plan, never without a pause."""
    if refusal is None or isinstance(facts.workers, Unknown):
        return decided.requeue_after
    told = any(known.revision == refusal.revision for known in facts.workers.refusals)
    return decided.requeue_after if told else 0.0


def _forward(resource: QueueWorker, workers: Workers, facts: Facts, now: datetime) -> Plan:
    metadata, spec = resource.metadata, resource.spec
    change = change_of(resource, workers, _ours(workers), facts, now)
    change = gives_way(change, metadata.name, now)
    decision, heard, previous = change.decision, change.heard, change.previous
    stable = decision.stable
    asked = revision_of(metadata.name, spec)
    keep, kept = list[KeepRevision | ForgetRevision](), previous.kept
    if decision.stage is Stage.IDLE and stable is not None and workers.kept is not None:
        keep, kept = keeping(spec, asked, stable, workers.kept)
    view = View(
        stage=decision.stage,
        revisions=decision.left,
        wanted=spec.replicas,
        target=change.target,
        stable=stable,
        broker_type=spec.broker.type,
        broker=change.broker,
        blocker=change.blocker,
        deadline=_deadline(resource) + _step_takes(spec, change),
        drain_deadline=timedelta(seconds=spec.drain_deadline_seconds),
        previous=_previous(previous, decision),
        out=decision.out if decision.stage in WAY_OUT else None,
        handled_request=heard.handled,
        request_ignored=heard.ignored,
        aborted=heard.aborted,
        old_work=change.situation.old_work,
        rolled_back=heard.rolled_back,
        kept=kept,
        revoked=revoked_versions(
            spec.revoked_versions, (asked.version, *(r.version for r in workers.revisions)), previous
        ),
        promoted=heard.promoted if stable and stable.revision != heard.promoted else None,
        place=change.place,
        canary=(change.arm.revision.name, change.arm.split.workers) if change.arm else None,
        analysis=change.analysis,
        gates=change.gates,
    )
    status = build_status(metadata, previous, view, now)
    actions: list[Action] = [] if FINALIZER in metadata.finalizers else [EnsureFinalizer()]
    actions += [AdoptRevision(r.name, r.deployment) for r in change.situation.revisions if not r.owned]
    actions += [*decision.actions, *keep]
    told = [*heard.events, *scaled(metadata.generation, change)]
    told += moving(previous, change.situation.target, decision.stage, workers.kept)
    for name in _forgettable(spec, change, now) if view.settled else ():
        actions.append(UnfenceRevision(name))
        text = f"The fence on {name} is lifted: it is long gone, and no worker of it is left."
        assert isinstance(change.situation.queue, QueueFacts)
        key = f"forgotten:{name}:{change.situation.queue.fences[name]}"
        told.append(EmitEvent(EventReason.FENCE_FORGOTTEN, "Normal", text, key))
    requeue = SETTLED if view.settled and not view.goes_on else MOVING
    if change.is_stopped:
        requeue = BLOCKED
    elif decision.stage is Stage.PAUSED and change.place is not None and not change.place.done:
        requeue = _pause_left(spec, change, change.place, now)
    return _finish(actions, [*told, *transitions(previous, status)], resource.status, status, requeue)


def _forgettable(spec: QueueWorkerSpec, change: Change, now: datetime) -> list[str]:
    """Fences of revisions that left long ago."""
    situation = change.situation
    if not isinstance(situation.queue, QueueFacts):
        return []
    there = {situation.target.name, *(r.name for r in situation.revisions)}
    kept = timedelta(seconds=spec.keep_fences_seconds)
    return situation.mark.forgettable(situation.queue, there, kept, now)


def _step_takes(spec: QueueWorkerSpec, change: Change) -> timedelta:
    """What the step itself asks for, which is no lack of progress."""
    place = change.place
    if change.arm is None or place is None or place.done:
        return timedelta(0)
    step = spec.steps[place.index]
    if step.pause is not None:
        return timedelta(seconds=step.pause.duration_seconds or 0)
    return longest(step.analysis) if step.analysis is not None else timedelta(0)


def _pause_left(spec: QueueWorkerSpec, change: Change, place: Place, now: datetime) -> float:
    pause = spec.steps[place.index].pause
    seconds = pause.duration_seconds if pause else None
    since = whole_since(place.since, change.arm.canary if change.arm else None)
    left = BLOCKED if seconds is None else seconds - (now - since).total_seconds()
    return min(BLOCKED, max(left, MOVING / 2))


def _previous(previous: QueueWorkerStatus, decision: Decision) -> str | None:
    """The revision that served before the one that serves now."""
    was, is_ = previous.stable, decision.stable
    return was.revision if was and is_ and was.revision != is_.revision else previous.previous


def _refuse(resource: InvalidQueueWorker, workers: Workers, now: datetime) -> Plan:
    """The spec cannot be used: say so, and leave the workers as they are."""
    previous = resource.status
    revisions = with_restarts(_ours(workers), None, previous)
    problems = "; ".join(str(problem) for problem in resource.problems)
    view = View(
        stage=previous.rollout.stage if previous.rollout else Stage.VALIDATING,
        revisions=revisions,
        wanted=sum(r.desired for r in revisions),
        target=previous.rollout.target if previous.rollout else None,
        stable=previous.stable,
        broker_type=None,
        broker=None,
        blocker=Fail(ConditionReason.INVALID_SPEC, f"{problems}. Workers that run are left alone."),
        deadline=_DEFAULT_DEADLINE,
        drain_deadline=_DEFAULT_DEADLINE,
        previous=previous.previous,
        out=None,
        handled_request=previous.handled_request,
        request_ignored=previous.request_ignored,
        aborted=previous.aborted,
        promoted=previous.promoted,
        gates=previous.gates,
        rolled_back=previous.rolled_back,
        kept=previous.kept,
    )
    status = build_status(resource.metadata, previous, view, now)
    if previous.rollout is not None:
        # How far a change is stays as it is: it goes on from there when the spec is right again.
        status = status.model_copy(update={"rollout": previous.rollout})
    return _finish([], transitions(previous, status), previous, status, SETTLED)


def _delete(
    resource: QueueWorker | InvalidQueueWorker, workers: Workers, facts: Facts, now: datetime
) -> Plan:
    """Let it go by the way that its policy asks for. Ready messages stay on the broker."""
    metadata, previous = resource.metadata, resource.status
    if FINALIZER not in metadata.finalizers:
        return Plan((), previous, SETTLED)
    revisions = with_restarts(_ours(workers), None, previous)
    end = ending(resource, workers, revisions, facts, now)
    if end.done:
        return Plan(end.actions, previous, SETTLED)
    drain = _DEFAULT_DEADLINE
    old_work: Guard = Pass()
    if isinstance(resource, QueueWorker):
        drain = timedelta(seconds=resource.spec.drain_deadline_seconds)
        if end.broker is not None:
            old_work = older_work(end.broker, revisions, timedelta(seconds=resource.spec.quiet_seconds))
    view = View(
        stage=end.stage,
        revisions=revisions,
        wanted=0,
        target=None,
        stable=previous.stable,
        broker_type=resource.spec.broker.type if isinstance(resource, QueueWorker) else None,
        broker=end.broker,
        blocker=end.blocker,
        deadline=_deadline(resource),
        drain_deadline=drain,
        previous=previous.previous,
        out=end.out,
        handled_request=previous.handled_request,
        request_ignored=previous.request_ignored,
        aborted=previous.aborted,
        old_work=old_work,
        gates=previous.gates,
        rolled_back=previous.rolled_back,
        kept=previous.kept,
        deleting=True,
    )
    status = build_status(metadata, previous, view, now)
    return _finish(list(end.actions), transitions(previous, status), previous, status, MOVING)


def _finish(
    actions: list[Action],
    events: Iterable[EmitEvent],
    previous: QueueWorkerStatus,
    status: QueueWorkerStatus,
    requeue: float,
) -> Plan:
    ordered: list[Action] = [*actions, *events]
    if status != previous:
        ordered.append(WriteStatus(status))
    if (left := _audit(previous)) and left != _audit(status):
        ordered.append(RemoveAudit(left))
    return Plan(tuple(ordered), status, requeue)


def _audit(status: QueueWorkerStatus) -> str | None:
    """Who counts totals. The status forgets it before it is removed: an answer that was judged is not asked
    for again. A Job that is left behind between the two goes by its age."""
    analysis = status.rollout.analysis if status.rollout else None
    return analysis.audit.name if analysis and analysis.audit else None


def _ours(workers: Workers) -> tuple[RevisionFacts, ...]:
    return tuple(r for r in workers.revisions if not r.conflict)


def _deadline(resource: QueueWorker | InvalidQueueWorker) -> timedelta:
    """The progress deadline; in a drain, also the time that one worker may take to stop without a sign."""
    if isinstance(resource, InvalidQueueWorker):
        return _DEFAULT_DEADLINE
    spec = resource.spec
    grace = termination_grace_seconds(spec.template, spec.shutdown_seconds)
    extra = grace if resource.metadata.deletion_timestamp else 0
    # Nobody gets further by being ready alone.
    return timedelta(seconds=spec.progress_deadline_seconds + spec.min_ready_seconds + extra)
