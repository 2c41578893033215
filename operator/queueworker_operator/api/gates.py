"""What an analysis of a canary measures and judges: its gates, and what the status keeps of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from queueworker_operator.api.audits import AuditJob, AuditQuery
from queueworker_operator.api.schema import Int32, Int64, Model, Timestamp, Tolerant

#: Where a gate's entry says nothing else.
MIN_PERCENT_OF_STABLE = 90
MAX_PERCENT_OF_STABLE = 120
MIN_SAMPLES = 100


class GateType(StrEnum):
    QUEUE_PROGRESS = "QueueProgress"
    CPU_EFFICIENCY = "CPUEfficiency"
    LATENCY = "Latency"
    USAGE_ACCOUNTING = "UsageAccounting"


class Verdict(StrEnum):
    """What a gate found. Only Passed and Waived lead on."""

    PASSED = "Passed"
    WAIVED = "Waived"
    FAILED = "Failed"
    #: Too little was seen, or what was seen cannot be compared.
    INCONCLUSIVE = "Inconclusive"
    #: Nobody could look.
    ERROR = "Error"


class Gate(Model):
    """Settings of one gate; each gate that is not named has the defaults."""

    type: GateType = Field(description="Which gate.")
    waiver: Annotated[str, Field(min_length=10, max_length=256)] | None = Field(
        default=None,
        description="Why this gate is left out, in 10 to 256 characters. It has no limits then.",
    )
    min_percent_of_stable: Annotated[Int32, Field(ge=0, le=1000)] | None = Field(
        default=None,
        description="Of QueueProgress: what one worker of the canary commits at least while work waits, "
        f"compared with one of the stable revision, in percent; {MIN_PERCENT_OF_STABLE} when left out.",
    )
    max_percent_of_stable: Annotated[Int32, Field(ge=1, le=10000)] | None = Field(
        default=None,
        description="Of CPUEfficiency: CPU time for each settled message; of Latency: how long messages wait "
        "and take. At most so much of the stable revision's, in percent; "
        f"{MAX_PERCENT_OF_STABLE} when left out.",
    )
    min_samples: Annotated[Int32, Field(ge=1, le=1000000)] = Field(
        default=MIN_SAMPLES, description="With fewer settled messages on either side it is Inconclusive."
    )
    failure_limit: Annotated[Int32, Field(ge=0, le=100)] = Field(
        default=0, description="How often it may fail and be measured again."
    )
    error_limit: Annotated[Int32, Field(ge=0, le=100)] = Field(
        default=4, description="How often it may be impossible to look before it is Inconclusive."
    )
    job: AuditJob | None = Field(
        default=None,
        description="Of UsageAccounting: besides the broker's books, a Job counts the totals in a durable "
        "store when the window is over.",
    )
    prometheus: AuditQuery | None = Field(
        default=None,
        description="Of UsageAccounting: besides the broker's books, a Prometheus says what is lost when the "
        "window is over.",
    )

    @property
    def audited(self) -> bool:
        """Whether totals are counted for it, besides the broker's books."""
        return self.waiver is None and (self.job is not None or self.prometheus is not None)


