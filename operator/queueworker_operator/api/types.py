"""The QueueWorker resource, v1alpha1: the one source of the CRD, of parsing and of the documentation.

`api.parse.parse` turns a body into a `QueueWorker`, or into an `InvalidQueueWorker` that says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from queueworker_operator.api.gates import AnalysisStatus, Gate, GateStatus
from queueworker_operator.api.leaving import Deletion, DeletionPolicy, Rollback, Sunset
from queueworker_operator.api.nats import Nats
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.redis import Redis
from queueworker_operator.api.request import Request, RolledBackStatus
from queueworker_operator.api.rollout import Hold, Reached, Rollout, Step, Strategy
from queueworker_operator.api.schema import (
    Int32,
    Int64,
    Model as _Model,
    SecretRef,
    Timestamp,
    Tolerant as _Tolerant,
    keyed_by as _keyed_by,
    whole_seconds as whole_seconds,
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


class Condition(_Tolerant):
    """metav1.Condition."""

    type: Annotated[str, Field(max_length=316)] = Field(description="What the condition is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: Int64 = Field(default=0, description="The generation that the condition is about.")
    last_transition_time: Timestamp = Field(description="When the status last changed.")
    reason: Annotated[str, Field(min_length=1, max_length=1024)] = Field(description="One stable word.")
    message: Annotated[str, Field(max_length=32768)] = Field(
        description="For people: what was read, and the way out."
    )


class StableStatus(_Tolerant):
    """The revision that serves."""

    revision: Annotated[str, Field(max_length=63)] = Field(description="Name of the revision.")
    version: Annotated[str, Field(max_length=63)] = Field(
        description="Its version: the hash of all but prefetch."
    )
    deployment: Annotated[str, Field(max_length=63)] = Field(description="Its Deployment or process group.")
    prefetch: Int32 = Field(description="Its prefetch.")


class RolloutStatus(_Tolerant):
    """The change under way."""

    target: Annotated[str, Field(max_length=63)] | None = Field(
        default=None, description="The revision that the spec asks for."
    )
    stage: Stage = Field(default=Stage.IDLE, description="Where the change stands. Display and resume data.")
    started_at: Timestamp | None = Field(default=None, description="When the change began.")
    progressed_at: Timestamp | None = Field(default=None, description="When the change last got further.")
    reached: Reached | None = Field(default=None, description="How far the stage was then.")
    step: Annotated[str, Field(max_length=16)] | None = Field(
        default=None,
        description="Of a canary: the step that is not finished yet, and how many there are, such as 5/12.",
    )
    attempt: Int32 | None = Field(
        default=None, description="Of a canary: how often its steps were begun, the first time included."
    )
    steps_hash: Annotated[str, Field(max_length=16)] | None = Field(
        default=None, description="Of a canary: which steps these are. Other steps begin at the first again."
    )
    step_started_at: Timestamp | None = Field(default=None, description="Of a canary: when the step began.")
    analysis: AnalysisStatus | None = Field(
        default=None, description="Of a canary: the measurement that is under way, or that did not pass."
    )
    leaving: Annotated[str, Field(max_length=63)] | None = Field(
        default=None, description="The revision that is on its way out, during the guarded stages."
    )
    reason: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Why the stage does not end yet: one stable word, as in the conditions."
    )
    evidence: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="What the broker showed at the last look that this rests on."
    )


class Role(StrEnum):
    STABLE = "Stable"
    CANARY = "Canary"
    TARGET = "Target"
    LEAVING = "Leaving"


#: Of those that fell, as many as are told apart in a status, which has a bounded size.
MOST_PLACES = 64


class FallenStatus(_Tolerant):
    """A place whose process ended without being told to."""

    place: Annotated[str, Field(max_length=320)] = Field(
        description="A container of a pod, a process of a worker, or a local worker."
    )
    restarts: Int32 = Field(description="How often.")


class RevisionStatus(_Tolerant):
    """One revision that exists."""

    name: Annotated[str, Field(max_length=63)] = Field(description="Name of the revision.")
    version: Annotated[str, Field(max_length=63)] = Field(description="Its version.")
    deployment: Annotated[str, Field(max_length=63)] = Field(description="Its Deployment or process group.")
    role: Role = Field(description="Stable, Canary, Target or Leaving.")
    replicas: Int32 = Field(description="Workers alive, those that are stopping included.")
    ready_replicas: Int32 = Field(description="Workers that are ready.")
    restarts: Int32 = Field(
        default=0,
        description="How often workers of it ended without being told to, and were started again. It never "
        "goes back while the revision is there.",
    )
    restarted_at: Timestamp | None = Field(default=None, description="When the last of them did.")
    restart_message: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Who that was, and how it ended."
    )
    fallen: Annotated[tuple[FallenStatus, ...], Field(max_length=MOST_PLACES)] = Field(
        default=(),
        description="What is summed up in restarts, for each place that a process runs in: a process that "
        "follows another there does not begin anew.",
        json_schema_extra=_keyed_by("place"),
    )
    prefetch: Int32 = Field(description="Its prefetch.")
    coroutines: Int32 | None = Field(default=None, description="Its coroutines, where known.")


class RevokedStatus(_Tolerant):
    """A version of spec.revokedVersions."""

    version: Annotated[str, Field(max_length=63)] = Field(description="As the spec has it.")
    known: bool = Field(
        description="Whether a revision of that version was ever seen here. A word that was not may be a "
        "typing mistake, or a version that is still to come: it is kept out."
    )


class BrokerStatus(_Tolerant):
    """What is known of the broker."""

    type: Annotated[str, Field(max_length=32)] = Field(description="Which member of spec.broker is set.")


class QueueWorkerStatus(_Tolerant):
    """What is. Rebuilt from the world in each pass."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Ready, Available, BrokerReachable, PlacementValid; on NATS QueueProvisioned and "
        "PriorityDrained; RegistryEmpty while a revision leaves by the guarded way; GatesPassed once an "
        "analysis of the change began; Reconciling and Stalled while true.",
        json_schema_extra=_keyed_by("type"),
    )
    observed_generation: Int64 | None = Field(
        default=None, description="The generation that the last complete pass used."
    )
    selector: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Label selector of the pods, for the scale subresource."
    )
    replicas: Int32 | None = Field(default=None, description="Workers alive over all revisions.")
    ready_replicas: Int32 | None = Field(default=None, description="Ready workers over all revisions.")
    available_replicas: Int32 | None = Field(
        default=None, description="Available workers over all revisions."
    )
    broker: BrokerStatus | None = Field(default=None, description="What is known of the broker.")
    stable: StableStatus | None = Field(
        default=None, description="The revision that serves; absent before the first."
    )
    previous: Annotated[str, Field(max_length=63)] | None = Field(
        default=None,
        description="The revision that served before the stable one. Going back to it is a rollback.",
    )
    handled_request: Annotated[str, Field(max_length=63)] | None = Field(
        default=None, description="The id of the last request that was answered."
    )
    request_ignored: Annotated[str, Field(max_length=1024)] | None = Field(
        default=None,
        description="Why the request that the spec has was not done. Absent when it was, and when there is "
        "none.",
    )
    aborted: Annotated[str, Field(max_length=63)] | None = Field(
        default=None, description="The revision that the spec asks for and that a request aborted."
    )
    rolled_back: RolledBackStatus | None = Field(
        default=None, description="What a request Rollback did, until the spec asks for another revision."
    )
    kept: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=21)] = Field(
        default=(),
        description="Revisions that a request Rollback may name, the one that served last first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    promoted: Annotated[str, Field(max_length=63)] | None = Field(
        default=None,
        description="The revision that takes over: its steps are done, or a request promoted it.",
    )
    revoked: Annotated[tuple[RevokedStatus, ...], Field(max_length=50)] = Field(
        default=(),
        description="What spec.revokedVersions has, and whether it is known.",
        json_schema_extra=_keyed_by("version"),
    )
    rollout: RolloutStatus | None = Field(default=None, description="The change under way, or Idle.")
    gates: Annotated[tuple[GateStatus, ...], Field(max_length=32)] = Field(
        default=(),
        description="What the gates found in the analyses of the last change, the oldest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    revisions: Annotated[tuple[RevisionStatus, ...], Field(max_length=20)] = Field(
        default=(), description="Each revision that exists.", json_schema_extra=_keyed_by("name")
    )

    def condition(self, type: str) -> Condition | None:
        """The condition of that type, if it is there."""
        return next((c for c in self.conditions if c.type == type), None)

    def to_body(self) -> dict[str, Any]:
        """As the API server wants it: camelCase, JSON values only, nothing that is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


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
