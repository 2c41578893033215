"""The guarded way of revisions out of service: fence, drain, recover, verify, retire.

It is taken back to a revision that served before, to a Legacy one, and to no worker at all: whenever what
the leaving workers hold might be read by nobody afterwards. Each pass proves every step anew; a step that no
longer holds (a fence that somebody lifted, work that turned up) leads back to where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol as TypingProtocol

from queueworker_operator.api.reasons import WAY_OUT, ConditionReason, Stage
from queueworker_operator.api.types import Protocol
from queueworker_operator.plan.actions import (
    Action,
    FenceRevision,
    PromoteDelayed,
    RecoverWork,
    ReturnStaged,
)
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.fences import Mark
from queueworker_operator.plan.guards import Guard, Pass, Wait
from queueworker_operator.plan.queue_facts import QueueFacts, Unknown


@dataclass(frozen=True, slots=True)
class Departure:
    """Who leaves, for whom, and under which conditions."""

    #: Revisions of protocol Reservation of which nothing is to stay. Empty: they are gone already, and only
    #: the registry has to be proven empty.
    leaving: tuple[RevisionFacts, ...]
    target: str
    #: Workers of the target that are wanted.
    wanted: int
    target_protocol: Protocol
    #: Whether the target takes the work over once the others are fenced.
    receiver: Guard
    #: Of every fence that this resource sets.
    mark: Mark
    #: How long the registry must have been empty and still.
    quiet: timedelta
    #: The stage of the previous status: shown while nobody can look.
    before: Stage | None
    #: Why it leaves, where it does not leave for a target.
    why: str = "no worker is wanted"
    #: A revision that was leaving and is gone before its time.
    vanished: str | None = None
    #: The target consumes from another broker, so none of its workers recovers anything here.
    elsewhere: bool = False
    #: Revisions that nobody has a worker of, whatever the broker's list still says of them.
    silent: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Of everything of which nothing is to stay."""
        return (*(r.name for r in self.leaving), *((self.vanished,) if self.vanished else ()))


@dataclass(frozen=True, slots=True)
class WayOut:
    """Where the leaving revisions stand."""

    stage: Stage
    #: What stops the next step. Pass: they may be retired.
    guard: Guard
    #: Whether the registry is empty, or does not have to be; None before that matters.
    registry: Guard | None
    #: What is done on the broker.
    actions: tuple[Action, ...]
    #: The newest of those that leave.
    leaving: str | None
    #: What the broker showed.
    evidence: str | None
    applicable: bool = True

    @property
    def done(self) -> bool:
        """The last worker of the leaving revisions may be stopped."""
        return self.stage is Stage.RETIRE and isinstance(self.guard, Pass)


def way_out(departure: Departure, queue: QueueFacts | Unknown, now: datetime) -> WayOut:
    """The next step. Total: whatever was or was not seen, there is an answer."""
    newest = max(departure.leaving, key=lambda r: (r.created, r.name), default=None)
    name = newest.name if newest else departure.vanished
    if isinstance(queue, Unknown):
        shown = departure.before if departure.before in WAY_OUT else Stage.STOP_RECEIVING
        assert shown is not None
        return WayOut(shown, queue, queue, (), name, None)
    return _seen(departure, queue, name, now)


