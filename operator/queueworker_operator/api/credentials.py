"""What a spec names Secrets by, where somebody signs in or is to be trusted."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from queueworker_operator.api.schema import Model, SecretName


@dataclass(frozen=True, slots=True)
class SecretFile:
    """One file of a directory of credentials: what it is called there, and which Secret has it."""

    file: str
    secret: str
    key: str
    #: Names the field for people.
    path: str


class Token(Model):
    """A token in a Secret."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretName = Field(default="token", description="Key in the Secret that holds the token.")

    def file(self, path: str) -> SecretFile:
        """`path` names the field."""
        return SecretFile("token", self.name, self.key, path)


class Login(Model):
    """A Secret as of the type kubernetes.io/basic-auth."""

    name: SecretName = Field(description="Name of the Secret, with the keys username and password.")

    def files(self, path: str) -> tuple[SecretFile, ...]:
        """`path` names the field."""
        return tuple(SecretFile(key, self.name, key, path) for key in ("username", "password"))


class Authority(Model):
    """Certificates of authorities in a Secret."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretName = Field(default="ca.crt", description="Key that holds the certificates as PEM.")

    def file(self, path: str) -> SecretFile:
        """`path` names the field."""
        return SecretFile("ca.crt", self.name, self.key, path)


class Certificate(Model):
    """A Secret as of the type kubernetes.io/tls."""

    name: SecretName = Field(description="Name of the Secret, with the keys tls.crt and tls.key.")

    def files(self, path: str) -> tuple[SecretFile, ...]:
        """`path` names the field."""
        return tuple(SecretFile(key, self.name, key, path) for key in ("tls.crt", "tls.key"))
