"""The steps of a canary, walked: a pure function over steps, a place among them, and what is proven.

The walker knows two kinds of steps. One that sets something is over when what it sets is in force; every
other is over when its verdict says so. A new verb that measures or waits is one more case of the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from queueworker_operator.api.reasons import ConditionReason
from queueworker_operator.api.rollout import PauseStep, Step
from queueworker_operator.api.types import RolloutStatus
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.guards import Guard, Pass, Wait


@dataclass(frozen=True, slots=True)
class Split:
    """What runs beside the stable revision: that many workers with that prefetch."""

    workers: int
    prefetch: int


@dataclass(frozen=True, slots=True)
class Place:
    """How far a canary is. Resume data: it says which step is next, never that one is proven."""

    #: The step that is not finished, counted from 0; the number of steps when all are.
    index: int
    number: int
    since: datetime
    attempt: int
    #: Which steps these are.
    steps_hash: str
    #: The steps were changed, so that this place is the first one again.
    restarted: bool = False

    @property
    def done(self) -> bool:
        return self.index >= self.number

    @property
    def shown(self) -> str:
        """As the status has it, such as 5/12."""
        return f"{min(self.index + 1, self.number)}/{self.number}"

    def at_the_end(self) -> Place:
        return replace(self, index=self.number)

    def skipped(self, now: datetime) -> Place:
        return replace(self, index=self.index + 1, since=now)


def resume(
    before: RolloutStatus | None,
    target: str,
    number: int,
    steps_hash: str,
    now: datetime,
    *,
    aborted: bool = False,
) -> Place:
    """The place that a status names. The first one for another target, for other steps, and where the status
    says nothing that can be read. `aborted`: what it names is where this very target was aborted."""
    tried = before.attempt if before is not None and aborted else None
    first = Place(0, number, now, (tried or 0) + 1, steps_hash)
    if before is None or before.target != target or before.steps_hash is None:
        return first
    attempt = before.attempt or 1
    if before.steps_hash != steps_hash:
        return replace(first, attempt=attempt + 1, restarted=True)
    index = _index(before.step, number)
    if index is None or before.step_started_at is None:
        return replace(first, attempt=attempt)
    return Place(index, number, before.step_started_at, attempt, steps_hash)


def _index(step: str | None, number: int) -> int | None:
    shown, _, of = (step or "").partition("/")
    if not shown.isdigit() or of != str(number) or not 1 <= int(shown) <= number:
        return None
    return int(shown) - 1


def split_at(steps: Sequence[Step], index: int, desired: int, promoted_prefetch: int) -> Split:
    """What is to run at a step, with all that is set by it and by those that follow it at once. Before a
    prefetch is set, it is the one to promote."""
    end = _after_those_that_set(steps, index)
    scales = [s.set_canary_scale for s in steps[:end] if s.set_canary_scale is not None]
    settings = [s.set_prefetch for s in steps[:end] if s.set_prefetch is not None]
    workers = scales[-1].workers(desired) if scales else 1
    return Split(workers, settings[-1] if settings else promoted_prefetch)


def _after_those_that_set(steps: Sequence[Step], index: int) -> int:
    while index < len(steps) and steps[index].sets:
        index += 1
    return index


def walk(
    steps: Sequence[Step],
    place: Place,
    in_force: Callable[[int], Guard],
    verdict: Callable[[int, datetime], Guard],
    now: datetime,
) -> tuple[Place, Guard]:
    """As far as what is proven leads, and what holds it there.

    `in_force` says of a step whether what is set there runs and serves; nothing is over without that.
    `verdict` says whether a step that sets nothing is over that began then. Both get the step's index. Only
    Pass leads on.
    """
    while not place.done:
        guard = in_force(place.index)
        if not isinstance(guard, Pass):
            return place, guard
        step = steps[place.index]
        if step.sets:
            after = _after_those_that_set(steps, place.index)
        else:
            guard = verdict(place.index, place.since)
            if not isinstance(guard, Pass):
                return place, guard
            after = place.index + 1
        place = replace(place, index=after, since=now)
    return place, Pass()


def whole_since(since: datetime, arm: RevisionFacts | None) -> datetime:
    """From when a pause counts that began then: the canary has to stand for the whole of it, each worker of
    it from before its beginning and without a restart."""
    times = [since]
    if arm is not None:
        times += [arm.started_at] if arm.started_at else []
        times += [arm.restarts.last_at] if arm.restarts else []
    return max(times)


def fell_since(since: datetime, arm: RevisionFacts | None) -> bool:
    """Whether a worker of it was restarted since then."""
    return arm is not None and arm.restarts is not None and arm.restarts.last_at >= since


def told_restarts(arm: RevisionFacts | None) -> str:
    """A sentence on the restarts of its workers, behind a space; empty where there was none."""
    restarts = arm.restarts if arm is not None else None
    return f" Its workers {restarts.told}" if restarts is not None else ""


def pause_is_over(pause: PauseStep, since: datetime, arm: RevisionFacts | None, now: datetime) -> Guard:
    """Whether a pause that began then is over; `arm` are the workers of the canary."""
    seconds, told = pause.duration_seconds, told_restarts(arm)
    if seconds is None:
        text = "This step is a pause without an end: request SkipStep or Promote to go on, or Abort."
        return Wait(ConditionReason.PAUSE_STEP, f"{text}{told}")
    if now - whole_since(since, arm) >= timedelta(seconds=seconds):
        return Pass()
    counted = " without a restart of the canary" if told else ""
    return Wait(ConditionReason.TIMED_PAUSE, f"This step is a pause of {seconds} s{counted}.{told}")
