"""`spec.broker.redis`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from queueworker_operator.api.schema import Model as _Model, SecretRef


class Topology(StrEnum):
    STANDALONE = "Standalone"
    CLUSTER = "Cluster"
    SENTINEL = "Sentinel"


class Redis(_Model):
    """Redis lists. Exactly one of url and secretRef is set."""

    url: Annotated[str, Field(min_length=1, max_length=2048)] | None = Field(
        default=None,
        description="Where the broker is, such as redis://redis:6379/0. A URL with a password belongs into "
        "secretRef.",
    )
    secret_ref: SecretRef | None = Field(default=None, description="Where the broker's URL is kept.")
    topology: Topology = Field(
        default=Topology.STANDALONE,
        description="Cluster when the server is a Redis Cluster; Sentinel when the URL is redis+sentinel:// "
        "and names the Sentinels and the primary that they watch.",
    )
    key_namespace: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        default="utopia-queue",
        description="Prefix of all keys; on a Redis Cluster with exactly one non-empty hash tag, such as "
        "{utopia-queue}. Immutable.",
    )
