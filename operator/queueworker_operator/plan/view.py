"""What a pass found and decided, for the status to tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from queueworker_operator.api.gates import AnalysisStatus, GateStatus
from queueworker_operator.api.reasons import ConditionReason, Stage
from queueworker_operator.api.request import RolledBackStatus
from queueworker_operator.api.types import RevokedStatus, StableStatus
from queueworker_operator.plan.facts import BrokerCheck, PriorityWork, RevisionFacts, Unknown
from queueworker_operator.plan.guards import Guard, Pass, Wait
from queueworker_operator.plan.split import serving
from queueworker_operator.plan.steps import Place
from queueworker_operator.plan.way_out import WayOut

#: Waiting for these is waiting for work that is finished or recovered: it has a deadline of its own.
_DRAINS = (
    ConditionReason.WORK_OUTSTANDING,
    ConditionReason.RESERVATIONS_OUTSTANDING,
    ConditionReason.NOT_QUIET_YET,
)
#: The same for work that only older workers take.
_PRIORITY = (ConditionReason.PRIORITY_LEFT, ConditionReason.PRIORITY_QUIET)
HALTED = (
    ConditionReason.PAUSED,
    ConditionReason.PAUSE_STEP,
    ConditionReason.GATE_FAILED,
    ConditionReason.GATE_INCONCLUSIVE,
    ConditionReason.WAITING_FOR_PROMOTION,
    ConditionReason.HELD,
    ConditionReason.ROLLOUT_ABORTED,
    ConditionReason.ROLLED_BACK,
    ConditionReason.VERSION_REVOKED,
    ConditionReason.NO_WORKERS_WANTED,
)


@dataclass(frozen=True, slots=True)
class View:
    """What a pass found and decided: all that the status says follows from it and the previous status."""

    stage: Stage
    revisions: tuple[RevisionFacts, ...]
    #: Workers that should serve.
    wanted: int
    target: str | None
    stable: StableStatus | None
    broker_type: str | None
    #: None keeps what the previous status says of the broker (an invalid spec names none).
    broker: BrokerCheck | Unknown | None
    #: What stops the next step.
    blocker: Guard
    deadline: timedelta
    #: How long the guarded way may wait for work to be finished or recovered.
    drain_deadline: timedelta
    #: The revision that served before the stable one.
    previous: str | None
    #: Where those stand that leave by the guarded way, while the stage is one of it.
    out: WayOut | None
    #: The last request that was answered, and the revision that is not brought out.
    handled_request: str | None
    aborted: str | None
    #: Why the request that the spec has was not done.
    request_ignored: str | None = None
    #: The revision that takes over without more steps.
    promoted: str | None = None
    #: Whether the work is gone that only older workers take.
    old_work: Guard = field(default_factory=Pass)
    #: How far the steps of a canary are.
    place: Place | None = None
    #: What runs beside the stable revision, and how many workers of it are wanted.
    canary: tuple[str, int] | None = None
    #: The analysis at that step, and what gates found in the last change.
    analysis: AnalysisStatus | None = None
    gates: tuple[GateStatus, ...] = ()
    #: What a request took the resource back from and to.
    rolled_back: RolledBackStatus | None = None
    #: Revisions that can be gone back to, the last first.
    kept: tuple[str, ...] = ()
    #: What the spec revokes; None keeps what the previous status says of it.
    revoked: tuple[RevokedStatus, ...] | None = None
    #: The resource is on its way out.
    deleting: bool = False

    @property
    def halted(self) -> bool:
        """A person stopped it, or is waited for: nothing is under way, and no time counts."""
        return isinstance(self.blocker, Wait) and self.blocker.reason in HALTED

    @property
    def drains(self) -> bool:
        """It waits for work of those that leave."""
        if self.deleting:
            return not isinstance(self.blocker, Pass)
        if self.stage is Stage.DRAINING_LEGACY:
            return isinstance(self.blocker, Wait) and self.blocker.reason in _PRIORITY
        leaves = self.out is not None or self.stage is Stage.ARM_CHANGING
        return leaves and isinstance(self.blocker, Wait) and self.blocker.reason in _DRAINS

    @property
    def priority(self) -> PriorityWork | None:
        """What the last look at the priority subject counted, while the change waits for it."""
        if self.stage is not Stage.DRAINING_LEGACY or not isinstance(self.broker, BrokerCheck):
            return None
        found = self.broker.priority
        return found if isinstance(found, PriorityWork) else None

    @property
    def goes_on(self) -> bool:
        """What was superseded is gone, and the next pass begins the change."""
        return isinstance(self.blocker, Wait) and self.blocker.reason is ConditionReason.SUPERSEDED

    @property
    def comes(self) -> tuple[str | None, int]:
        """The revision that is being brought out, or the arm of it, and the workers that it should have."""
        return self.canary or (self.target, self.wanted)

    @property
    def settled(self) -> bool:
        """The world is as the spec wants it."""
        return (
            self.stage is Stage.IDLE
            and self.stable is not None
            and self.stable.revision == self.target
            and sum(map(serving, self.revisions)) >= self.wanted
            and all(r.alive <= self.wanted and r.caught_up for r in self.revisions)
        )
