"""What a revision is, and how it is named.

A *version* is everything that ends up in a pod except prefetch; a *revision* is a version and its prefetch.
The name follows from the content: the same spec leads to the same Deployment, so going back re-uses it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queueworker_operator.api.types import Broker, Protocol, QueueWorkerSpec, StableStatus

#: Changes only when the meaning of the hash changes; then every version gets a new name and rolls once.
_SCHEME = "h1"


@dataclass(frozen=True, slots=True)
class Revision:
    """Everything that is needed to start workers of one revision. Immutable."""

    #: `<version>-p<prefetch>`
    name: str
    #: `h1-` and 8 hex digits
    version: str
    #: `<QueueWorker>-<8 hex digits>-p<prefetch>`: Deployment or process group, 47 characters at most
    deployment: str
    queue: str
    broker: Broker
    coroutines: int
    prefetch: int
    shutdown_seconds: int
    #: Raw, as the user wrote it; not to be changed.
    template: Mapping[str, Any]
    protocol: Protocol = Protocol.RESERVATION

    def as_stable(self) -> StableStatus:
        """As the status names the revision that serves."""
        return StableStatus(
            revision=self.name, version=self.version, deployment=self.deployment, prefetch=self.prefetch
        )


def canonical_json(value: Any) -> bytes:
    """One spelling for equal JSON values: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def broker_identity(broker: Broker) -> str:
    """Which broker a check was about: equal for equal `spec.broker`. Holds no secret."""
    return hashlib.sha256(canonical_json(_settings(broker))).hexdigest()[:16]


def broker_place(broker: Broker) -> str:
    """Where workers consume: equal for the same URL or Secret, and the same namespace. Holds no secret."""
    secret = broker.secret_ref
    return place_of(broker.url, (secret.name, secret.key) if secret else None, broker.namespace)


def place_of(url: str | None, secret: tuple[str, str] | None, namespace: str) -> str:
    """`broker_place` of what a child has of it: the URL, or name and key of the Secret."""
    return hashlib.sha256(canonical_json([url, secret, namespace])).hexdigest()[:16]


def version_of(spec: QueueWorkerSpec) -> str:
    """`h1-` and 8 hex digits over the raw template and all else that goes into pods, except prefetch."""
    content = {
        "broker": _settings(spec.broker, exclude={"nats": {"stream"}}),
        "coroutines": spec.coroutines,
        "queue": spec.queue.name,
        "shutdownSeconds": spec.shutdown_seconds,
        "template": spec.template,
    }
    # Only where it differs from the default, as in `_settings`.
    if spec.protocol is not Protocol.RESERVATION:
        content["protocol"] = spec.protocol.value
    return f"{_SCHEME}-{hashlib.sha256(canonical_json(content)).hexdigest()[:8]}"


def revision_name(version: str, prefetch: int) -> str:
    """`<version>-p<prefetch>`, from two labels of a child."""
    return f"{version}-p{prefetch}"


def revision_of(worker: str, spec: QueueWorkerSpec, prefetch: int | None = None) -> Revision:
    """The revision that a spec asks for, or the same version with another prefetch. `worker` is the
    QueueWorker's name."""
    version = version_of(spec)
    if prefetch is None:
        prefetch = spec.effective_prefetch
    return Revision(
        name=revision_name(version, prefetch),
        version=version,
        deployment=f"{worker}-{version.removeprefix(_SCHEME + '-')}-p{prefetch}",
        queue=spec.queue.name,
        broker=spec.broker,
        coroutines=spec.coroutines,
        prefetch=prefetch,
        shutdown_seconds=spec.shutdown_seconds,
        template=spec.template,
        protocol=spec.protocol,
    )


def arms_of(worker: str, spec: QueueWorkerSpec) -> tuple[Revision, ...]:
    """The other revisions that the steps of a canary go through, each once."""
    settings = dict.fromkeys(step.set_prefetch for step in spec.steps if step.set_prefetch is not None)
    settings.pop(spec.effective_prefetch, None)
    return tuple(revision_of(worker, spec, prefetch) for prefetch in settings)


def _settings(broker: Broker, exclude: Any = None) -> dict[str, Any]:
    # Without defaults: a field that a later version adds must not rename every revision that does not use it.
    return broker.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=exclude)