def _seen(departure: Departure, queue: QueueFacts, name: str | None, now: datetime) -> WayOut:
    names = frozenset(departure.names)
    theirs = sum(map(queue.outstanding, names))
    # What others own in the meantime is no reason to wait, so whose it is has to be said.
    evidence = (
        f"staging {queue.staging}, reserved {queue.reserved}, "
        f"owned {queue.owned} ({theirs} by leaving workers), delayed {queue.delayed}"
    )
    needs_proof = queue.has_registry and not queue.capable_besides(names | departure.silent)
    recover: tuple[Action, ...] = (RecoverWork(),) if queue.has_registry and queue.private else ()

    def at(stage: Stage, guard: Guard, *actions: Action, registry: Guard | None = None) -> WayOut:
        return WayOut(stage, guard, registry, actions, name, evidence, applicable=needs_proof)

    unfenced = [one for one in departure.names if not queue.is_fenced(one)]
    if unfenced:
        if not isinstance(departure.receiver, Pass):
            return at(Stage.STOP_RECEIVING, departure.receiver)
        why = f"it leaves for {departure.target}" if departure.wanted else f"it leaves: {departure.why}"
        reason = departure.mark.reason(why, now)
        fences = [FenceRevision(one, reason) for one in unfenced]
        return at(Stage.STOP_RECEIVING, _receiving(unfenced, queue), *fences)
    receiving = [one for one in sorted(names) if queue.of(one).receiving]
    if receiving:
        return at(Stage.STOP_RECEIVING, _receiving(receiving, queue), *recover)
    holding = [one for one in sorted(names) if queue.outstanding(one)]
    if holding:
        held = ", ".join(f"{one} ({queue.outstanding(one)})" for one in holding)
        text = (
            f"Workers still own deliveries: {held}. They finish them, or others take them over when their "
            "ownership expires."
        )
        return at(Stage.DRAIN_OUTSTANDING, Wait(ConditionReason.WORK_OUTSTANDING, text), *recover)
    if not needs_proof:
        return at(Stage.RETIRE, Pass(), registry=Pass())
    if departure.target_protocol is Protocol.RESERVATION and departure.wanted and not departure.elsewhere:
        text = (
            f"No worker of {departure.target} is on the broker's list of live workers, so nobody could "
            "recover what others reserved: see that its workers run."
        )
        missing = Wait(ConditionReason.NO_CAPABLE_CONSUMER, text)
        return at(Stage.RECOVER_RESERVATIONS, missing, *recover, registry=missing)
    return _registry(departure, queue, at, recover, now)


class _At(TypingProtocol):
    """How `_seen` makes a WayOut."""

    def __call__(
        self, stage: Stage, guard: Guard, *actions: Action, registry: Guard | None = None
    ) -> WayOut: ...


def _registry(
    departure: Departure, queue: QueueFacts, at: _At, recover: Sequence[Action], now: datetime
) -> WayOut:
    """Nobody else could recover: the registry has to be proven empty."""
    legacy = departure.target_protocol is Protocol.LEGACY
    left = queue.registry + (queue.delayed if legacy else 0)
    if left:
        actions = list(recover)
        if queue.staging:
            actions.append(ReturnStaged())
        if legacy and queue.delayed:
            actions.append(PromoteDelayed())
        parts = f"{queue.staging} staged, {queue.reserved} reserved, {queue.owned} owned"
        parts += f", {queue.delayed} delayed" if legacy else ""
        text = f"Not back in the queue yet: {parts}. Each is returned, at its deadline at the latest."
        guard = Wait(ConditionReason.RESERVATIONS_OUTSTANDING, text)
        return at(Stage.RECOVER_RESERVATIONS, guard, *actions, registry=guard)
    if not queue.primary:
        text = (
            "the server that was read is not known to be the primary, so its word proves nothing: point the "
            "URL at the primary and allow its user the command ROLE"
        )
        unknown = Unknown(text, queue.observed_at)
        return at(Stage.VERIFY_REGISTRY_EMPTY, unknown, registry=unknown)
    if queue.quiet_since is None or now - queue.quiet_since < departure.quiet:
        text = f"Nothing is reserved, staged or owned; that has to stay so for {departure.quiet.seconds} s."
        guard = Wait(ConditionReason.NOT_QUIET_YET, text)
        return at(Stage.VERIFY_REGISTRY_EMPTY, guard, registry=guard)
    return at(Stage.RETIRE, Pass(), registry=Pass())


def _receiving(names: Sequence[str], queue: QueueFacts) -> Wait:
    number = sum(queue.of(one).receiving for one in names)
    text = (
        f"Workers of {', '.join(names)} have not all said that they receive no more"
        + (
            f"; {number} did not yet. One that was killed or cut off counts until it falls silent"
            if number
            else ""
        )
        + "."
    )
    return Wait(ConditionReason.RECEIVING_NOT_STOPPED, text)
