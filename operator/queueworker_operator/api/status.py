"""`status` of a QueueWorker: what is, as the last pass saw it. What is wanted is in `types`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from queueworker_operator.api.gates import AnalysisStatus, GateStatus
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.request import RolledBackStatus
from queueworker_operator.api.rollout import Reached
from queueworker_operator.api.schema import Int32, Int64, Timestamp, Tolerant, keyed_by


class Condition(Tolerant):
    """metav1.Condition."""

    type: Annotated[str, Field(max_length=316)] = Field(description="What the condition is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: Int64 = Field(default=0, description="The generation that the condition is about.")
    last_transition_time: Timestamp = Field(description="When the status last changed.")
    reason: Annotated[str, Field(min_length=1, max_length=1024)] = Field(description="One stable word.")
    message: Annotated[str, Field(max_length=32768)] = Field(
        description="For people: what was read, and the way out."
    )


class StableStatus(Tolerant):
    """The revision that serves."""

    revision: Annotated[str, Field(max_length=63)] = Field(description="Name of the revision.")
    version: Annotated[str, Field(max_length=63)] = Field(
        description="Its version: the hash of all but prefetch."
    )
    deployment: Annotated[str, Field(max_length=63)] = Field(description="Its Deployment or process group.")
    prefetch: Int32 = Field(description="Its prefetch.")


class RolloutStatus(Tolerant):
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


class FallenStatus(Tolerant):
    """A place whose process ended without being told to."""

    place: Annotated[str, Field(max_length=320)] = Field(
        description="A container of a pod, a process of a worker, or a local worker."
    )
    restarts: Int32 = Field(description="How often.")


class RevisionStatus(Tolerant):
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
        json_schema_extra=keyed_by("place"),
    )
    prefetch: Int32 = Field(description="Its prefetch.")
    coroutines: Int32 | None = Field(default=None, description="Its coroutines, where known.")


class RevokedStatus(Tolerant):
    """A version of spec.revokedVersions."""

    version: Annotated[str, Field(max_length=63)] = Field(description="As the spec has it.")
    known: bool = Field(
        description="Whether a revision of that version was ever seen here. A word that was not may be a "
        "typing mistake, or a version that is still to come: it is kept out."
    )


class BrokerStatus(Tolerant):
    """What is known of the broker."""

    type: Annotated[str, Field(max_length=32)] = Field(description="Which member of spec.broker is set.")


class QueueWorkerStatus(Tolerant):
    """What is. Rebuilt from the world in each pass."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Ready, Available, BrokerReachable, PlacementValid; on NATS QueueProvisioned and "
        "PriorityDrained; RegistryEmpty while a revision leaves by the guarded way; GatesPassed once an "
        "analysis of the change began; Reconciling and Stalled while true.",
        json_schema_extra=keyed_by("type"),
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
        json_schema_extra=keyed_by("version"),
    )
    rollout: RolloutStatus | None = Field(default=None, description="The change under way, or Idle.")
    gates: Annotated[tuple[GateStatus, ...], Field(max_length=32)] = Field(
        default=(),
        description="What the gates found in the analyses of the last change, the oldest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    revisions: Annotated[tuple[RevisionStatus, ...], Field(max_length=20)] = Field(
        default=(), description="Each revision that exists.", json_schema_extra=keyed_by("name")
    )

    def condition(self, type: str) -> Condition | None:
        """The condition of that type, if it is there."""
        return next((c for c in self.conditions if c.type == type), None)

    def to_body(self) -> dict[str, Any]:
        """As the API server wants it: camelCase, JSON values only, nothing that is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
