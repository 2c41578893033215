"""The strategy Rolling: surge the new revision, drain the others in step, promote when nothing else is left.

The new revision is created beside the old one at its full number; as its workers become available, as many of
the old are told to finish and stop; when the last old one is gone, the new revision is the stable one and the
old Deployment is deleted. Going back needs nothing kept: the same spec leads to the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import QueueWorkerStatus, StableStatus
from queueworker_operator.plan.actions import (
    Action,
    ApplyRevision,
    DeleteRevision,
    RetireRevision,
    ScaleRevision,
)
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.guards import Fail, Guard, Pass, first_obstacle
from queueworker_operator.plan.split import hold, is_empty, serving


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a strategy decides from."""

    target: Revision
    #: Workers that are wanted.
    desired: int
    previous: QueueWorkerStatus
    #: Each revision that exists and is ours.
    revisions: tuple[RevisionFacts, ...]
    #: Whether trying to create the target makes sense, what came of the last try, and the broker.
    creatable: Pass | Fail
    accepted: Pass | Fail
    reachable: Guard

    @property
    def guard(self) -> Guard:
        """What stops a change from going on, or Pass."""
        return first_obstacle(self.creatable, self.accepted, self.reachable)

    @property
    def proven(self) -> bool:
        return isinstance(self.guard, Pass)

    @property
    def is_back(self) -> bool:
        """The target is the stable revision: no guard is needed to keep, restore or scale it."""
        stable = self.previous.stable
        return stable is not None and stable.revision == self.target.name

    @property
    def moves(self) -> bool:
        """The target may be scaled. Once begun, a new number still applies; only a proven guard begins."""
        rollout = self.previous.rollout
        begun = rollout and rollout.stage is Stage.PROMOTING and rollout.target == self.target.name
        return self.is_back or self.proven or bool(begun)

    @property
    def current(self) -> RevisionFacts | None:
        """The target, if it exists."""
        return next((r for r in self.revisions if r.name == self.target.name), None)

    @property
    def others(self) -> list[RevisionFacts]:
        """All but the target: the stable one first, then the newest. Who comes first is drained last."""
        stable = self.previous.stable.revision if self.previous.stable else None
        rest = [r for r in self.revisions if r.name != self.target.name]
        return sorted(rest, key=lambda r: (r.name != stable, -r.created, r.name))


@dataclass(frozen=True, slots=True)
class Decision:
    """What a strategy wants done, and where that leaves the rollout."""

    actions: tuple[Action, ...]
    stage: Stage
    stable: StableStatus | None
    #: The revisions that are there after the actions.
    left: tuple[RevisionFacts, ...]


def rolling(situation: Situation) -> Decision:
    """The next step of a Rolling change, of scaling, or of nothing."""
    target, current, others = situation.target, situation.current, situation.others
    shares = _shares(situation)
    downs, ups = _scale_others(others, shares)
    if current is None:
        if isinstance(situation.creatable, Pass) and (
            situation.is_back or isinstance(situation.reachable, Pass)
        ):
            ups.append(ApplyRevision(target, situation.desired))
    elif current.desired != situation.desired and situation.moves:
        change = ScaleRevision(target.name, target.deployment, situation.desired)
        (downs if situation.desired < current.desired else ups).append(change)

    stable = _stable(target) if _is_complete(situation) else situation.previous.stable
    kept = stable.revision if stable else None
    gone = [r for r in others if is_empty(r) and r.name != kept and not shares[r.name]]
    left = tuple(r for r in situation.revisions if r not in gone)
    deletions = [DeleteRevision(r.name, r.deployment) for r in gone]
    # What is taken away does not serve or is not needed, so it goes first: never above twice what is wanted.
    return Decision((*downs, *ups, *deletions), _stage(situation, kept, left), stable, left)


def _is_complete(situation: Situation) -> bool:
    """The target alone serves, at the full number, and the broker is proven: it becomes the stable one."""
    current = situation.current
    return (
        current is not None
        and situation.proven
        and current.desired == situation.desired <= serving(current)
        and all(map(is_empty, situation.others))
    )


def _stage(situation: Situation, stable: str | None, left: Iterable[RevisionFacts]) -> Stage:
    if stable == situation.target.name:
        alone = all(r.name == situation.target.name for r in left)
        return Stage.IDLE if alone else Stage.PROMOTING
    return Stage.PROMOTING if situation.current is not None and situation.moves else Stage.VALIDATING


def _shares(situation: Situation) -> dict[str, int]:
    """What the others hold. Without proof, what the target took over does not count, and nothing grows
    unless workers are missing."""
    current, others, stable = situation.current, situation.others, situation.previous.stable
    counts = situation.is_back or situation.proven
    taken_over = serving(current) if current and counts else 0
    shares = hold(situation.desired, taken_over, others, stable.revision if stable else None)
    if not counts and sum(r.desired for r in situation.revisions) >= situation.desired:
        return {r.name: min(r.desired, shares[r.name]) for r in others}
    return shares


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


def _stable(target: Revision) -> StableStatus:
    return StableStatus(
        revision=target.name, version=target.version, deployment=target.deployment, prefetch=target.prefetch
    )
