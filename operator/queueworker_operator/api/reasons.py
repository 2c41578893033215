"""Condition types, condition reasons and event reasons: the words that people alert on.

`docs/reasons.md` explains each one; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """RECONCILING and STALLED are abnormal-true: they are absent when they are not true. REGISTRY_EMPTY is
    there while a revision leaves by the guarded way."""

    READY = "Ready"
    AVAILABLE = "Available"
    BROKER_REACHABLE = "BrokerReachable"
    PLACEMENT_VALID = "PlacementValid"
    #: On NATS only.
    QUEUE_PROVISIONED = "QueueProvisioned"
    PRIORITY_DRAINED = "PriorityDrained"
    REGISTRY_EMPTY = "RegistryEmpty"
    #: Once an analysis of the change began.
    GATES_PASSED = "GatesPassed"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class ConditionReason(StrEnum):
    """A reason is stable API; the message beside it is for people and may be reworded."""

    SERVING = "Serving"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    DELETING = "Deleting"

    MINIMUM_REPLICAS_AVAILABLE = "MinimumReplicasAvailable"
    MINIMUM_REPLICAS_UNAVAILABLE = "MinimumReplicasUnavailable"

    REACHABLE = "Reachable"
    WRITES_REFUSED = "WritesRefused"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    CONNECTION_FAILED = "ConnectionFailed"
    TIMEOUT = "Timeout"
    SECRET_NOT_FOUND = "SecretNotFound"
    INVALID_URL = "InvalidURL"
    INVALID_CREDENTIALS = "InvalidCredentials"
    NOT_PROBED = "NotProbed"

    SAME_SLOT = "SameSlot"
    NOT_CLUSTERED = "NotClustered"
    UNSAFE_PLACEMENT = "UnsafePlacement"

    PROVISIONED = "Provisioned"
    PROVISIONED_DIFFERENTLY = "ProvisionedDifferently"
    QUEUE_NOT_PROVISIONED = "QueueNotProvisioned"
    QUEUE_UNUSABLE = "QueueUnusable"

    PRIORITY_EMPTY = "PriorityEmpty"
    PRIORITY_QUIET = "PriorityQuiet"
    PRIORITY_LEFT = "PriorityLeft"
    PRIORITY_STUCK = "PriorityStuck"
    PRODUCERS_PUBLISH = "ProducersStillPublishing"

    VALIDATING = "Validating"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    SCALING_STABLE = "ScalingStable"
    WORKERS_FAILING = "WorkersFailing"
    BROKER_UNREACHABLE = "BrokerUnreachable"

    PAUSED = "Paused"
    HELD = "Held"
    ROLLOUT_ABORTED = "RolloutAborted"
    ROLLED_BACK = "RolledBack"
    REVISION_NOT_KEPT = "RevisionNotKept"
    VERSION_REVOKED = "VersionRevoked"
    WAITING_FOR_PROMOTION = "WaitingForPromotion"
    PAUSE_STEP = "PauseStep"
    TIMED_PAUSE = "TimedPause"
    ANALYZING = "Analyzing"
    ALL_PASSED = "AllPassed"
    WAIVED = "Waived"
    GATE_FAILED = "GateFailed"
    GATE_INCONCLUSIVE = "GateInconclusive"
    SUPERSEDED = "Superseded"
    NO_WORKERS_WANTED = "NoWorkersWanted"
    STABLE_MISSING = "StableMissing"
    WAITING_FOR_RECEIVER = "WaitingForReceiver"
    TARGET_FENCED = "TargetFenced"
    RECEIVING_NOT_STOPPED = "ReceivingNotStopped"
    WORK_OUTSTANDING = "WorkOutstanding"
    RESERVATIONS_OUTSTANDING = "ReservationsOutstanding"
    NOT_QUIET_YET = "NotQuietYet"
    NO_CAPABLE_CONSUMER = "NoCapableConsumer"
    WORKERS_LISTED = "WorkersListed"
    REGISTRY_NOT_READABLE = "RegistryNotReadable"
    EMPTY_AND_QUIET = "EmptyAndQuiet"
    NOT_APPLICABLE = "NotApplicable"
    RETIRING = "Retiring"

    INVALID_SPEC = "InvalidSpec"
    INVALID_TEMPLATE = "InvalidTemplate"
    NAME_CONFLICT = "NameConflict"
    FOREIGN_AUTOSCALER = "ForeignAutoscaler"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    DRAIN_OVERDUE = "DrainOverdue"


class EventReason(StrEnum):
    """Posted once per transition on the QueueWorker."""

    LEGACY_DRAIN_STARTED = "LegacyDrainStarted"
    LEGACY_DRAINED = "LegacyDrained"
    ROLLOUT_STARTED = "RolloutStarted"
    STEP_COMPLETED = "StepCompleted"
    STEPS_RESTARTED = "StepsRestarted"
    WORKER_KILLED = "WorkerKilled"
    GATE_PASSED = "GatePassed"
    GATE_FAILED = "GateFailed"
    GATE_INCONCLUSIVE = "GateInconclusive"
    PROMOTED = "Promoted"
    ROLLBACK_STARTED = "RollbackStarted"
    RECEIVING_STOPPED = "ReceivingStopped"
    WORK_DRAINED = "WorkDrained"
    REGISTRY_EMPTY = "RegistryEmpty"
    ROLLED_BACK = "RolledBack"
    REQUEST_HANDLED = "RequestHandled"
    REQUEST_IGNORED = "RequestIgnored"
    SCALED = "Scaled"
    REVISION_RETIRED = "RevisionRetired"
    WRITES_REFUSED = "WritesRefused"
    BROKER_RECOVERED = "BrokerRecovered"
    DRAIN_STARTED = "DrainStarted"
    DRAIN_COMPLETED = "DrainCompleted"
    WORKERS_ORPHANED = "WorkersOrphaned"
    FENCE_FORGOTTEN = "FenceForgotten"

    INVALID_SPEC = "InvalidSpec"
    INVALID_TEMPLATE = "InvalidTemplate"
    SECRET_NOT_FOUND = "SecretNotFound"
    BROKER_UNREACHABLE = "BrokerUnreachable"
    BROKER_CHANGED = "BrokerChanged"
    PLACEMENT_REFUSED = "PlacementRefused"
    QUEUE_NOT_PROVISIONED = "QueueNotProvisioned"
    QUEUE_UNUSABLE = "QueueUnusable"
    WORKERS_FAILING = "WorkersFailing"
    NAME_CONFLICT = "NameConflict"
    FOREIGN_AUTOSCALER = "ForeignAutoscaler"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    DRAIN_OVERDUE = "DrainOverdue"
    DRAIN_UNPROVEN = "DrainUnproven"
    REVOKED_VERSION_UNKNOWN = "RevokedVersionUnknown"
    PRODUCERS_PUBLISH = "ProducersStillPublishing"
    PRIORITY_STUCK = "PriorityStuck"


class Stage(StrEnum):
    """Where the rollout stands: `status.rollout.stage`. Display and resume data; each pass proves it anew."""

    IDLE = "Idle"
    VALIDATING = "Validating"
    DRAINING_LEGACY = "DrainingLegacy"
    CANARY_SCALING = "CanaryScaling"
    ARM_CHANGING = "ArmChanging"
    ANALYZING = "Analyzing"
    PAUSED = "Paused"
    PROMOTING = "Promoting"
    STOP_RECEIVING = "StopReceiving"
    DRAIN_OUTSTANDING = "DrainOutstanding"
    RECOVER_RESERVATIONS = "RecoverReservations"
    VERIFY_REGISTRY_EMPTY = "VerifyRegistryEmpty"
    RETIRE = "Retire"
    DELETING = "Deleting"


#: Those in which a canary runs beside the stable revision.
CANARY_STAGES = (Stage.CANARY_SCALING, Stage.ARM_CHANGING, Stage.ANALYZING, Stage.PAUSED)

#: The guarded way of a revision out of service, in order.
WAY_OUT = (
    Stage.STOP_RECEIVING,
    Stage.DRAIN_OUTSTANDING,
    Stage.RECOVER_RESERVATIONS,
    Stage.VERIFY_REGISTRY_EMPTY,
    Stage.RETIRE,
)
