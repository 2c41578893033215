"""The QueueWorker resource, v1alpha1: the one source of the CRD, of parsing and of the documentation.

`api.parse.parse` turns a body into a `QueueWorker`, or into an `InvalidQueueWorker` that says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from queueworker_operator.api.gates import Gate
from queueworker_operator.api.leaving import Deletion, DeletionPolicy, Rollback, Sunset
from queueworker_operator.api.nats import Nats
from queueworker_operator.api.redis import Redis
from queueworker_operator.api.request import Request
from queueworker_operator.api.rollout import Hold, Rollout, Step, Strategy
from queueworker_operator.api.schema import (
    Int32,
    Model as _Model,
    SecretRef,
    Timestamp,
    Tolerant as _Tolerant,
    whole_seconds as whole_seconds,
)
from queueworker_operator.api.status import (
    MOST_PLACES as MOST_PLACES,
    BrokerStatus as BrokerStatus,
    Condition as Condition,
    FallenStatus as FallenStatus,
    QueueWorkerStatus as QueueWorkerStatus,
    RevisionStatus as RevisionStatus,
    RevokedStatus as RevokedStatus,
    Role as Role,
    RolloutStatus as RolloutStatus,
    StableStatus as StableStatus,
)
from queueworker_operator.api.template import Template


class Queue(_Model):
    """The queue that is consumed. Immutable: drain it and create another QueueWorker."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_-]*$")] = Field(
        description="Name of the queue, as producers write it."
    )


class Broker(_Model):
    """Where the queue lives: exactly one member."""

    redis: Redis | None = Field(default=None, description="The queue is a Redis list.")
    nats: Nats | None = Field(default=None, description="The queue is a work queue stream of NATS JetStream.")

    @property
    def type(self) -> str:
        """The member that is set, as the printer column shows it."""
        return "Redis" if self.nats is None else "NATS"

    @property
    def namespace(self) -> str:
        """What workers get as QUEUEWORKER_NAMESPACE; empty where no member is set."""
        if self.redis is not None:
            return self.redis.key_namespace
        return "" if self.nats is None else self.nats.queue_namespace

    @property
    def url(self) -> str | None:
        """The URL, where the spec has it."""
        return self._member.url if self._member else None

    @property
    def secret_ref(self) -> SecretRef | None:
        """Where the URL is kept instead."""
        return self._member.secret_ref if self._member else None

    @property
    def path(self) -> str:
        """Names the member for people, such as `spec.broker.redis`."""
        return "spec.broker.redis" if self.nats is None else "spec.broker.nats"

    @property
    def _member(self) -> Redis | Nats | None:
        return self.redis if self.nats is None else self.nats


class Protocol(StrEnum):
    RESERVATION = "Reservation"
    LEGACY = "Legacy"


