"""What a spec names Secrets by, where somebody signs in or is to be trusted."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from queueworker_operator.api.schema import Model, SecretName


class Token(Model):
    """A token in a Secret."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretName = Field(default="token", description="Key in the Secret that holds the token.")


class Login(Model):
    """A Secret as of the type kubernetes.io/basic-auth."""

    name: SecretName = Field(description="Name of the Secret, with the keys username and password.")


class Authority(Model):
    """Certificates of authorities in a Secret."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretName = Field(default="ca.crt", description="Key that holds the certificates as PEM.")


@dataclass(frozen=True, slots=True)
class SecretFile:
    """One file of a directory of credentials: what it is called there, and which Secret has it."""

    file: str
    secret: str
    key: str
    #: Names the field for people.
    path: str
