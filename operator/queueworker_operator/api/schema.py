"""What every model of the resource is made of: strictness, spelling of names, whole numbers, references."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

Int32 = Annotated[int, Field(strict=True, json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(strict=True, json_schema_extra={"format": "int64"})]

#: Name of a Secret, or of a key in one.
SecretName = Annotated[str, Field(min_length=1, max_length=253)]


class Model(BaseModel):
    """camelCase outside, immutable, and no field that this version does not know."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", use_enum_values=False
    )


class Tolerant(Model):
    """Written by us or by the API server, perhaps by a newer one: unknown fields are not errors."""

    model_config = ConfigDict(extra="ignore")


def whole_seconds(moment: datetime) -> datetime:
    """In UTC, without a fraction: what a status can hold."""
    return moment.astimezone(UTC).replace(microsecond=0)


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


#: Whole seconds in UTC, as Kubernetes writes them, so that what was written equals what is read back.
Timestamp = Annotated[datetime, AfterValidator(whole_seconds), PlainSerializer(_rfc3339, return_type=str)]


def keyed_by(field: str) -> JsonDict:
    """A list whose entries server-side apply tells apart by that field."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


class SecretRef(Model):
    """One key of a Secret in the namespace of the QueueWorker."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretName = Field(default="url", description="Key in the Secret that holds the broker's URL.")
