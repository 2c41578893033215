"""The pod template: kept raw, with only what the operator needs checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

_CONTAINER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name", "image"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 63},
        "image": {"type": "string", "minLength": 1, "maxLength": 1024},
    },
    "x-kubernetes-preserve-unknown-fields": True,
}

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "spec": {
            "type": "object",
            "required": ["containers"],
            "properties": {
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 32,
                    "items": _CONTAINER_SCHEMA,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
                "terminationGracePeriodSeconds": {"type": "integer", "format": "int64", "minimum": 0},
            },
            "x-kubernetes-preserve-unknown-fields": True,
        },
    },
}


def _check(template: dict[str, Any]) -> dict[str, Any]:
    """The same as the schema, for a body that did not pass through an API server."""
    extra = sorted(set(template) - {"metadata", "spec"})
    if extra:
        raise ValueError(f"has {', '.join(extra)}: only metadata and spec belong into a pod template")
    metadata, spec = template.get("metadata", {}), template.get("spec")
    if not isinstance(metadata, dict):
        raise ValueError("metadata must be a mapping with labels and annotations")
    if not isinstance(spec, dict):
        raise ValueError("spec is required: add spec.containers with a container")
    containers = spec.get("containers")
    if not isinstance(containers, list) or not 1 <= len(containers) <= 32:
        raise ValueError("spec.containers is required: list 1 to 32 containers")
    for index, container in enumerate(containers):
        for key in ("name", "image"):
            value = container.get(key) if isinstance(container, dict) else None
            if not isinstance(value, str) or not value:
                raise ValueError(f"spec.containers[{index}].{key} is required: add it")
    names = [container["name"] for container in containers]
    if len(set(names)) != len(names):
        raise ValueError("spec.containers has two containers of one name: rename one")
    labels = metadata.get("labels")
    if labels is not None and not isinstance(labels, dict):
        raise ValueError("metadata.labels must be a mapping, such as {team: billing}")
    _check_list(spec, "spec", "initContainers")
    for index, container in enumerate(containers):
        for key in ("env", "ports"):
            _check_list(container, f"spec.containers[{index}]", key)
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if not isinstance(grace, int) or isinstance(grace, bool) or grace < 0:
        raise ValueError("spec.terminationGracePeriodSeconds must be a whole number of seconds")
    return template


def _check_list(owner: dict[str, Any], path: str, key: str) -> None:
    """What the operator reads entry by entry must be a list of mappings; left out and null are fine."""
    entries = owner.get(key)
    if entries is None:
        return
    if not isinstance(entries, list):
        raise ValueError(f"{path}.{key} must be a list of entries with a name: write it as a list")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("name", ""), str):
            raise ValueError(
                f"{path}.{key}[{index}] is {entry!r:.60}: write an entry with keys, as a pod template has it"
            )


#: A raw pod template: what the user wrote, byte for byte as far as JSON goes.
Template = Annotated[dict[str, Any], AfterValidator(_check), WithJsonSchema(_SCHEMA)]

#: Set by the operator in each worker's container; a template may not set them.
MANAGED_VARIABLES = frozenset(
    f"QUEUEWORKER_{name}"
    for name in (
        "BROKER_URL",
        "NAMESPACE",
        "NATS_CREDENTIALS",
        "QUEUE",
        "COROUTINES",
        "PREFETCH",
        "REVISION",
        "SHUTDOWN_SECONDS",
        "ADMIN_PORT",
    )
)


def worker_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that runs the worker: the one named `worker`, else the first."""
    containers: list[Mapping[str, Any]] = template["spec"]["containers"]
    return next((c for c in containers if c.get("name") == "worker"), containers[0])


def termination_grace_seconds(template: Mapping[str, Any], shutdown_seconds: int) -> int:
    """What the template says, else shutdownSeconds and 15 s more: the pod outlives the worker's deadline."""
    given = template["spec"].get("terminationGracePeriodSeconds")
    return shutdown_seconds + 15 if given is None else int(given)