class QueueWorkerSpec(_Model):
    """What is wanted."""

    queue: Queue = Field(description="The queue that is consumed. Immutable.")
    broker: Broker = Field(description="Where the queue lives: exactly one member.")
    coroutines: Annotated[Int32, Field(ge=1, le=1000)] = Field(
        default=1, description="Handlers that run at once in one worker process."
    )
    prefetch: Annotated[Int32, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="Unacknowledged deliveries of one worker process at most: waiting, running and "
        "unconfirmed together. At least coroutines; equal to coroutines when left out.",
    )
    replicas: Annotated[Int32, Field(ge=0, le=10000)] = Field(
        default=1, description="Workers that are wanted. Written through /scale by an autoscaler."
    )
    shutdown_seconds: Annotated[Int32, Field(ge=1, le=3600)] = Field(
        default=30, description="Seconds that a worker has to finish after SIGTERM."
    )
    min_ready_seconds: Annotated[Int32, Field(ge=0, le=3600)] = Field(
        default=5,
        description="Seconds that a worker has to be ready without a break before it counts as available: "
        "before that it takes over from nobody. Less than progressDeadlineSeconds.",
    )
    progress_deadline_seconds: Annotated[Int32, Field(ge=30, le=86400)] = Field(
        default=600, description="Seconds without progress after which a change is reported as Stalled."
    )
    rollout: Rollout | None = Field(default=None, description="How a change is brought out.")
    request: Request | None = Field(
        default=None, description="What is asked of the change that is under way; done once for each id."
    )
    paused: bool = Field(
        default=False,
        description="Stops a change forward where it is; what runs goes on. The way back, a new number of "
        "replicas and a deletion are not stopped.",
    )
    hold: Hold | None = Field(
        default=None,
        description="No change may begin while this is there. What has begun goes on; the way back and a "
        "deletion are not stopped.",
    )
    revoked_versions: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=50)] = (
        Field(
            default=(),
            description="Versions known to be bad, such as h1-5d0c1f9a: none of them is brought out, and one "
            "that is being brought out goes back by the guarded way.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        )
    )
    protocol: Protocol = Field(
        default=Protocol.RESERVATION,
        description="What the image speaks. Legacy: a worker of utopia-php/queue 4 or the like, which can "
        "neither be fenced nor recover what workers of this package reserved.",
    )
    rollback: Rollback | None = Field(default=None, description="How a revision leaves for good.")
    sunset: Sunset | None = Field(default=None, description="What stays of revisions that served.")
    deletion: Deletion | None = Field(
        default=None, description="What becomes of the workers when the resource is deleted."
    )
    template: Template = Field(
        description="The pod template. The container named worker, else the first one, is the worker."
    )

    @property
    def effective_prefetch(self) -> int:
        """prefetch, or coroutines when it was left out."""
        return self.coroutines if self.prefetch is None else self.prefetch

    @property
    def strategy(self) -> Strategy:
        """rollout.strategy, or its default."""
        return (self.rollout or Rollout()).strategy

    @property
    def steps(self) -> tuple[Step, ...]:
        """rollout.steps; empty where there are none."""
        return (self.rollout.steps if self.rollout else None) or ()

    @property
    def gates(self) -> tuple[Gate, ...]:
        """rollout.gates; empty where there are none."""
        return self.rollout.gates if self.rollout else ()

    @property
    def quiet_seconds(self) -> int:
        """rollback.quietSeconds, or its default."""
        return (self.rollback or Rollback()).quiet_seconds

    @property
    def drain_deadline_seconds(self) -> int:
        """rollback.drainDeadlineSeconds, or its default; long enough for the registry to be proven quiet."""
        rollback = self.rollback or Rollback()
        return max(rollback.drain_deadline_seconds, 2 * rollback.quiet_seconds)

    @property
    def keep_fences_seconds(self) -> int:
        """rollback.keepFencesSeconds, or its default."""
        return (self.rollback or Rollback()).keep_fences_seconds

    @property
    def keep_versions(self) -> int:
        """sunset.keepVersions, or its default."""
        return (self.sunset or Sunset()).keep_versions

    @property
    def deletion_policy(self) -> DeletionPolicy:
        """deletion.policy, or its default."""
        return (self.deletion or Deletion()).policy


class Metadata(_Tolerant):
    """The part of ObjectMeta that the operator reads. Local mode fills generation and uid itself."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    deletion_timestamp: Timestamp | None = None
    finalizers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueWorker:
    """A resource whose spec keeps every rule."""

    metadata: Metadata
    spec: QueueWorkerSpec
    status: QueueWorkerStatus

    @property
    def min_ready(self) -> timedelta:
        """How long a worker has to be ready before it counts as available."""
        return timedelta(seconds=self.spec.min_ready_seconds)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: the field's path, such as `spec.prefetch`, and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True)
class InvalidQueueWorker:
    """A resource whose spec cannot be used. Its workers are left alone; it can still be deleted."""

    metadata: Metadata
    status: QueueWorkerStatus
    problems: tuple[Problem, ...]
    #: What the spec says of its deletion, where at least that can be read.
    deletion_policy: DeletionPolicy = DeletionPolicy.DRAIN

    @property
    def min_ready(self) -> timedelta:
        """No spec says how long: a worker counts as soon as it is ready."""
        return timedelta(0)
