"""What a person asks of a change that is under way: once, by an id, in the spec."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from queueworker_operator.api.schema import Model


class RequestAction(StrEnum):
    ABORT = "Abort"
    RETRY = "Retry"
    PROMOTE = "Promote"
    SKIP_STEP = "SkipStep"
    ROLLBACK = "Rollback"


class Request(Model):
    """Done once for each id, which status.handledRequest then names."""

    id: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?$")
    ] = Field(description="Another one for each request, such as a date and a number.")
    action: RequestAction = Field(
        description="Abort takes the change back to the stable revision by the guarded way and leaves the "
        "rest of the spec as it is. Retry brings out after all what was aborted or rolled back. Promote ends "
        "the steps of a canary, or the waiting of the strategy Manual. SkipStep ends a step that waits. "
        "Rollback goes back to a kept revision by the guarded way, until the spec asks for another one."
    )
    revision: Annotated[str, Field(min_length=1, max_length=63)] | None = Field(
        default=None,
        description="Of Rollback: one of status.kept. Left out: the stable revision while a change is under "
        "way, else the one that served before.",
    )


class RolledBackStatus(Model):
    """A request took the resource back."""

    model_config = ConfigDict(extra="ignore")

    asked: Annotated[str, Field(max_length=63)] = Field(description="The revision that the spec asks for.")
    revision: Annotated[str, Field(max_length=63)] = Field(
        description="The kept revision that serves in its place."
    )
