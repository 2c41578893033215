"""The end of a resource: the guarded way for all of its revisions, or none of it.

With the policy Drain every revision is fenced, drained, recovered and proven to leave nothing before its last
worker is stopped; then the fences are lifted and the resource goes. With Orphan the workers live on without
it. What cannot be seen stops a drain, as long as there is a worker to stop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from queueworker_operator.api.leaving import DeletionPolicy
from queueworker_operator.api.reasons import WAY_OUT, ConditionReason, EventReason, Stage
from queueworker_operator.api.revisions import broker_identity, revision_of
from queueworker_operator.api.sentences import inside
from queueworker_operator.api.types import InvalidQueueWorker, Protocol, QueueWorker
from queueworker_operator.plan.actions import (
    Action,
    DeleteRevision,
    EmitEvent,
    OrphanRevision,
    RemoveFinalizer,
    RetireRevision,
    UnfenceRevision,
)
from queueworker_operator.plan.facts import (
    BrokerCheck,
    Facts,
    QueueFacts,
    RevisionFacts,
    Unknown,
    Workers,
    fresh_broker,
    fresh_queue,
)
from queueworker_operator.plan.fences import Mark
from queueworker_operator.plan.guards import Fail, Guard, Pass, Wait, broker_guard, first_obstacle
from queueworker_operator.plan.moving import elsewhere
from queueworker_operator.plan.sharing import shared_of, silent_of
from queueworker_operator.plan.split import is_empty
from queueworker_operator.plan.way_out import Departure, WayOut, way_out

#: How Kubernetes itself asks for children to be left behind (`kubectl delete --cascade=orphan`).
_ORPHAN_FINALIZER = "orphan"
#: What a fence says of a deletion; a drain that becomes an Orphan lifts no other.
_WHY = "its QueueWorker is deleted"
#: Seconds in which workers of another QueueWorker that were just started show on the broker's list.
_SEEN_WITHIN = timedelta(seconds=10)
#: A fence is kept for workers that the broker still lists; dead ones fall silent within the expiry.
LISTED_AT_MOST = timedelta(seconds=120)
_WAY_OUT = (
    "If that cannot be mended, set spec.deletion.policy to Orphan: the resource goes and its workers stay. "
    "(To `queueworker up`, put the document back with that policy.)"
)
_NOT_ASKED = "Whether they left anything on the broker could not be asked: {}."


@dataclass(frozen=True, slots=True)
class Ending:
    """What one pass does for a resource that is being deleted."""

    actions: tuple[Action, ...]
    stage: Stage
    #: What stops the next step.
    blocker: Guard
    out: WayOut | None = None
    broker: BrokerCheck | Unknown | None = None
    #: The resource goes with these actions.
    done: bool = False


def ending(
    resource: QueueWorker | InvalidQueueWorker,
    workers: Workers,
    revisions: tuple[RevisionFacts, ...],
    facts: Facts,
    now: datetime,
) -> Ending:
    """The next step towards letting the resource go. `revisions` are those that are ours."""
    if is_orphan(resource):
        return _orphaned(resource, revisions, facts, now)
    # What has no owner any more was orphaned by the cluster itself, which may be quicker than we are.
    busy = tuple(r for r in revisions if r.owned and not is_empty(r))
    if isinstance(resource, InvalidQueueWorker):
        if busy or workers.unattached:
            problems = "; ".join(map(str, resource.problems))
            text = (
                f"{problems}. Without it nobody knows which broker to ask, so nothing is stopped. {_WAY_OUT}"
            )
            return Ending((), Stage.DELETING, Fail(ConditionReason.INVALID_SPEC, text))
        return _gone(resource, revisions, (), _NOT_ASKED.format("the spec cannot be used"))
    return _drained(resource, workers, revisions, busy, facts, now)


def is_orphan(resource: QueueWorker | InvalidQueueWorker) -> bool:
    """Whether the workers are to outlive the resource."""
    policy = (
        resource.deletion_policy
        if isinstance(resource, InvalidQueueWorker)
        else resource.spec.deletion_policy
    )
    return policy is DeletionPolicy.ORPHAN or _ORPHAN_FINALIZER in resource.metadata.finalizers


def _drained(
    resource: QueueWorker,
    workers: Workers,
    revisions: tuple[RevisionFacts, ...],
    busy: tuple[RevisionFacts, ...],
    facts: Facts,
    now: datetime,
) -> Ending:
    check, reachable, queue = _seen(resource, facts, now)
    mark = _mark(resource)
    capable = tuple(r for r in busy if r.protocol is Protocol.RESERVATION)
    shared = shared_of(capable, facts.shared, queue)
    away = elsewhere(resource.spec.broker, revisions, workers.kept)
    leaving = tuple(r for r in capable if r.name not in shared and r.name not in away)
    if doubtful := _doubtful(resource, leaving, facts.shared, queue, now):
        text = (
            f"Another QueueWorker has {', '.join(doubtful)}, too, and a fence would stop its workers: for "
            f"{_SEEN_WITHIN.seconds} s it is seen whether some live on the broker."
        )
        return Ending((), Stage.DELETING, Wait(ConditionReason.DELETING, text), None, check)
    ours = any(r.protocol is Protocol.RESERVATION for r in revisions)
    out = None
    if (not shared and (ours or resource.spec.protocol is Protocol.RESERVATION)) or leaving:
        target = revision_of(resource.metadata.name, resource.spec).name
        silent = silent_of(target, resource.status, workers.kept, revisions, facts.shared)
        out = way_out(_departure(resource, leaving, mark, silent), queue, now)
    held = first_obstacle(reachable, out.guard) if out else Pass()
    actions: list[Action] = list(out.actions) if out and isinstance(reachable, Pass) else []
    may_stop = isinstance(held, Pass)
    stopping = [r for r in busy if r.desired and (may_stop or r not in leaving)]
    actions += [RetireRevision(r.name, r.deployment) for r in stopping]
    if busy or workers.unattached:
        stage = out.stage if out and leaving else Stage.DELETING
        blocker = _with_way_out(held) if leaving else Pass()
        if not busy:
            text = f"Waits for {workers.unattached} workers to stop, whose Deployments are gone."
            blocker = Wait(ConditionReason.DELETING, text)
        return Ending(tuple(actions), stage, blocker, out if leaving else None, check)
    if out and isinstance(check, BrokerCheck) and not isinstance(reachable, Pass):
        # Nobody is left whom the proof could hold back.
        return _gone(resource, revisions, (), _NOT_ASKED.format(inside(check.message)))
    if not isinstance(held, Pass):
        assert out is not None
        return Ending(tuple(actions), out.stage, _with_way_out(held), out, check)
    return _lifted(resource, revisions, facts.shared, queue, out, check, now, away)


def _doubtful(
    resource: QueueWorker,
    leaving: tuple[RevisionFacts, ...],
    named: frozenset[str],
    queue: QueueFacts | Unknown,
    now: datetime,
) -> list[str]:
    """Revisions that another QueueWorker has as well, while its workers may not have had the time to show."""
    deleted = resource.metadata.deletion_timestamp
    if deleted is None or now - deleted >= _SEEN_WITHIN or isinstance(queue, Unknown):
        return []
    return [r.name for r in leaving if r.name in named and r.desired and not queue.is_fenced(r.name)]


def _lifted(
    resource: QueueWorker,
    revisions: tuple[RevisionFacts, ...],
    named: frozenset[str],
    queue: QueueFacts | Unknown,
    out: WayOut | None,
    check: BrokerCheck | Unknown,
    now: datetime,
    away: frozenset[str],
) -> Ending:
    """Every worker has stopped, and nothing is left. The fences go, once nobody is listed whom they stop. A
    fence that stops another QueueWorker's workers (`named`) goes at once: those on the list are its."""
    fenced = _mark(resource).ours(queue) if isinstance(queue, QueueFacts) else []
    listed = [
        name
        for name in fenced
        if isinstance(queue, QueueFacts) and queue.of(name).capable and name not in named
    ]
    rollout = resource.status.rollout
    since = rollout.progressed_at if rollout and rollout.progressed_at else now
    if listed and now - since <= LISTED_AT_MOST:
        text = (
            f"The broker still lists workers of {', '.join(listed)}, none of this resource: their "
            "fence is lifted when they have fallen silent."
        )
        stage = out.stage if out else Stage.RETIRE
        return Ending((), stage, Wait(ConditionReason.WORKERS_LISTED, text), out, check)
    lifted = tuple(UnfenceRevision(name) for name in fenced if name not in listed)
    there = ", ".join(sorted(r.name for r in revisions if r.name in away))
    unseen = (
        f"{there} consumed from another broker than the spec names, which was not asked." if there else ""
    )
    return _gone(resource, revisions, lifted, unseen, listed)


