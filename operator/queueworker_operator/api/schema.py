"""What every model of the resource is made of: strictness, spelling of names, whole numbers, references."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Int32 = Annotated[int, Field(strict=True, json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(strict=True, json_schema_extra={"format": "int64"})]

#: Name of a Secret, or of a key in one.
SecretName = Annotated[str, Field(min_length=1, max_length=253)]


class Model(BaseModel):
    """camelCase outside, immutable, and no field that this version does not know."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", use_enum_values=False
    )


class SecretRef(Model):
    """One key of a Secret in the namespace of the QueueWorker."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretName = Field(default="url", description="Key in the Secret that holds the broker's URL.")
