"""The change that a spec asks for: requests, the course, and the strategy that decides its next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from queueworker_operator.api.gates import AnalysisStatus, GateStatus
from queueworker_operator.api.kept import Kept
from queueworker_operator.api.reasons import ConditionReason, EventReason, Stage
from queueworker_operator.api.revisions import Revision, arms_of, broker_identity, revision_of
from queueworker_operator.api.types import QueueWorker, QueueWorkerSpec, QueueWorkerStatus
from queueworker_operator.plan.actions import EmitEvent, ScaleRevision
from queueworker_operator.plan.audit import AuditFact
from queueworker_operator.plan.canary import Arm, Canary, beside_the_stable, walked
from queueworker_operator.plan.course import (
    held,
    is_forward,
    kept_back,
    kept_guard,
    remembered,
    revoked,
    rolled_back,
    serves_revoked,
)
from queueworker_operator.plan.evidence import KEPT, aborted, begun, evidence, kept_gates, terms_of
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
from queueworker_operator.plan.guards import (
    Fail,
    Guard,
    Pass,
    Wait,
    broker_guard,
    creation_guard,
    first_obstacle,
    refusal_guard,
)
from queueworker_operator.plan.kept import find
from queueworker_operator.plan.moving import elsewhere, unproven
from queueworker_operator.plan.pending import pending_of, place_of
from queueworker_operator.plan.priority import older_work
from queueworker_operator.plan.requests import Heard, as_target, hear
from queueworker_operator.plan.restarts import with_restarts
from queueworker_operator.plan.rolling import Decision, rolling
from queueworker_operator.plan.samples import NotSampled, Samples
from queueworker_operator.plan.situation import Situation
from queueworker_operator.plan.steps import Place

#: What only a person ends.
_FOR_A_PERSON = (
    ConditionReason.PAUSE_STEP,
    ConditionReason.GATE_FAILED,
    ConditionReason.GATE_INCONCLUSIVE,
    ConditionReason.FOREIGN_AUTOSCALER,
)


@dataclass(frozen=True, slots=True)
class Change:
    """What one pass makes of a spec that keeps every rule."""

    #: The revision that the stages are about.
    target: str
    decision: Decision
    situation: Situation
    #: What stops the next step.
    blocker: Guard
    heard: Heard
    broker: BrokerCheck | Unknown
    #: The previous status, with a stable revision where it had lost it.
    previous: QueueWorkerStatus
    #: Of a canary: how far it is, and what runs beside the stable revision.
    place: Place | None = None
    arm: Arm | None = None
    #: The analysis that is under way or did not pass, and what gates found in this change so far.
    analysis: AnalysisStatus | None = None
    gates: tuple[GateStatus, ...] = ()

    @property
    def is_stopped(self) -> bool:
        """Nothing moves by itself before the broker, the API server or a person does something."""
        situation = self.situation
        guards = (situation.creatable, situation.accepted, situation.reachable, situation.pause)
        pauses = isinstance(self.blocker, Wait | Fail) and self.blocker.reason in _FOR_A_PERSON
        return pauses or not isinstance(first_obstacle(*guards), Pass)


def change_of(
    resource: QueueWorker, workers: Workers, revisions: tuple[RevisionFacts, ...], facts: Facts, now: datetime
) -> Change:
    """`workers` are fresh, and `revisions` those of them that are ours."""
    metadata, spec = resource.metadata, resource.spec
    wanted = revision_of(metadata.name, spec)
    identity = broker_identity(spec.broker)
    broker = fresh_broker(facts, identity, now)
    reachable = broker_guard(broker)
    queue = fresh_queue(facts, identity, now)
    if not isinstance(reachable, Pass):
        queue = Unknown("the broker is not proven reachable", broker.observed_at)
    fenced = tuple(queue.fences) if isinstance(queue, QueueFacts) else ()
    revisions = with_restarts(revisions, queue, resource.status)
    away = elsewhere(spec.broker, revisions, workers.kept)
    provable = unproven(spec, revisions, away)
    if isinstance(provable, Wait):
        queue = Unknown(provable.message.removesuffix("."), now)
    previous = remembered(spec, wanted, resource.status, revisions, fenced)
    place = place_of(resource, wanted, previous, now)
    there = any(previous.stable and r.name == previous.stable.revision for r in revisions)
    kept = _usable(spec, workers)
    versions = {one.revision.name: one.revision.version for one in kept}
    running = {r.name: r.version for r in revisions if r.desired}
    pending = pending_of(resource, wanted, previous, place, there, versions, running)
    heard = hear(spec.request, pending, previous)
    if heard.rolled_back is not None:
        place = None
    if place is not None:
        # Other steps begin anew, unless the stable revision is gone already: it has taken over then.
        if place.restarted and heard.promoted == previous.promoted and there:
            heard = replace(heard, promoted=None)
        if heard.promoted:
            place = place.at_the_end()
        elif heard.skipped:
            place = place.skipped(now)
            if place.done:
                heard = replace(heard, promoted=wanted.name)
    situation = Situation(
        target=wanted,
        desired=spec.replicas,
        previous=previous,
        revisions=revisions,
        creatable=first_obstacle(
            _forbidden(spec, wanted, previous, revisions), creation_guard(wanted, workers)
        ),
        accepted=refusal_guard(wanted, workers),
        reachable=reachable,
        queue=queue,
        mark=Mark.of(metadata.namespace, metadata.name),
        quiet=timedelta(seconds=spec.quiet_seconds),
        paused=spec.paused,
        beside=facts.shared,
        elsewhere=away,
        kept=tuple(workers.kept or ()),
        old_work=older_work(broker, revisions, timedelta(seconds=spec.quiet_seconds)),
    )
    gates = kept_gates(previous, wanted.name, is_forward(wanted, previous), heard.aborted)
    seen = _Seen(
        resource,
        workers,
        wanted,
        situation,
        heard,
        broker,
        place,
        now,
        kept,
        facts.samples,
        facts.audit,
        gates,
    )
    change = _course(seen)
    if isinstance(provable, Wait):
        # Before any other reason for which nothing moves: only a person ends it.
        first = first_obstacle(situation.creatable, situation.accepted, reachable, provable)
        change = replace(change, blocker=first)
    return change


def _course(seen: _Seen) -> Change:
    """Which way it goes."""
    spec, heard, wanted = seen.resource.spec, seen.heard, seen.wanted
    previous, revisions, place = seen.situation.previous, seen.situation.revisions, seen.place
    stable = previous.stable
    if heard.rolled_back and stable and stable.revision != heard.rolled_back.revision:
        return _back(seen, heard.rolled_back.revision)
    if stable is None or stable.revision == wanted.name:
        return _rolled(seen)
    why = kept_back(spec, wanted, heard, previous, revisions)
    if isinstance(why, Wait):
        return _kept(seen, why)
    if place is not None and not place.done:
        return _canary(seen)
    return _rolled(seen)


@dataclass(frozen=True, slots=True)
class _Seen:
    resource: QueueWorker
    workers: Workers
    wanted: Revision
    situation: Situation
    heard: Heard
    broker: BrokerCheck | Unknown
    place: Place | None
    now: datetime
    kept: tuple[Kept, ...]
    samples: Samples | Unknown | NotSampled
    audit: AuditFact
    gates: tuple[GateStatus, ...] = ()

    def change(
        self,
        target: str,
        decision: Decision,
        situation: Situation,
        blocker: Guard,
        heard: Heard | None = None,
        place: Place | None = None,
        arm: Arm | None = None,
        analysis: AnalysisStatus | None = None,
    ) -> Change:
        heard, previous = heard or self.heard, self.situation.previous
        return Change(
            target,
            decision,
            situation,
            blocker,
            heard,
            self.broker,
            previous,
            place,
            arm,
            analysis,
            self.gates,
        )


def _forbidden(
    spec: QueueWorkerSpec,
    wanted: Revision,
    previous: QueueWorkerStatus,
    revisions: Sequence[RevisionFacts],
) -> Guard:
    """What keeps the first revision of all from being made."""
    if previous.stable is not None:
        return Pass()
    return first_obstacle(revoked(spec, wanted, previous), held(spec, wanted, previous, revisions))


def _rolled(seen: _Seen) -> Change:
    situation = seen.situation
    decision = rolling(situation, seen.now)
    # A stable revision needs no broker to be kept, so an unseen one blocks nothing there.
    unseen = isinstance(situation.guard, Unknown) and situation.is_back
    blocker = first_obstacle(Pass() if unseen else situation.guard, decision.guard)
    if decision.stage is Stage.IDLE:
        blocker = first_obstacle(blocker, revoked(seen.resource.spec, seen.wanted, situation.previous))
    return seen.change(seen.wanted.name, decision, situation, blocker, place=seen.place)


def _usable(spec: QueueWorkerSpec, workers: Workers) -> tuple[Kept, ...]:
    """Kept revisions of the broker that the spec names, the last first."""
    identity = broker_identity(spec.broker)
    kept = sorted(workers.kept or (), key=lambda one: -one.number)
    return tuple(one for one in kept if broker_identity(one.revision.broker) == identity)


def _back(seen: _Seen, revision: str) -> Change:
    """A request asks for a revision that served once."""
    target = find(seen.kept, revision)
    if target is None:
        text = f"{revision} is not kept any more: change the spec, or request Retry."
        return _kept(seen, Fail(ConditionReason.REVISION_NOT_KEPT, text))
    if target.revision.version in seen.resource.spec.revoked_versions:
        text = (
            f"{target.revision.version} is in spec.revokedVersions, so nobody goes back to {revision}: "
            "request Rollback to another revision, or Retry, or take it off the list."
        )
        return _kept(seen, Wait(ConditionReason.VERSION_REVOKED, text))
    situation = replace(
        seen.situation,
        target=target.revision,
        creatable=creation_guard(target.revision, seen.workers),
        accepted=refusal_guard(target.revision, seen.workers),
        back=True,
    )
    decision = rolling(situation, seen.now)
    blocker = first_obstacle(situation.guard, decision.guard)
    if decision.stage is Stage.IDLE:
        blocker = first_obstacle(blocker, rolled_back(revision, seen.wanted.name))
    return seen.change(revision, decision, situation, blocker)


def _kept(seen: _Seen, why: Wait | Fail) -> Change:
    """The stable revision stays or comes back, and `why` is said when nothing else is left."""
    previous, spec = seen.situation.previous, seen.resource.spec
    assert previous.stable is not None
    child = next((r for r in seen.situation.revisions if r.name == previous.stable.revision), None)
    known = find(seen.kept, previous.stable.revision)
    target = known.revision if known else as_target(previous.stable, spec, child)
    creatable = creation_guard(target, seen.workers) if known else kept_guard(previous.stable, child, why)
    situation = replace(
        seen.situation,
        target=target,
        creatable=creatable,
        accepted=refusal_guard(target, seen.workers),
    )
    decision = rolling(situation, seen.now)
    unseen = isinstance(situation.guard, Unknown)
    blocker = first_obstacle(Pass() if unseen else situation.guard, decision.guard)
    if decision.stage is Stage.IDLE:
        blocker = first_obstacle(blocker, serves_revoked(spec, previous.stable, why))
    return seen.change(target.name, decision, situation, blocker)


def _canary(seen: _Seen) -> Change:
    spec, heard = seen.resource.spec, seen.heard
    assert seen.place is not None
    canary = Canary(
        spec.steps,
        seen.place,
        _arms(seen),
        spec.effective_prefetch,
        terms_of(seen.resource.metadata.name, spec),
        None if heard.again else begun(seen.situation.previous.rollout, seen.wanted.name, seen.place),
        seen.samples,
        seen.audit,
    )
    at = walked(seen.situation, canary, seen.now)
    if at.judged is not None:
        index, measured, found = at.judged
        shown = replace(seen.place, index=index)
        told = evidence(found, seen.wanted.name, measured.revision, shown, seen.now)
        seen = replace(seen, gates=(*seen.gates, *told)[-KEPT:])
    if at.aborts and at.analysis is not None:
        heard = replace(heard, aborted=seen.wanted.name)
        return _kept(replace(seen, heard=heard), aborted(seen.wanted.name, seen.gates))
    if at.place.done:
        heard = replace(heard, promoted=seen.wanted.name)
        change = _rolled(replace(seen, heard=heard, place=at.place))
        # Written down before anything is done: whoever dies in between would see a stable revision that has
        # too few workers for the last step, and give them back first.
        return replace(change, decision=replace(change.decision, actions=(), left=seen.situation.revisions))
    decision, arm = beside_the_stable(seen.situation, canary, at, seen.now)
    return seen.change(
        seen.wanted.name,
        decision,
        arm.seen,
        decision.held,
        heard=heard,
        place=at.place,
        arm=arm,
        analysis=at.analysis,
    )


def _arms(seen: _Seen) -> Mapping[int, tuple[Revision, Guard, Guard]]:
    """Each with whether it can be made. What was refused of the promoted one is refused of all: only their
    prefetch differs."""
    spec, workers = seen.resource.spec, seen.workers
    refused = refusal_guard(seen.wanted, workers)
    return {
        arm.prefetch: (
            arm,
            creation_guard(arm, workers),
            first_obstacle(refused, refusal_guard(arm, workers)),
        )
        for arm in (seen.wanted, *arms_of(seen.resource.metadata.name, spec))
    }


def scaled(generation: int, change: Change) -> list[EmitEvent]:
    """The wanted revision changes its number. (What others give up is part of the change of revision.)"""
    situation = change.situation
    current, name = situation.current, situation.target.name
    steps = [a for a in change.decision.actions if isinstance(a, ScaleRevision) and a.revision == name]
    if not steps or current is None:
        return []
    number = steps[-1].replicas
    text = f"{name} goes from {current.desired} to {number} workers."
    key = f"scaled:{generation}:{name}:{current.desired}:{number}"
    return [EmitEvent(EventReason.SCALED, "Normal", text, key)]
