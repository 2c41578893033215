"""How a change is brought out: the strategy, and the steps of a canary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from queueworker_operator.api.gates import Analysis, Gate, OnFailure
from queueworker_operator.api.schema import Int32, Model, Tolerant


class Strategy(StrEnum):
    ROLLING = "Rolling"
    CANARY = "Canary"
    MANUAL = "Manual"


class CanaryScale(Model):
    """How many workers the canary has: exactly one of replicas and percent is set."""

    replicas: Annotated[Int32, Field(ge=1, le=10000)] | None = Field(
        default=None, description="Workers of the canary."
    )
    percent: Annotated[Int32, Field(ge=1, le=100)] | None = Field(
        default=None, description="Share of spec.replicas, rounded up."
    )

    def workers(self, desired: int) -> int:
        """Workers of the canary where `desired` are wanted in all. At least one, and at least one is left to
        the stable revision; where one is wanted in all, both have one."""
        asked = self.replicas if self.replicas is not None else -(-desired * (self.percent or 0) // 100)
        return max(1, min(asked, desired - 1))


class PauseStep(Model):
    """A pause between two steps."""

    duration_seconds: Annotated[Int32, Field(ge=1, le=604800)] | None = Field(
        default=None,
        description="Seconds; left out, it lasts until the request Promote or SkipStep.",
    )


class Step(Model):
    """One step of a canary: exactly one verb."""

    set_canary_scale: CanaryScale | None = Field(
        default=None,
        description="How many workers the canary has: replicas or percent. At least one worker is left to "
        "the stable revision.",
    )
    set_prefetch: Annotated[Int32, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="From here on the canary runs with this prefetch, as a revision of its own.",
    )
    pause: PauseStep | None = Field(default=None, description="Wait with this canary.")
    analysis: Analysis | None = Field(
        default=None, description="Measure this canary beside the stable revision; only what passes goes on."
    )

    @property
    def verbs(self) -> int:
        """How many verbs it has; a valid step has one."""
        verbs = (self.set_canary_scale, self.set_prefetch, self.pause, self.analysis)
        return sum(verb is not None for verb in verbs)

    @property
    def sets(self) -> bool:
        """Whether it changes the canary. Such steps that follow each other are applied together."""
        return self.set_canary_scale is not None or self.set_prefetch is not None


class Rollout(Model):
    """How a change is brought out."""

    strategy: Strategy = Field(
        default=Strategy.ROLLING,
        description="Rolling: surge the new revision, then drain the old one. Canary: walk the steps first. "
        "Manual: wait for the request Promote first.",
    )
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=20)] | None = Field(
        default=None,
        description="What a canary goes through before it is promoted, in order. The first is "
        "setCanaryScale; those that set something and follow each other are applied together.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    gates: Annotated[tuple[Gate, ...], Field(max_length=4)] = Field(
        default=(),
        description="Settings of the gates. Each one judges every analysis; leaving one out takes a waiver.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    on_failure: OnFailure = Field(
        default=OnFailure.ABORT,
        description="What follows when a gate fails: back to the stable revision by the guarded way, or "
        "nothing until somebody requests Retry, SkipStep, Promote or Abort.",
    )
    on_inconclusive: OnFailure = Field(
        default=OnFailure.PAUSE, description="The same where a gate cannot judge."
    )


class Reached(Tolerant):
    """The furthest that a stage got. Only what goes beyond it is progress: workers that get ready for a
    moment and die again and again are none."""

    ready: Int32 = Field(
        description="The most workers of the revision that comes that were available at once."
    )
    others: Int32 = Field(description="The fewest workers of other revisions that were alive at once.")
    wanted: Int32 = Field(description="Workers of the revision that comes that were wanted then.")


class Hold(Model):
    """No change may begin."""

    reason: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="Why, for whoever wonders."
    )


def steps_hash(steps: Sequence[Step]) -> str:
    """16 hex digits: other steps, other digits. A default that is spelled out makes no difference."""
    content = [step.model_dump(mode="json", by_alias=True, exclude_none=True) for step in steps]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]
