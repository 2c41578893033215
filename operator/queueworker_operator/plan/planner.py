"""The next step towards what a QueueWorker asks for.

Rolling: the new revision is created beside the old one at its full number; as its workers become available,
as many of the old are told to finish and stop; when the last old one is gone, the new revision is the stable
one and the old Deployment is deleted. Going back needs nothing kept: the same spec leads to the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from queueworker_operator.api.names import FINALIZER
from queueworker_operator.api.reasons import ConditionReason, EventReason, Stage
from queueworker_operator.api.revisions import Revision, broker_identity, revision_of
from queueworker_operator.api.template import termination_grace_seconds
from queueworker_operator.api.types import (
    InvalidQueueWorker,
    QueueWorker,
    QueueWorkerStatus,
    StableStatus,
    whole_seconds,
)
from queueworker_operator.plan.actions import (
    Action,
    AdoptRevision,
    ApplyRevision,
    DeleteRevision,
    EmitEvent,
    EnsureFinalizer,
    Plan,
    RemoveFinalizer,
    RetireRevision,
    ScaleRevision,
    WriteStatus,
)
from queueworker_operator.plan.events import transitions
from queueworker_operator.plan.facts import (
    Facts,
    RevisionFacts,
    Unknown,
    Workers,
    fresh_broker,
    fresh_workers,
)
from queueworker_operator.plan.guards import Fail, Guard, Pass, broker_guard, creation_guard, refusal_guard
from queueworker_operator.plan.split import hold, is_empty, serving
from queueworker_operator.plan.status import View, build_status

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
        return _delete(resource, workers, now)
    if isinstance(resource, InvalidQueueWorker):
        return _refuse(resource, workers, now)
    return _forward(resource, workers, facts, now)


def _forward(resource: QueueWorker, workers: Workers, facts: Facts, now: datetime) -> Plan:
    metadata, spec, previous = resource.metadata, resource.spec, resource.status
    target = revision_of(metadata.name, spec)
    broker = fresh_broker(facts, broker_identity(spec.broker), now)
    creatable, reachable = creation_guard(target, workers), broker_guard(broker)
    guard = _first_obstacle(creatable, refusal_guard(target, workers), reachable)

    revisions = _ours(workers)
    current = next((r for r in revisions if r.name == target.name), None)
    stable = previous.stable
    is_back = stable is not None and stable.revision == target.name
    # Once begun, a change of the number still applies; only a proven guard begins.
    moves = is_back or isinstance(guard, Pass) or _is_under_way(previous, target)
    others = _keep_first(revisions, target.name, stable)

    shares = _shares(spec.replicas, current, others, stable, frozen=not (is_back or isinstance(guard, Pass)))
    downs, ups = _steps(others, shares)
    if current is None:
        if isinstance(creatable, Pass) and (is_back or isinstance(reachable, Pass)):
            ups.append(ApplyRevision(target, spec.replicas))
    elif current.desired != spec.replicas and moves:
        change = ScaleRevision(target.name, target.deployment, spec.replicas)
        (downs if spec.replicas < current.desired else ups).append(change)

    promoted = (
        current is not None
        and isinstance(guard, Pass)
        and current.desired == spec.replicas <= serving(current)
        and all(map(is_empty, others))
    )
    if promoted:
        stable = _stable(target)
    kept = stable.revision if stable else None
    gone = [r for r in others if is_empty(r) and r.name != kept and not shares[r.name]]
    left = tuple(r for r in revisions if r not in gone)

    if stable is not None and stable.revision == target.name:
        stage = Stage.IDLE if all(r.name == target.name for r in left) else Stage.PROMOTING
    else:
        stage = Stage.PROMOTING if current is not None and moves else Stage.VALIDATING
    view = View(
        stage=stage,
        revisions=left,
        wanted=spec.replicas,
        target=target.name,
        stable=stable,
        broker_type=spec.broker.type,
        broker=broker,
        blocker=Pass() if isinstance(guard, Unknown) and is_back else guard,
        deadline=_deadline(resource),
    )
    status = build_status(metadata, previous, view, now)
    actions: list[Action] = []
    if FINALIZER not in metadata.finalizers:
        actions.append(EnsureFinalizer())
    actions += [AdoptRevision(r.name, r.deployment) for r in revisions if not r.owned]
    actions += [*downs, *ups]
    actions += [DeleteRevision(r.name, r.deployment) for r in gone]
    events = _scaled(metadata.generation, previous, current, target, spec.replicas, downs + ups)
    requeue = BLOCKED if not isinstance(guard, Pass) else SETTLED if view.settled else MOVING
    return _finish(actions, events, previous, status, requeue)


def _refuse(resource: InvalidQueueWorker, workers: Workers, now: datetime) -> Plan:
    """The spec cannot be used: say so, and leave the workers as they are."""
    previous, revisions = resource.status, _ours(workers)
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
    )
    status = build_status(resource.metadata, previous, view, now)
    return _finish([], [], previous, status, SETTLED)


def _delete(resource: QueueWorker | InvalidQueueWorker, workers: Workers, now: datetime) -> Plan:
    """Drain: every worker finishes and stops, then the resource goes. Ready messages stay on the broker."""
    metadata, previous = resource.metadata, resource.status
    if FINALIZER not in metadata.finalizers:
        return Plan((), previous, SETTLED)
    revisions = _ours(workers)
    if all(map(is_empty, revisions)):
        text = "All workers have stopped."
        key = f"drained:{metadata.uid}"
        actions: list[Action] = [DeleteRevision(r.name, r.deployment) for r in revisions if not r.owned]
        actions.append(EmitEvent(EventReason.DRAIN_COMPLETED, "Normal", text, key))
        return Plan((*actions, RemoveFinalizer()), previous, SETTLED)
    view = View(
        stage=Stage.DELETING,
        revisions=revisions,
        wanted=0,
        target=None,
        stable=previous.stable,
        broker_type=None,
        broker=None,
        blocker=Pass(),
        deadline=_deadline(resource),
    )
    status = build_status(metadata, previous, view, now)
    retire: list[Action] = [RetireRevision(r.name, r.deployment) for r in revisions if r.desired]
    return _finish(retire, [], previous, status, MOVING)


def _finish(
    actions: list[Action],
    events: Iterable[EmitEvent],
    previous: QueueWorkerStatus,
    status: QueueWorkerStatus,
    requeue: float,
) -> Plan:
    ordered: list[Action] = [*actions, *events, *transitions(previous, status)]
    if status != previous:
        ordered.append(WriteStatus(status))
    return Plan(tuple(ordered), status, requeue)


def _ours(workers: Workers) -> tuple[RevisionFacts, ...]:
    return tuple(r for r in workers.revisions if not r.conflict)


def _keep_first(
    revisions: Iterable[RevisionFacts], target: str, stable: StableStatus | None
) -> list[RevisionFacts]:
    """All but the target: the stable one first, then the newest. Who comes first is drained last."""
    name = stable.revision if stable else None
    rest = [r for r in revisions if r.name != target]
    return sorted(rest, key=lambda r: (r.name != name, -r.created, r.name))


def _shares(
    desired: int,
    current: RevisionFacts | None,
    others: list[RevisionFacts],
    stable: StableStatus | None,
    *,
    frozen: bool,
) -> dict[str, int]:
    """What the others hold. Frozen: what the target took over does not count; nothing grows without need."""
    taken_over = serving(current) if current and not frozen else 0
    shares = hold(desired, taken_over, others, stable.revision if stable else None)
    if frozen and sum(r.desired for r in others) + (current.desired if current else 0) >= desired:
        return {r.name: min(r.desired, shares[r.name]) for r in others}
    return shares


def _steps(others: list[RevisionFacts], shares: dict[str, int]) -> tuple[list[Action], list[Action]]:
    """What is taken away does not serve or is not needed, so it goes first: never above twice `desired`."""
    downs: list[Action] = []
    ups: list[Action] = []
    for r in others:
        share = shares[r.name]
        if share == r.desired:
            continue
        if share == 0:
            downs.append(RetireRevision(r.name, r.deployment))
        else:
            (downs if share < r.desired else ups).append(ScaleRevision(r.name, r.deployment, share))
    return downs, ups


def _first_obstacle(*guards: Guard) -> Guard:
    return next((guard for guard in guards if not isinstance(guard, Pass)), Pass())


def _is_under_way(previous: QueueWorkerStatus, target: Revision) -> bool:
    rollout = previous.rollout
    return rollout is not None and rollout.stage is Stage.PROMOTING and rollout.target == target.name


def _stable(target: Revision) -> StableStatus:
    return StableStatus(
        revision=target.name, version=target.version, deployment=target.deployment, prefetch=target.prefetch
    )


def _deadline(resource: QueueWorker | InvalidQueueWorker) -> timedelta:
    """The progress deadline; in a drain, also the time that one worker may take to stop without a sign."""
    if isinstance(resource, InvalidQueueWorker):
        return _DEFAULT_DEADLINE
    spec = resource.spec
    grace = termination_grace_seconds(spec.template, spec.shutdown_seconds)
    extra = grace if resource.metadata.deletion_timestamp else 0
    return timedelta(seconds=spec.progress_deadline_seconds + extra)


def _scaled(
    generation: int,
    previous: QueueWorkerStatus,
    current: RevisionFacts | None,
    target: Revision,
    desired: int,
    steps: list[Action],
) -> list[EmitEvent]:
    scaled = any(isinstance(step, ScaleRevision) and step.revision == target.name for step in steps)
    if not scaled or current is None:
        return []
    text = f"{target.name} goes from {current.desired} to {desired} workers."
    key = f"scaled:{generation}:{target.name}:{current.desired}:{desired}"
    return [EmitEvent(EventReason.SCALED, "Normal", text, key)]
