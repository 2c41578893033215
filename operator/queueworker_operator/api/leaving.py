"""How a revision leaves for good, and how the whole resource does."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from queueworker_operator.api.schema import Int32, Model


class Rollback(Model):
    """How a revision leaves for good."""

    quiet_seconds: Annotated[Int32, Field(ge=3, le=3600)] = Field(
        default=5,
        description="Seconds for which the broker must show nothing reserved, staged or owned before the "
        "last worker that could recover it is stopped. Longer than QUEUEWORKER_BLOCK_SECONDS.",
    )
    drain_deadline_seconds: Annotated[Int32, Field(ge=1, le=604800)] = Field(
        default=3600,
        description="Seconds that the work of a leaving revision may take to be finished or recovered before "
        "Stalled says DrainOverdue; nothing is forced then. At least twice quietSeconds is used.",
    )
    keep_fences_seconds: Annotated[Int32, Field(ge=1, le=31536000)] = Field(
        default=86400,
        description="Seconds for which the fence on a revision that is gone stays on the broker: longer than "
        "a worker of it may be cut off, stand still and come back.",
    )


class Sunset(Model):
    """What stays of revisions that served."""

    keep_versions: Annotated[Int32, Field(ge=1, le=20)] = Field(
        default=3,
        description="Revisions that are kept besides the one that serves, the last first, to go back to when "
        "their Deployments are gone.",
    )


class DeletionPolicy(StrEnum):
    DRAIN = "Drain"
    ORPHAN = "Orphan"


class Deletion(Model):
    """What becomes of the workers when the resource is deleted."""

    policy: DeletionPolicy = Field(
        default=DeletionPolicy.DRAIN,
        description="Drain: every revision is fenced, drained and retired by the guarded way, then the "
        "resource goes. Orphan: the workers live on, and belong to the next QueueWorker of this name. May be "
        "changed while the resource is being deleted.",
    )