def _seen(
    resource: QueueWorker, facts: Facts, now: datetime
) -> tuple[BrokerCheck | Unknown, Guard, QueueFacts | Unknown]:
    identity = broker_identity(resource.spec.broker)
    check = fresh_broker(facts, identity, now)
    reachable = broker_guard(check)
    queue = fresh_queue(facts, identity, now)
    if not isinstance(reachable, Pass):
        queue = Unknown("the broker is not proven reachable", check.observed_at)
    return check, reachable, queue


def _mark(resource: QueueWorker | InvalidQueueWorker) -> Mark:
    return Mark.of(resource.metadata.namespace, resource.metadata.name)


def _departure(
    resource: QueueWorker, leaving: tuple[RevisionFacts, ...], mark: Mark, silent: frozenset[str]
) -> Departure:
    rollout = resource.status.rollout
    return Departure(
        leaving=leaving,
        target="",
        wanted=0,
        target_protocol=resource.spec.protocol,
        receiver=Pass(),
        mark=mark,
        quiet=timedelta(seconds=resource.spec.quiet_seconds),
        before=rollout.stage if rollout else None,
        why=_WHY,
        silent=silent,
    )


def _with_way_out(guard: Guard) -> Guard:
    match guard:
        case Wait(reason, message):
            return Wait(reason, f"{message} {_WAY_OUT}") if reason is _UNREACHABLE else guard
        case Fail(reason, message):
            return Fail(reason, f"{message} {_WAY_OUT}")
        case _:
            return guard


