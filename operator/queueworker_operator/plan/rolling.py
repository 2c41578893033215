"""The strategy Rolling: surge the new revision, drain the others in step, promote when nothing else is left.

The new revision is created beside the old one at its full number; as its workers become available, as many of
the old are told to finish and stop; when the last old one is gone, the new revision is the stable one and the
old Deployment is deleted. Going back needs nothing kept: the same spec leads to the same names. Back, to a
Legacy revision and to no worker at all it goes by the guarded way (`way_out`).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import datetime

from queueworker_operator.api.reasons import CANARY_STAGES, Stage
from queueworker_operator.api.types import Protocol, StableStatus
from queueworker_operator.plan.actions import (
    Action,
    ApplyRevision,
    DeleteRevision,
    RetireRevision,
    ReturnStaged,
    ScaleRevision,
    UnfenceRevision,
)
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.guards import Guard, Pass, first_obstacle
from queueworker_operator.plan.situation import Situation
from queueworker_operator.plan.split import hold, is_empty, is_out_of_reach, serving
from queueworker_operator.plan.way_out import WayOut, way_out


@dataclass(frozen=True, slots=True)
class Decision:
    """What a strategy wants done, and where that leaves the rollout."""

    actions: tuple[Action, ...]
    stage: Stage
    stable: StableStatus | None
    #: The revisions that are there after the actions.
    left: tuple[RevisionFacts, ...]
    #: Where those stand that leave by the guarded way.
    out: WayOut | None
    #: What keeps the last capable workers from being retired in a change forward.
    held: Guard

    @property
    def guard(self) -> Guard:
        return first_obstacle(self.held, self.out.guard if self.out else Pass())


def rolling(situation: Situation, now: datetime) -> Decision:
    """The next step of a Rolling change, of scaling, or of nothing."""
    target, current, others = situation.target, situation.current, situation.others
    departure = situation.departure if situation.goes_back else None
    out = way_out(departure, situation.queue, now) if departure else None
    leaving = frozenset(r.name for r in departure.leaving) if departure else frozenset()
    shares, held = _shares(situation, out, leaving)
    downs, ups = _scale_others(others, shares)
    if current is None:
        if isinstance(situation.creatable, Pass) and (
            situation.is_back
            or isinstance(first_obstacle(situation.broker, situation.pause, situation.before_first), Pass)
        ):
            ups.append(ApplyRevision(target, situation.desired))
    elif current.desired != situation.desired and _may_scale_target(situation, out, leaving):
        change = ScaleRevision(target.name, target.deployment, situation.desired)
        (downs if situation.desired < current.desired else ups).append(change)

    has_left = {r.name for r in others if _has_left(r, out, leaving)}
    complete = _is_complete(situation, out, has_left)
    stable = target.as_stable() if complete else situation.previous.stable
    kept = stable.revision if stable else None
    stays = {kept, *leaving} if out and not out.done else {kept}
    gone = [r for r in others if r.name in has_left and r.name not in stays and not shares[r.name]]
    left = tuple(r for r in situation.revisions if r not in gone)
    deletions = [DeleteRevision(r.name, r.deployment) for r in gone]
    # What is taken away does not serve or is not needed, so it goes first: never above twice what is wanted.
    actions = (*_on_the_broker(situation, out), *downs, *ups, *deletions)
    stage = _stage(situation, out, leaving, kept, left)
    return Decision(actions, stage, stable, left, out, first_obstacle(situation.stopped, held))


def _on_the_broker(situation: Situation, out: WayOut | None) -> tuple[Action, ...]:
    actions: list[Action] = []
    if situation.own_fence_on_target:
        actions.append(UnfenceRevision(situation.target.name))
    if out:
        actions += out.actions
    elif situation.strays:
        # A worker that stood still between a receive and its wait can bring one payload here much later.
        actions.append(ReturnStaged())
    return tuple(actions)


def _may_scale_target(situation: Situation, out: WayOut | None, leaving: frozenset[str]) -> bool:
    """To no worker at all only by the guarded way."""
    if out is not None and situation.target.name in leaving:
        return out.done
    return situation.moves


def _has_left(r: RevisionFacts, out: WayOut | None, leaving: frozenset[str]) -> bool:
    """Nothing of it serves any more. A pod on a node that the cluster lost stays on its list until the node
    is back: fenced, and proven to hold nothing, it keeps nobody waiting."""
    proven = out is not None and out.done and r.name in leaving
    return is_empty(r) or (proven and is_out_of_reach(r))


def _is_complete(situation: Situation, out: WayOut | None, has_left: Set[str]) -> bool:
    """The target alone serves, at the full number, and the broker is proven: it becomes the stable one."""
    current = situation.current
    return (
        current is not None
        and situation.proven
        and current.desired == situation.desired <= serving(current)
        and all(r.name in has_left for r in situation.others)
        and (out is None or out.done)
    )


def _stage(
    situation: Situation,
    out: WayOut | None,
    leaving: frozenset[str],
    stable: str | None,
    left: Iterable[RevisionFacts],
) -> Stage:
    name = situation.target.name
    alone = all(r.name == name for r in left)
    if stable == name and alone and name not in leaving and (out is None or out.done):
        return Stage.IDLE
    if out is not None and (situation.current is not None or situation.is_back):
        # Where only the target is left, its own workers are what is waited for.
        return Stage.PROMOTING if out.done and alone and not leaving else out.stage
    if stable == name:
        return Stage.PROMOTING
    if situation.current is not None and situation.moves:
        return Stage.PROMOTING
    before = situation.previous.rollout
    stays = situation.current is not None or not isinstance(situation.pause, Pass)
    if stays and before is not None and before.target == name and before.stage in CANARY_STAGES:
        # The steps are over, and what follows may not begin: the canary goes on as it is.
        return before.stage
    others = first_obstacle(situation.creatable, situation.accepted, situation.broker, situation.pause)
    return situation.stage_before(others)


def _shares(
    situation: Situation, out: WayOut | None, leaving: frozenset[str]
) -> tuple[dict[str, int], Guard]:
    """What the others hold, and what holds the last of them back. Without proof, what the target took over
    does not count, and nothing grows unless workers are missing."""
    current, others, stable = situation.current, situation.others, situation.previous.stable
    counts = (situation.is_back or situation.proven) and isinstance(situation.receives, Pass)
    taken_over = serving(current) if current and counts else 0
    shares = hold(situation.desired, taken_over, others, stable.revision if stable else None)
    if not counts and sum(r.desired for r in situation.revisions) >= situation.desired:
        shares = {r.name: min(r.desired, shares[r.name]) for r in others}
    old = [r for r in others if r.protocol is Protocol.LEGACY and r.desired > shares[r.name]]
    held: Guard = Pass()
    if old and not isinstance(situation.old_work, Pass):
        # Only they take it: all of them stay.
        shares |= {r.name: r.desired for r in old}
        held = situation.old_work
    if out is not None:
        for r in others:
            if r.name in leaving:
                shares[r.name] = _share_on_the_way_out(r, shares[r.name], situation, out)
    # Forward: the last workers that can recover what is reserved stay until others are on the list.
    drained = [r for r in others if r.name not in leaving and r.protocol is Protocol.RESERVATION]
    going = [r for r in drained if r.desired and not shares[r.name]]
    guard = situation.last_capable_guard(going)
    if not isinstance(guard, Pass):
        shares |= {r.name: 1 for r in going}
    return shares, first_obstacle(held, guard)


def _share_on_the_way_out(r: RevisionFacts, share: int, situation: Situation, out: WayOut) -> int:
    if out.done:
        return 0
    if not isinstance(situation.readable, Pass):
        return r.desired
    if situation.is_fenced(r.name):
        share = min(share, r.desired)
    return max(share, min(1, r.desired))


def _scale_others(
    others: Iterable[RevisionFacts], shares: dict[str, int]
) -> tuple[list[Action], list[Action]]:
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
