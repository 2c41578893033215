"""The strategy Canary: some workers of the new version beside the stable revision, step by step.

Each prefetch that the steps set is an arm, a revision of its own. The next arm is created beside the one
before; when it serves, the one before leaves fenced and drained. The stable revision gives up as many workers
as the canary has, and keeps one at least: it is what the canary is compared with, and where an abort leads.
When the steps are done, the promoted revision takes over as in a Rolling change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from queueworker_operator.api.gates import AnalysisStatus
from queueworker_operator.api.reasons import CANARY_STAGES, ConditionReason, Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.rollout import Step
from queueworker_operator.api.types import Protocol
from queueworker_operator.plan.actions import (
    Action,
    ApplyRevision,
    DeleteRevision,
    KillWorker,
    RetireRevision,
    ReturnStaged,
    ScaleRevision,
    StartAudit,
    UnfenceRevision,
)
from queueworker_operator.plan.analysis import Analysed, Subject, Terms, analysed
from queueworker_operator.plan.audit import AuditFact
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.gates import Side
from queueworker_operator.plan.guards import Fail, Guard, Pass, Wait, first_obstacle
from queueworker_operator.plan.queue_facts import QueueFacts, Unknown
from queueworker_operator.plan.rolling import Decision
from queueworker_operator.plan.samples import NotSampled, Samples
from queueworker_operator.plan.situation import Situation
from queueworker_operator.plan.split import is_empty, is_out_of_reach, serving, young
from queueworker_operator.plan.steps import Place, Split, pause_is_over, split_at, walk
from queueworker_operator.plan.way_out import Departure, WayOut, way_out


@dataclass(frozen=True, slots=True)
class Arm:
    """The workers that a step asks for, and the world seen from there."""

    revision: Revision
    split: Split
    #: `target` is the arm: so that what is said of a target is said of it.
    seen: Situation
    #: Whether its first worker may be started: template, broker, pause.
    startable: Guard

    @property
    def is_stable(self) -> bool:
        """The stable revision itself has this version and prefetch: nothing runs beside it."""
        return self.seen.is_back

    @property
    def former(self) -> tuple[RevisionFacts, ...]:
        """Arms of other steps that are still there."""
        stable = self.seen.previous.stable
        stays = {self.revision.name, stable.revision if stable else None}
        return tuple(r for r in self.seen.revisions if r.name not in stays)

    @property
    def serving(self) -> int:
        """Workers that take work: none of them while the arm is fenced or nobody could look."""
        current = self.seen.current
        return serving(current) if current and isinstance(self.seen.receives, Pass) else 0

    @property
    def canary(self) -> RevisionFacts | None:
        """Its workers; what the stable revision does is not held against a canary."""
        return None if self.is_stable else self.seen.current

    @property
    def known(self) -> bool:
        """The broker answers, and the queue could be read."""
        return isinstance(first_obstacle(self.seen.reachable, self.seen.readable), Pass)

    @property
    def taken_over(self) -> int:
        """What the stable revision does not have to serve."""
        if self.is_stable:
            return 0
        before = sum(serving(r) for r in self.former if not self.seen.is_fenced(r.name))
        return min(self.split.workers, self.serving + before)

    def stable_share(self, taken_over: int) -> int:
        return max(1, self.seen.desired - taken_over)


@dataclass(frozen=True, slots=True)
class Canary:
    """What a canary is made of, besides the situation."""

    steps: Sequence[Step]
    place: Place
    #: By prefetch: each arm, whether trying to create it makes sense, and what came of the last try.
    arms: Mapping[int, tuple[Revision, Guard, Guard]]
    promoted_prefetch: int
    #: For each step that is an analysis, by index.
    terms: Mapping[int, Terms]
    #: The analysis that was begun at this place.
    analysis: AnalysisStatus | None
    samples: Samples | Unknown | NotSampled
    audit: AuditFact


@dataclass(frozen=True, slots=True)
class Walked:
    """How far the steps are with what is proven now, and what holds them."""

    place: Place
    held: Guard
    #: The analysis at that place.
    analysis: AnalysisStatus | None
    #: What gates found in this pass: the step, the arm, and where its analysis stands.
    judged: tuple[int, Arm, Analysed] | None = None
    #: The analysis at that place wants a worker of the canary killed; or the change not to go on.
    kills: bool = False
    aborts: bool = False
    #: Who is to count totals for it.
    starts: StartAudit | None = None


def walked(situation: Situation, canary: Canary, now: datetime) -> Walked:
    """Walk the steps as far as they are proven to be over."""
    forward = first_obstacle(
        situation.reachable, situation.readable, _paused(situation), _priority(situation)
    )
    if not isinstance(forward, Pass):
        return Walked(canary.place, forward, canary.analysis)
    looked: dict[int, tuple[Arm, Analysed]] = {}

    def in_force(index: int) -> Guard:
        return _in_force(_arm_at(situation, canary, index))

    def verdict(index: int, since: datetime) -> Guard:
        pause, arm = canary.steps[index].pause, _arm_at(situation, canary, index)
        if pause is not None:
            return pause_is_over(pause, since, arm.canary, now)
        before = canary.analysis if index == canary.place.index else None
        assert isinstance(situation.queue, QueueFacts), "nothing is judged unseen"
        found = analysed(
            canary.terms[index], _subject(arm), situation.queue, canary.samples, canary.audit, before, now
        )
        looked[index] = arm, found
        return found.guard

    place = canary.place
    if _fell(situation, canary) and isinstance(in_force(place.index), Pass):
        place = replace(place, since=now)
    place, held = walk(canary.steps, place, in_force, verdict, now)
    judged = next(((index, arm, one) for index, (arm, one) in looked.items() if one.found), None)
    if place.index not in looked:
        stays = canary.analysis if place.index == canary.place.index else None
        return Walked(place, held, stays, judged)
    _, last = looked[place.index]
    return Walked(place, held, last.state, judged, last.kills, last.aborts, last.starts)


def _fell(situation: Situation, canary: Canary) -> bool:
    """The canary did not stand at the last look, in the middle of a pause."""
    before, place = situation.previous.rollout, canary.place
    if before is None or before.step != place.shown or canary.steps[place.index].pause is None:
        return False
    return before.stage is not Stage.PAUSED


def _subject(arm: Arm) -> Subject:
    stable, own = _stable(arm), arm.revision
    assert stable is not None, "nothing is in force beside nothing"
    workers = stable.desired if arm.is_stable else arm.split.workers
    return Subject(
        Side(own.name, workers),
        Side(stable.name, stable.desired),
        stable.protocol,
        bound=own.prefetch + own.coroutines,
        may_kill=not arm.is_stable,
        arm=arm.canary,
    )


def beside_the_stable(
    situation: Situation, canary: Canary, at: Walked, now: datetime
) -> tuple[Decision, Arm]:
    """What is done at a place that is not the end."""
    place, held = at.place, at.held
    arm = _arm_at(situation, canary, place.index)
    out = _way_out(arm, now)
    actions: list[Action] = _on_the_broker(arm, out)
    downs, ups, priority = _scaled(arm, out)
    gone = [r for r in arm.former if is_empty(r) and (out is None or out.done)]
    if out is not None and out.done:
        # Fenced, and proven to hold nothing.
        gone += [r for r in arm.former if is_out_of_reach(r)]
    actions += [*downs, *ups, *(DeleteRevision(r.name, r.deployment) for r in gone)]
    if at.kills:
        actions.append(KillWorker(arm.revision.name, arm.revision.deployment))
    if at.starts is not None:
        actions.append(at.starts)
    left = tuple(r for r in situation.revisions if r not in gone)
    accepted = arm.seen.accepted if arm.seen.current is None else Pass()
    moves = first_obstacle(
        arm.startable, accepted, arm.seen.stopped, priority, out.guard if out else Pass(), held
    )
    stage = _stage(arm, canary.steps[place.index])
    return Decision(tuple(actions), stage, situation.previous.stable, left, None, moves), arm


def _stage(arm: Arm, step: Step) -> Stage:
    before = arm.seen.previous.rollout
    if not arm.known and before is not None and before.stage in CANARY_STAGES:
        return before.stage
    started = arm.is_stable or arm.seen.current is not None or arm.former
    if not started and not isinstance(arm.startable, Pass):
        return arm.seen.stage_before(_startable(arm.seen))
    if step.sets or not isinstance(_in_force(arm), Pass):
        return Stage.ARM_CHANGING if arm.former else Stage.CANARY_SCALING
    return Stage.PAUSED if step.pause is not None else Stage.ANALYZING


def _priority(situation: Situation) -> Guard:
    """Beside older workers nothing goes forward while work is there that only they take."""
    return situation.old_work if situation.older else Pass()


def _arm_at(situation: Situation, canary: Canary, index: int) -> Arm:
    split = split_at(canary.steps, index, situation.desired, canary.promoted_prefetch)
    revision, creatable, accepted = canary.arms[split.prefetch]
    seen = replace(situation, target=revision, creatable=creatable, accepted=accepted)
    return Arm(revision, split, seen, first_obstacle(_startable(seen), seen.before_first))


def _startable(seen: Situation) -> Guard:
    return first_obstacle(seen.creatable, seen.reachable, seen.readable, _paused(seen))


def _paused(situation: Situation) -> Pass | Wait:
    if not situation.paused:
        return Pass()
    return Wait(
        ConditionReason.PAUSED,
        f"The change to {situation.target.name} is paused: set spec.paused to false to go on, or undo it.",
    )


def _stable(arm: Arm) -> RevisionFacts | None:
    stable = arm.seen.previous.stable
    return next((r for r in arm.seen.revisions if stable and r.name == stable.revision), None)


def _in_force(arm: Arm) -> Guard:
    """Whether what a step sets runs as it should: the arm alone, at its number, beside its share of the
    stable revision."""
    stable, current = _stable(arm), arm.seen.current
    name, workers = arm.revision.name, arm.split.workers
    if stable is None:
        gone = arm.seen.previous.stable.deployment if arm.seen.previous.stable else "the stable revision"
        return Fail(
            ConditionReason.STABLE_MISSING,
            f"{gone} is gone, and its template is not known any more: put the spec back to it, or request "
            "Promote.",
        )
    if not arm.is_stable and (current is None or current.desired != workers or arm.serving < workers):
        more = young(current) if current else ""
        text = f"{arm.serving} of {workers} workers of {name} are available{more}, beside {stable.name}."
        return Wait(ConditionReason.ROLLOUT_IN_PROGRESS, text)
    if arm.former:
        names = ", ".join(r.name for r in arm.former)
        return Wait(ConditionReason.ROLLOUT_IN_PROGRESS, f"{name} serves; {names} leaves.")
    share = arm.stable_share(0 if arm.is_stable else workers)
    if stable.desired != share or (arm.is_stable and serving(stable) < share):
        text = f"{stable.name} goes from {stable.desired} to {share} workers, beside {name}."
        return Wait(ConditionReason.ROLLOUT_IN_PROGRESS, text)
    return Pass()


def _way_out(arm: Arm, now: datetime) -> WayOut | None:
    """Arms of other steps leave fenced when this one serves."""
    if not arm.former:
        return None
    before = arm.seen.previous.rollout
    receiver: Guard = Pass()
    if not arm.is_stable and arm.serving < arm.split.workers:
        receiver = Wait(
            ConditionReason.ROLLOUT_IN_PROGRESS,
            f"{arm.serving} of {arm.split.workers} workers of {arm.revision.name} are available; the canary "
            "before it serves until then.",
        )
    departure = Departure(
        leaving=tuple(r for r in arm.former if not is_empty(r)),
        target=arm.revision.name,
        wanted=arm.split.workers,
        target_protocol=Protocol.RESERVATION,
        receiver=receiver,
        mark=arm.seen.mark,
        quiet=arm.seen.quiet,
        before=before.stage if before else None,
        silent=arm.seen.silent,
    )
    return way_out(departure, arm.seen.queue, now) if departure.leaving else None


def _on_the_broker(arm: Arm, out: WayOut | None) -> list[Action]:
    actions: list[Action] = []
    stable = arm.seen.previous.stable
    for name in dict.fromkeys((arm.revision.name, stable.revision if stable else arm.revision.name)):
        if arm.seen.has_own_fence(name):
            actions.append(UnfenceRevision(name))
    if out:
        actions += out.actions
    elif (serves := _stable(arm)) and arm.seen.staged_beside(serves.protocol):
        actions.append(ReturnStaged())
    return actions


def _scaled(arm: Arm, out: WayOut | None) -> tuple[list[Action], list[Action], Guard]:
    """What shrinks, what grows, and what keeps the stable revision from shrinking."""
    downs: list[Action] = []
    ups: list[Action] = []
    stable, current, workers = _stable(arm), arm.seen.current, arm.split.workers

    def to(r: RevisionFacts, number: int) -> None:
        if number == 0 < r.desired:
            downs.append(RetireRevision(r.name, r.deployment))
        elif number != r.desired:
            change = ScaleRevision(r.name, r.deployment, number)
            (downs if number < r.desired else ups).append(change)

    def smaller(r: RevisionFacts) -> int:
        """What it gives up has to be served already."""
        needed = arm.seen.desired - (serving(stable) if stable else 0)
        return max(workers, min(r.desired, needed))

    larger = [r for r in arm.former if r.desired > workers and not arm.seen.is_fenced(r.name)]
    guard: Guard = Pass()
    if stable is not None:
        share = arm.stable_share(arm.taken_over)
        if not arm.known:
            # Nothing shrinks unseen, and nothing grows unless workers are missing.
            missing = arm.seen.desired - sum(r.desired for r in arm.seen.revisions)
            share = stable.desired + max(0, missing)
        elif stable.protocol is Protocol.LEGACY and share < stable.desired:
            guard = arm.seen.old_work
            share = share if isinstance(guard, Pass) else stable.desired
        to(stable, share)
    if not arm.is_stable:
        if current is None:
            # Never more beside the stable revision than the step asks for, and as many that are to leave.
            if stable is not None and not larger and isinstance(arm.startable, Pass):
                ups.append(ApplyRevision(arm.revision, workers))
        elif arm.known and (current.desired or isinstance(arm.startable, Pass)):
            to(current, smaller(current))
    for r in arm.former:
        if out is None or out.done:
            to(r, 0)
        elif r in larger and arm.known:
            to(r, smaller(r))
    return downs, ups, guard
