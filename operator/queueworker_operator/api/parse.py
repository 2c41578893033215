"""From a body to a resource.

The same rules hold for a file in local mode as for the API server, with the same messages. A body that got
past the API server with something that this operator cannot use is reported the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from queueworker_operator.api.leaving import Deletion, DeletionPolicy
from queueworker_operator.api.names import GROUP_VERSION, KIND
from queueworker_operator.api.rules import broken_rules, broken_transitions
from queueworker_operator.api.types import (
    InvalidQueueWorker,
    Metadata,
    Problem,
    QueueWorker,
    QueueWorkerSpec,
    QueueWorkerStatus,
)


class NotAQueueWorkerError(ValueError):
    """The body has no readable metadata, or another apiVersion or kind. The text says what was read."""


def parse(body: Mapping[str, Any]) -> QueueWorker | InvalidQueueWorker:
    """Read a body. Raises NotAQueueWorkerError when it is not even a QueueWorker with a name.

    A status that cannot be read (written by hand, or by a much newer operator) counts as absent: the next
    pass rebuilds it from the world.
    """
    api_version, kind = body.get("apiVersion"), body.get("kind")
    if (api_version, kind) != (GROUP_VERSION, KIND):
        raise NotAQueueWorkerError(
            f"expected apiVersion {GROUP_VERSION} and kind {KIND}, read {api_version!r} and {kind!r}"
        )
    try:
        metadata = Metadata.model_validate(body.get("metadata") or {})
    except ValidationError as error:
        texts = "; ".join(str(p) for p in _problems(error, "metadata"))
        raise NotAQueueWorkerError(f"metadata cannot be read: {texts}") from None
    try:
        status = QueueWorkerStatus.model_validate(body.get("status") or {})
    except ValidationError:
        status = QueueWorkerStatus()
    try:
        spec = QueueWorkerSpec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        policy = _deletion_policy(body.get("spec"))
        return InvalidQueueWorker(metadata, status, _problems(error, "spec"), policy)
    problems = broken_rules(metadata.name, spec)
    if problems:
        return InvalidQueueWorker(metadata, status, problems, spec.deletion_policy)
    return QueueWorker(metadata, spec, status)


def parse_change(old: QueueWorker, body: Mapping[str, Any]) -> QueueWorker | InvalidQueueWorker:
    """Read a body that replaces an accepted one: what may not change is refused as the API server would."""
    new = parse(body)
    if isinstance(new, InvalidQueueWorker):
        return new
    problems = broken_transitions(old.spec, new.spec)
    if problems:
        return InvalidQueueWorker(new.metadata, new.status, problems, new.spec.deletion_policy)
    return new


def _deletion_policy(spec: Any) -> DeletionPolicy:
    """What can be read of it in a spec that cannot be used."""
    try:
        return Deletion.model_validate(spec["deletion"]).policy
    except (KeyError, TypeError, ValidationError):
        return DeletionPolicy.DRAIN


def _problems(error: ValidationError, root: str) -> tuple[Problem, ...]:
    return tuple(_problem(entry, root) for entry in error.errors(include_url=False))


#: What pydantic would say in words of Python.
_TYPES = {
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "enum": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
}


#: Fields whose value may be a secret, also where it was meant to name one.
_SECRETS = ("url", "secretRef", "credentials", "tls")


def may_be_secret(path: str) -> bool:
    """Whether the value that was read there is not to be shown."""
    return any(part in _SECRETS for part in path.split("."))


def _path(root: str, parts: Sequence[object]) -> str:
    """Such as `spec.rollout.steps[3].pause`."""
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _problem(entry: Any, root: str) -> Problem:
    path = _path(root, entry["loc"])
    match entry["type"]:
        case "missing":
            return Problem(path, "is required: add it")
        case "extra_forbidden":
            return Problem(path, "is not a field of this version: remove it, or check its spelling")
        case "value_error":
            return Problem(path, str(entry["ctx"]["error"]))
        case type_:
            known = _TYPES.get(type_)
            text = known.format(**entry.get("ctx", {})) if known else entry["msg"]
            read = "" if may_be_secret(path) else f" (read {entry['input']!r:.80})"
            return Problem(path, f"{text}{read}")
