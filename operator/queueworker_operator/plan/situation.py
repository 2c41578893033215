"""Everything that a strategy decides from, and what follows from it at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from queueworker_operator.api.kept import Kept
from queueworker_operator.api.reasons import WAY_OUT, ConditionReason, Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import Protocol, QueueWorkerStatus
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.fences import Mark
from queueworker_operator.plan.guards import Guard, Pass, Wait, first_obstacle
from queueworker_operator.plan.queue_facts import EVERY_REVISION, QueueFacts, Unknown
from queueworker_operator.plan.sharing import shared_of, silent_of
from queueworker_operator.plan.split import is_empty, serving
from queueworker_operator.plan.way_out import Departure


@dataclass(frozen=True)
class Situation:
    """One resource at one moment."""

    target: Revision
    #: Workers that are wanted.
    desired: int
    previous: QueueWorkerStatus
    #: Each revision that exists and is ours.
    revisions: tuple[RevisionFacts, ...]
    #: Whether trying to create the target makes sense, what came of the last try, and the broker.
    creatable: Guard
    accepted: Guard
    reachable: Guard
    queue: QueueFacts | Unknown
    #: Of every fence that this resource sets.
    mark: Mark
    #: How long a registry must have been empty and still.
    quiet: timedelta
    #: Whether the work that only older workers take is gone.
    old_work: Guard
    paused: bool
    #: A request asks for the target, which served once.
    back: bool = False
    #: Revisions that another QueueWorker has workers of, on the same queue.
    beside: frozenset[str] = frozenset()
    #: Revisions that consume from another broker than the one that was read.
    elsewhere: frozenset[str] = frozenset()
    #: What served once and can be gone back to.
    kept: tuple[Kept, ...] = ()

    @property
    def guard(self) -> Guard:
        """What stops a change from going on, or Pass."""
        return first_obstacle(self.creatable, self.accepted, self.broker, self.pause, self.before_first)

    @property
    def pause(self) -> Pass | Wait:
        """Stops what goes forward, never what goes back."""
        if not self.paused or self.is_back or self._is_way_back:
            return Pass()
        return Wait(
            ConditionReason.PAUSED,
            f"The change to {self.target.name} is paused: set spec.paused to false to go on, or undo it.",
        )

    @property
    def before_first(self) -> Guard:
        """Workers of this package never take what only older ones take: before the first of them starts, that
        work has to be gone, and the older ones stay as they are."""
        current = self.current
        begun = current is not None and not is_empty(current)
        if self.is_back or begun or not self.desired or self.target.protocol is Protocol.LEGACY:
            return Pass()
        return self.old_work if self.older else Pass()

    @property
    def older(self) -> list[RevisionFacts]:
        """Revisions whose workers take what no other does; a stable one also when none is there just now."""
        stable = self.previous.stable.revision if self.previous.stable else None
        rows = (r for r in self.revisions if r.protocol is Protocol.LEGACY)
        return [r for r in rows if r.name == stable or not is_empty(r)]

    def stage_before(self, others: Guard) -> Stage:
        """Where a change stands that has no worker yet; `others` is what else keeps the first from starting.
        While nobody can look the stage stays."""
        if isinstance(self.before_first, Pass):
            return Stage.VALIDATING
        rollout = self.previous.rollout
        drained = rollout and rollout.target == self.target.name and rollout.stage is Stage.DRAINING_LEGACY
        waits = isinstance(others, Pass) or (drained and isinstance(self.creatable, Pass))
        return Stage.DRAINING_LEGACY if waits else Stage.VALIDATING

    @property
    def broker(self) -> Guard:
        """Whether it is reachable; beside other revisions, also whether the queue could be read."""
        return first_obstacle(self.reachable, self.readable if self.others else Pass())

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
        begun = rollout and rollout.target == self.target.name
        begun = begun and rollout is not None and rollout.stage in (Stage.PROMOTING, *WAY_OUT)
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

    # -- the queue ---------------------------------------------------------------------------------

    @property
    def readable(self) -> Pass | Unknown:
        """Whether the queue could be read."""
        return self.queue if isinstance(self.queue, Unknown) else Pass()

    def is_fenced(self, revision: str) -> bool:
        return isinstance(self.queue, QueueFacts) and self.queue.is_fenced(revision)

    @property
    def receives(self) -> Guard:
        """Whether the target's workers may take work. (Asked only when others could take it instead.)"""
        if isinstance(self.queue, Unknown):
            return self.queue
        name = self.target.name
        if self.target.protocol is Protocol.LEGACY or not self.queue.is_fenced(name):
            return Pass()
        if self.own_fence_on_target:
            # Of ours: nobody is waited for.
            return Wait(ConditionReason.ROLLOUT_IN_PROGRESS, f"The fence on {name} is being lifted.")
        fences, queue = self.queue.fences, self.target.queue
        reason, which = (
            (fences[name], f" --revision {name}") if name in fences else (fences[EVERY_REVISION], "")
        )
        return Wait(
            ConditionReason.TARGET_FENCED,
            f"Somebody fenced {name} on the broker ({reason}): lift it with "
            f"`queueworker unfence {queue}{which}`.",
        )

    @property
    def stopped(self) -> Pass | Wait:
        """Somebody else keeps the target from receiving: it does not serve, however many workers it has."""
        receives = self.receives
        if self.desired and isinstance(receives, Wait) and not self.own_fence_on_target:
            return receives
        return Pass()

    @property
    def own_fence_on_target(self) -> bool:
        """The target left once, and is wanted again."""
        return bool(self.desired) and self.has_own_fence(self.target.name)

    def has_own_fence(self, revision: str) -> bool:
        """This resource fenced it."""
        return isinstance(self.queue, QueueFacts) and self.mark.set(self.queue, revision)

    @property
    def strays(self) -> bool:
        """Something is staged that no worker will take: Legacy ones serve, and no other is alive."""
        return self.staged_beside(self.target.protocol)

    def staged_beside(self, protocol: Protocol) -> bool:
        """Something is staged, and those that serve cannot take it: they are of that protocol, Legacy, and no
        other is alive."""
        return (
            protocol is Protocol.LEGACY
            and isinstance(self.queue, QueueFacts)
            and self.queue.staging > 0
            and not self.queue.capable_besides(self.silent)
        )

    # -- the guarded way ---------------------------------------------------------------------------

    @property
    def departure(self) -> Departure:
        """What leaves if the guarded way is taken."""
        rollout = self.previous.rollout
        return Departure(
            leaving=self._leaving,
            target=self.target.name,
            wanted=self.desired,
            target_protocol=self.target.protocol,
            receiver=self._receiver,
            mark=self.mark,
            quiet=self.quiet,
            before=rollout.stage if rollout else None,
            vanished=self._vanished,
            elsewhere=self.target.name in self.elsewhere,
            silent=self.silent,
        )

    @cached_property
    def silent(self) -> frozenset[str]:
        """Revisions that nobody has a worker of, whatever the broker's list still says of them."""
        return silent_of(self.target.name, self.previous, self.kept, self.revisions, self.beside)

    @property
    def _vanished(self) -> str | None:
        """What was on its way out and is there no longer, killed or deleted: what it held is still to be
        proven."""
        rollout = self.previous.rollout
        if rollout is None or rollout.target != self.target.name or rollout.stage not in WAY_OUT:
            return None
        there = {self.target.name, *self.beside, *(r.name for r in self.revisions)}
        return rollout.leaving if rollout.leaving not in there else None

    @cached_property
    def _leaving(self) -> tuple[RevisionFacts, ...]:
        """Who takes the guarded way."""
        capable = self._capable
        if self._returns:
            return capable
        # In a change forward only those take the guarded way that are on it: an arm of a canary, or a change
        # that was taken back. Whoever serves is drained as the new one takes over, without a fence.
        return tuple(r for r in capable if self.has_own_fence(r.name))

    @property
    def _capable(self) -> tuple[RevisionFacts, ...]:
        """All of which nothing would stay on the way back."""
        # Where nobody else recovers, an empty revision that is still there is proof to be given, too.
        nobody_else = self.target.protocol is Protocol.LEGACY or not self.desired
        capable = [
            r
            for r in self.others
            if r.protocol is Protocol.RESERVATION
            and (nobody_else or not is_empty(r))
            and not self._is_out_of_sight(r)
        ]
        current = self.current
        ends = current and not self.desired and (current.desired or current.alive)
        if current and ends and current.protocol is Protocol.RESERVATION:
            capable.append(current)
        shared = shared_of(capable, self.beside, self.queue)
        return tuple(r for r in capable if r.name not in shared)

    def _is_out_of_sight(self, r: RevisionFacts) -> bool:
        """Its broker is not the one that was read, so a fence there would stop nobody and a proof would be of
        others: its workers finish and stop. Where every worker is to go, they are waited for all the same."""
        return r.name in self.elsewhere and (self.desired > 0 or is_empty(r))

    @property
    def _returns(self) -> bool:
        """To what served before, to a Legacy revision, or to no worker at all."""
        served = self.is_back or self.back or self.previous.previous == self.target.name
        return served or self.target.protocol is Protocol.LEGACY or not self.desired

    @property
    def goes_back(self) -> bool:
        """Somebody leaves by the guarded way."""
        return self._is_way_back or bool(self._leaving or self._vanished)

    @property
    def _is_way_back(self) -> bool:
        """The target itself is the way back, and not only where somebody leaves beside a change forward."""
        if self.target.protocol is Protocol.LEGACY and not self.is_back:
            return True
        return self._returns and bool(self._leaving or self._vanished)

    @property
    def _receiver(self) -> Guard:
        """A revision that was not yet stable stops at once; one that serves alone, when the target serves as
        many workers."""
        if not self.desired:
            return Pass()
        if not isinstance(self.receives, Pass):
            return self.receives
        current, leaving = self.current, self._leaving
        if any(serving(r) for r in self.others if r not in leaving and not self.is_fenced(r.name)):
            return Pass()
        needed = 1 if self.is_back else min(self.desired, max(1, sum(map(serving, leaving))))
        if current is not None and serving(current) >= needed:
            return Pass()
        return Wait(
            ConditionReason.WAITING_FOR_RECEIVER,
            f"{needed} workers of {self.target.name} have to serve before others stop receiving.",
        )

    def last_capable_guard(self, going: Iterable[RevisionFacts]) -> Guard:
        """Whether these revisions may lose their last workers in a change forward."""
        names = frozenset(r.name for r in going)
        if not names:
            return Pass()
        if isinstance(self.queue, Unknown):
            return self.queue
        alive = any(self.queue.of(name).capable for name in names)
        if not self.queue.has_registry or not alive or self.queue.capable_besides(names | self.silent):
            return Pass()
        return Wait(
            ConditionReason.NO_CAPABLE_CONSUMER,
            f"No worker of {self.target.name} is on the broker's list of live workers: the last ones that "
            "can recover reservations stay until one is.",
        )