class Analysis(Model):
    """Measure the canary beside the stable revision, and let the gates judge."""

    duration_seconds: Annotated[Int32, Field(ge=5, le=604800)] = Field(
        description="Seconds that are measured, after a warm-up of a tenth of it (1 to 30 s)."
    )
    gates: Annotated[tuple[GateType, ...], Field(min_length=1, max_length=4)] | None = Field(
        default=None,
        description="Only these gates; all of them when left out.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    force_failure: bool = Field(
        default=False,
        description="Kill one worker of the canary at the beginning, without any time to stop: "
        "UsageAccounting has to come out even then.",
    )

    @field_validator("gates")
    @classmethod
    def _once(cls, gates: tuple[GateType, ...] | None) -> tuple[GateType, ...] | None:
        twice = sorted({one for one in gates or () if (gates or ()).count(one) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is named more than once: name each gate once")
        return gates

    @property
    def warm_up_seconds(self) -> int:
        """Seconds at the beginning that nothing is concluded from."""
        return min(30, max(1, self.duration_seconds // 10))

    def chosen(self, settings: Sequence[Gate]) -> tuple[Gate, ...]:
        """The gates that judge, each with its settings, in the order of their types."""
        given = {gate.type: gate for gate in settings}
        wanted = self.gates or tuple(GateType)
        return tuple(given.get(type_, Gate(type=type_)) for type_ in GateType if type_ in wanted)

    def audited(self, settings: Sequence[Gate]) -> Gate | None:
        """The gate for which totals are counted when the window is over; None where none asks for it."""
        return next((one for one in self.chosen(settings) if one.audited), None)

    def fingerprint(self, settings: Sequence[Gate]) -> str:
        """16 hex digits: other limits, other digits."""
        content = [one.model_dump(mode="json", by_alias=True) for one in (self, *self.chosen(settings))]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


class OnFailure(StrEnum):
    ABORT = "Abort"
    PAUSE = "Pause"


class Counts(Tolerant):
    """What the broker's books said of one revision. They only grow, but for `unbooked`."""

    claimed: Int64 = Field(default=0, description="Deliveries that its workers took.")
    committed: Int64 = Field(default=0, description="Committed.")
    rejected: Int64 = Field(default=0, description="Rejected.")
    released: Int64 = Field(default=0, description="Given back before they began.")
    taken_over: Int64 = Field(default=0, description="Taken over from workers that died or fell silent.")
    poisoned: Int64 = Field(default=0, description="Could not be decoded.")
    unbooked: Int64 = Field(
        default=0, description="Claimed and not ended by the books, less what is owned: 0 where they balance."
    )


class BooksStatus(Tolerant):
    """One reading of the broker's books."""

    at: Timestamp = Field(description="When it was read.")
    server: Annotated[str, Field(max_length=253)] = Field(default="", description="The server that was read.")
    canary: Counts = Field(description="Of the arm that is measured.")
    stable: Counts = Field(description="Of the stable revision.")
    settled: Int64 = Field(default=0, description="Messages that all workers of the queue settled.")
    server_cpu_ms: Int64 | None = Field(
        default=None,
        description="Milliseconds of CPU that the server has used; absent where it does not say.",
    )


class FoundStatus(Tolerant):
    """What one gate found of a window."""

    type: GateType = Field(description="The gate.")
    verdict: Verdict = Field(description="Passed, Waived, Failed, Inconclusive or Error.")
    message: Annotated[str, Field(max_length=512)] = Field(description="What was read, and the limit.")
    samples: Int64 = Field(default=0, description="Settled messages of the canary that it rests on.")
    percent: Int32 | None = Field(
        default=None,
        description="What it measured, in percent of the stable revision's; where it compares so.",
    )
    limit: Int32 | None = Field(
        default=None, description="At least (QueueProgress) or at most (CPUEfficiency) so many percent pass."
    )


class AuditStatus(Tolerant):
    """Who counts the totals of a window that is over."""

    name: Annotated[str, Field(max_length=63)] = Field(
        description="Name of the Job, or of the question to a Prometheus."
    )
    due_at: Timestamp = Field(description="When it may be begun.")
    ended: BooksStatus = Field(description="The books at the end of the window.")


class AnalysisStatus(Tolerant):
    """One measurement. What is not in it is read anew."""

    revision: Annotated[str, Field(max_length=63)] = Field(description="The arm that is measured.")
    settings: Annotated[str, Field(max_length=16)] = Field(
        description="Which duration and limits hold. With others it begins anew."
    )
    began: BooksStatus = Field(description="The books at its beginning; zeros where the broker keeps none.")
    began_at: Timestamp = Field(description="When it began.")
    killed_at: Timestamp | None = Field(
        default=None, description="When a worker of the canary was killed, with forceFailure."
    )
    measured: BooksStatus | None = Field(default=None, description="The books after the warm-up.")
    failures: Int32 = Field(default=0, description="How often it failed and was measured again.")
    errors: Int32 = Field(default=0, description="How often nobody could look at its end.")
    found: Annotated[tuple[FoundStatus, ...], Field(max_length=4)] = Field(
        default=(),
        description="What the gates found, while the totals of UsageAccounting are counted.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    audit: AuditStatus | None = Field(
        default=None, description="Who counts the totals of the window, until that is judged."
    )
    verdict: Verdict | None = Field(default=None, description="Absent while it is measured.")
    message: Annotated[str, Field(max_length=1024)] | None = Field(
        default=None, description="Which gate did not pass, and what it found."
    )


class GateStatus(FoundStatus):
    """What one gate found of one arm."""

    target: Annotated[str, Field(max_length=63)] = Field(description="The change that was analysed.")
    revision: Annotated[str, Field(max_length=63)] = Field(description="The arm that was measured.")
    arm: Int32 = Field(description="Its prefetch.")
    attempt: Int32 = Field(description="The attempt of the change.")
    step: Annotated[str, Field(max_length=16)] = Field(description="The step, such as 5/12.")
    at: Timestamp = Field(description="When it was judged.")

    @property
    def analysis(self) -> tuple[str, int, str, datetime]:
        """Equal for those that judged together."""
        return self.target, self.attempt, self.step, self.at


def newest(gates: Sequence[GateStatus]) -> tuple[GateStatus, ...]:
    """Those of the last analysis that was judged."""
    return tuple(one for one in gates if one.analysis == gates[-1].analysis)
