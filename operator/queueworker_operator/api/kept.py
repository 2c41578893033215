"""Revisions that served, with all that is needed to start workers of them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from queueworker_operator.api.revisions import Revision, revision_of
from queueworker_operator.api.types import QueueWorkerSpec

#: What only concerns how changes are brought out.
_LEFT_OUT = {
    *("rollout", "request", "hold", "paused", "revoked_versions", "rollback", "deletion", "sunset"),
    *("prefetch", "replicas"),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """One revision that served once."""

    revision: Revision
    #: Grows each time that a revision begins to serve: the highest served last.
    number: int
    #: A spec that leads to it.
    spec: Mapping[str, Any]


def to_kept(spec: QueueWorkerSpec, revision: Revision) -> dict[str, Any]:
    """A spec that leads to this revision, which is one of its own."""
    kept = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_LEFT_OUT)
    return kept | {"prefetch": revision.prefetch}


def kept_from(worker: str, name: str, number: int, spec: object) -> Kept | None:
    """What was kept under the name of a revision; None where it does not lead to that revision any more."""
    try:
        content = dict(spec)  # type: ignore[call-overload]
        revision = revision_of(worker, QueueWorkerSpec.model_validate(content))
    except (TypeError, ValueError, ValidationError):
        return None
    return Kept(revision, number, content) if revision.name == name else None
