"""What can be done. Each action is idempotent: doing it twice, or again after a crash, changes nothing.

Whoever executes a plan takes the actions in order and stops at the first that fails (nothing later is done,
the status is not written, the key is tried again with backoff). Two exceptions: an ApplyRevision that is
*refused* (an invalid template, not a conflict or an outage) is remembered as a `facts.Refusal`, and the plan
goes on; and where the broker refuses an action, `still_told` says what is done of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from queueworker_operator.api.audits import AuditJob
from queueworker_operator.api.reasons import EventReason
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import QueueWorkerStatus


@dataclass(frozen=True, slots=True)
class EnsureFinalizer:
    """Put `queueworker.dev/drain` on the resource. Comes before the first worker is made."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the resource go. Its children go with it by their owner references."""


@dataclass(frozen=True, slots=True)
class ApplyRevision:
    """Create the Deployment or process group of a revision with that many workers.

    When it already exists, only the number of workers is set: a pod template is never patched.
    """

    revision: Revision
    replicas: int


@dataclass(frozen=True, slots=True)
class AdoptRevision:
    """Make the resource the controller of a child that carries its labels and has no controller."""

    revision: str
    deployment: str


@dataclass(frozen=True, slots=True)
class OrphanRevision:
    """Let a child live on without the resource: it loses its owner and nothing else."""

    revision: str
    deployment: str


@dataclass(frozen=True, slots=True)
class ScaleRevision:
    """Set the number of workers of a revision that exists. Those not ready go first, all by SIGTERM."""

    revision: str
    deployment: str
    replicas: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End one worker of a revision at once, without any time to stop: a failure, made on purpose. Another one
    takes its place. (Done again after a crash it ends another one; workers may die at any time.)"""

    revision: str
    deployment: str


@dataclass(frozen=True, slots=True)
class StartAudit:
    """Have the totals of a durable store counted, unless somebody of that name does or did."""

    name: str
    job: AuditJob
    #: For the environment of whoever counts.
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RemoveAudit:
    """It was judged, or nobody waits for it any longer. Absent counts as done."""

    name: str


@dataclass(frozen=True, slots=True)
class RetireRevision:
    """Scale a revision to 0: its workers get SIGTERM and their time to stop. The Deployment stays for now."""

    revision: str
    deployment: str


@dataclass(frozen=True, slots=True)
class DeleteRevision:
    """Delete a revision that has no worker left. Absent counts as done."""

    revision: str
    deployment: str


@dataclass(frozen=True, slots=True)
class KeepRevision:
    """Remember a revision that serves, with a spec that leads to it. Again, with a higher number, when it
    serves again."""

    revision: Revision
    number: int
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ForgetRevision:
    """Keep a revision no longer. Absent counts as done."""

    revision: str
    deployment: str


@dataclass(frozen=True, slots=True)
class FenceRevision:
    """Stop a revision from receiving, on the broker, wherever its workers are."""

    revision: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnfenceRevision:
    """Let a revision receive again."""

    revision: str


@dataclass(frozen=True, slots=True)
class RecoverWork:
    """Run the broker's recovery transitions: what is expired goes back to the queue."""


@dataclass(frozen=True, slots=True)
class ReturnStaged:
    """Put what blocking waits moved into staging back to the head of ready."""


@dataclass(frozen=True, slots=True)
class PromoteDelayed:
    """Make every delayed retry ready, due or not: a Legacy worker could not read it."""


#: What is done on the broker.
BrokerAction = FenceRevision | UnfenceRevision | RecoverWork | ReturnStaged | PromoteDelayed


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Post an event on the resource."""

    reason: EventReason
    type: Literal["Normal", "Warning"]
    message: str
    #: The same for the same transition: an event with a key that was posted before may be left out.
    key: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status. Always the last action, and only there when something differs."""

    status: QueueWorkerStatus


Action = (
    EnsureFinalizer
    | RemoveFinalizer
    | ApplyRevision
    | AdoptRevision
    | OrphanRevision
    | ScaleRevision
    | KillWorker
    | StartAudit
    | RemoveAudit
    | RetireRevision
    | DeleteRevision
    | KeepRevision
    | ForgetRevision
    | BrokerAction
    | EmitEvent
    | WriteStatus
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now."""

    actions: tuple[Action, ...]
    #: The status as it is to be, whether or not it has to be written.
    status: QueueWorkerStatus
    #: Seconds after which to look again even if nothing is reported.
    requeue_after: float


#: What a status may be written without: each pass decides anew whether it is to be done.
_DECIDED_ANEW = BrokerAction | ApplyRevision | ScaleRevision | RetireRevision | DeleteRevision
#: They say that something was done.
_DONE = (EventReason.SCALED, EventReason.FENCE_FORGOTTEN)


def still_told(rest: Sequence[Action]) -> tuple[Action, ...]:
    """What is done of the rest of a plan when the broker refused an action before it: the status is written
    with its events, or nobody would see where it stands as long as the broker refuses."""
    left = [a for a in rest if not isinstance(a, _DECIDED_ANEW)]
    told = [a for a in left if isinstance(a, EmitEvent | WriteStatus | RemoveAudit)]
    if len(told) < len(left) or not any(isinstance(a, WriteStatus) for a in told):
        return ()
    return tuple(a for a in told if not (isinstance(a, EmitEvent) and a.reason in _DONE))
