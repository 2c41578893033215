"""Condition types, condition reasons and event reasons: the words that people alert on.

`docs/reasons.md` explains each one; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum


class ConditionType(StrEnum):
    """RECONCILING and STALLED are abnormal-true: they are absent when they are not true."""

    READY = "Ready"
    AVAILABLE = "Available"
    BROKER_REACHABLE = "BrokerReachable"
    PLACEMENT_VALID = "PlacementValid"
    #: On NATS only.
    QUEUE_PROVISIONED = "QueueProvisioned"
    PRIORITY_DRAINED = "PriorityDrained"
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

    VALIDATING = "Validating"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    SCALING_STABLE = "ScalingStable"
    WORKERS_FAILING = "WorkersFailing"
    BROKER_UNREACHABLE = "BrokerUnreachable"

    INVALID_SPEC = "InvalidSpec"
    INVALID_TEMPLATE = "InvalidTemplate"
    NAME_CONFLICT = "NameConflict"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    DRAIN_OVERDUE = "DrainOverdue"


class EventReason(StrEnum):
    """Posted once per transition on the QueueWorker."""

    ROLLOUT_STARTED = "RolloutStarted"
    PROMOTED = "Promoted"
    SCALED = "Scaled"
    REVISION_RETIRED = "RevisionRetired"
    BROKER_RECOVERED = "BrokerRecovered"
    DRAIN_STARTED = "DrainStarted"
    DRAIN_COMPLETED = "DrainCompleted"

    INVALID_SPEC = "InvalidSpec"
    INVALID_TEMPLATE = "InvalidTemplate"
    SECRET_NOT_FOUND = "SecretNotFound"
    BROKER_UNREACHABLE = "BrokerUnreachable"
    PLACEMENT_REFUSED = "PlacementRefused"
    QUEUE_NOT_PROVISIONED = "QueueNotProvisioned"
    QUEUE_UNUSABLE = "QueueUnusable"
    WORKERS_FAILING = "WorkersFailing"
    NAME_CONFLICT = "NameConflict"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    DRAIN_OVERDUE = "DrainOverdue"


class Stage(StrEnum):
    """Where the rollout stands: `status.rollout.stage`. Display and resume data; each pass proves it anew."""

    IDLE = "Idle"
    VALIDATING = "Validating"
    PROMOTING = "Promoting"
    DELETING = "Deleting"