_UNREACHABLE = ConditionReason.BROKER_UNREACHABLE


def _orphaned(
    resource: QueueWorker | InvalidQueueWorker,
    revisions: tuple[RevisionFacts, ...],
    facts: Facts,
    now: datetime,
) -> Ending:
    """Let go of the workers as they are. Fences of a drain that was begun are lifted where possible."""
    lifted: list[Action] = []
    check: BrokerCheck | Unknown | None = None
    queue: QueueFacts | Unknown | None = None
    if isinstance(resource, QueueWorker):
        check, _, queue = _seen(resource, facts, now)
        if isinstance(check, Unknown) or (_is_reachable(check) and isinstance(queue, Unknown)):
            first = resource.status.rollout is None or resource.status.rollout.stage is not Stage.DELETING
            if first:
                # One look more: it may be that nobody has looked yet.
                return Ending((), Stage.DELETING, Pass(), None, check)
        if isinstance(queue, QueueFacts):
            mark = _mark(resource)
            fences = {name: queue.fences[name] for name in mark.ours(queue)}
            lifted = [UnfenceRevision(name) for name, reason in fences.items() if _WHY in reason]
    orphans = [OrphanRevision(r.name, r.deployment) for r in revisions if r.owned]
    serving = ", ".join(f"{r.name} ({r.desired})" for r in revisions if r.desired) or "none"
    text = (
        f"The resource goes, and its workers stay: {serving}. A QueueWorker of the same name takes them over."
    )
    begun = resource.status.rollout is not None and resource.status.rollout.stage in WAY_OUT
    if begun and not isinstance(queue, QueueFacts):
        text += " The broker does not answer: a fence on them has to be lifted with `queueworker unfence`."
    event = EmitEvent(EventReason.WORKERS_ORPHANED, "Normal", text, f"orphaned:{resource.metadata.uid}")
    actions = (*lifted, *orphans, event, RemoveFinalizer())
    return Ending(actions, Stage.DELETING, Pass(), None, check, done=True)


def _is_reachable(check: BrokerCheck) -> bool:
    return isinstance(broker_guard(check), Pass)


def _gone(
    resource: QueueWorker | InvalidQueueWorker,
    revisions: tuple[RevisionFacts, ...],
    lifted: tuple[Action, ...],
    unseen: str,
    listed: Iterable[str] = (),
) -> Ending:
    """The last actions. `unseen` says which broker was not asked, and why; `listed` are fences that stay."""
    uid = resource.metadata.uid
    text = "All workers have stopped."
    if unseen:
        text += f" {unseen}"
    if names := ", ".join(listed):
        text += (
            f" The fence on {names} stays, since the broker still lists workers of it: lift it with "
            "`queueworker unfence` when they are gone."
        )
    if unseen:
        event = EmitEvent(EventReason.DRAIN_UNPROVEN, "Warning", text, f"unproven:{uid}")
    else:
        event = EmitEvent(EventReason.DRAIN_COMPLETED, "Normal", text, f"drained:{uid}")
    unowned = tuple(DeleteRevision(r.name, r.deployment) for r in revisions if not r.owned and is_empty(r))
    actions = (*lifted, *unowned, event, RemoveFinalizer())
    return Ending(actions, Stage.DELETING, Pass(), done=True)
