"""What the next `queueworker up` has to know of a change that is brought out in steps: who served, and how
far it was. On a cluster the Deployments and the status outlive an operator; here up.json does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from queueworker_operator.api.kept import Kept, kept_from
from queueworker_operator.api.revisions import Revision, revision_of
from queueworker_operator.api.types import QueueWorkerSpec, QueueWorkerStatus


@dataclass(frozen=True, slots=True)
class Remembered:
    """One resource as an earlier `up` left it."""

    generation: int
    status: QueueWorkerStatus
    #: The stable revision, with all that is needed to start workers of it.
    stable: Revision
    #: A spec that leads to it.
    spec: dict[str, Any]


def remembered(state: Mapping[str, Any], name: str) -> Remembered | None:
    """What up.json says of a resource; None where it names no stable revision that can be made again."""
    try:
        resource = state["resources"][name]
        generation = int(resource["spec_generation"])
        status = QueueWorkerStatus.model_validate(resource["status"])
        spec = dict(resource["stable_spec"])
        stable = revision_of(name, QueueWorkerSpec.model_validate(spec))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, ValidationError):
        return None
    if status.stable is None or status.stable.revision != stable.name:
        return None
    return Remembered(generation, status, stable, spec)


def kept_in(state: Mapping[str, Any], name: str) -> dict[str, Kept]:
    """The revisions that up.json keeps of a resource, as far as they can be read."""
    try:
        rows = [
            (one["revision"], int(one["number"]), one["spec"]) for one in state["resources"][name]["kept"]
        ]
    except (KeyError, TypeError, ValueError, OverflowError):
        return {}
    found = (kept_from(name, *row) for row in rows)
    return {one.revision.name: one for one in found if one is not None}
