"""`spec.broker.nats`: where a JetStream queue is, as whom to sign in, and how the queue should be made."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from queueworker_operator.api.credentials import Authority, Certificate, Login, SecretFile, Token
from queueworker_operator.api.schema import Int32, Model, SecretName, SecretRef


class Creds(Model):
    """A credentials file in a Secret."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretName = Field(
        default="user.creds", description="Key that holds the file with JWT and seed, as nsc writes it."
    )


class NKey(Model):
    """The seed of an NKey in a Secret."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretName = Field(default="user.nk", description="Key that holds the seed, which begins with SU.")


class Credentials(Model):
    """As whom workers and the operator sign in: exactly one member."""

    token: Token | None = Field(default=None, description="By a token.")
    login: Login | None = Field(default=None, description="By a user's name and password.")
    creds: Creds | None = Field(default=None, description="By a credentials file.")
    nkey: NKey | None = Field(default=None, description="By the seed of an NKey.")


class NatsTls(Model):
    """How the encrypted connection is verified. Setting it asks for one, also with nats://."""

    ca: Authority | None = Field(
        default=None,
        description="Whose certificates are trusted instead of those that the worker's image trusts.",
    )
    certificate: Certificate | None = Field(default=None, description="What a client shows of itself.")


class Storage(StrEnum):
    FILE = "File"
    MEMORY = "Memory"


class JetStreamQueue(Model):
    """How the queue should be made. The operator makes and changes nothing: it compares, and says the command
    that does. What is left out is not compared."""

    storage: Storage | None = Field(
        default=None, description="Where messages are kept. Cannot be changed later."
    )
    replicas: Annotated[Int32, Field(ge=1, le=5)] | None = Field(
        default=None, description="Servers that keep each message."
    )
    ack_wait_seconds: Annotated[Int32, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Work without a sign of life for this long is handed out again."
    )
    max_age_seconds: Annotated[Int32, Field(ge=0, le=1_000_000_000)] | None = Field(
        default=None, description="Messages older than this are deleted, worked on or not; 0 keeps them."
    )
    max_deliver: Annotated[Int32, Field(ge=-1, le=1_000_000)] | None = Field(
        default=None,
        description="Deliveries after which the server gives a message up; -1 leaves that to the workers.",
    )
    max_ack_pending: Annotated[Int32, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Deliveries that all workers together may hold."
    )

    def options(self) -> dict[str, Any]:
        """What is set, by the names and in the values that the runtime uses."""
        values = {
            "storage": None if self.storage is None else self.storage.value.lower(),
            "replicas": self.replicas,
            "ack_wait": self.ack_wait_seconds,
            "max_age": self.max_age_seconds,
            "max_deliver": self.max_deliver or -1 if self.max_deliver is not None else None,
            "max_ack_pending": self.max_ack_pending,
        }
        return {name: value for name, value in values.items() if value is not None}

    def flags(self, leave_out: Collection[str] = ()) -> str:
        """The same as flags of `queueworker provision`, each with a space before it."""
        return "".join(
            f" --{name.replace('_', '-')} {value}"
            for name, value in self.options().items()
            if name not in leave_out
        )


class Nats(Model):
    """NATS JetStream. Exactly one of url and secretRef is set."""

    url: Annotated[str, Field(min_length=1, max_length=2048)] | None = Field(
        default=None,
        description="Where the servers are, such as nats://nats-0:4222,nats-1:4222; tls:// encrypts. "
        "A URL with a password or token belongs into secretRef.",
    )
    secret_ref: SecretRef | None = Field(default=None, description="Where the broker's URL is kept.")
    queue_namespace: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        default="utopia-queue",
        description="Whose queue it is, as its streams say in their metadata; names do not carry it, so each "
        "namespace has an account of its own. Immutable.",
    )
    credentials: Credentials | None = Field(
        default=None, description="As whom to sign in: exactly one member. Mounted into the worker as files."
    )
    tls: NatsTls | None = Field(default=None, description="How an encrypted connection is verified.")
    stream: JetStreamQueue | None = Field(
        default=None,
        description="How the queue should be made: compared, never applied; what is left out is not.",
    )

    def files(self) -> Iterator[SecretFile]:
        """The files of the directory of credentials (`worker_runtime.brokers.nats.address.DIRECTORY`)."""
        path = "spec.broker.nats.credentials"
        given = self.credentials or Credentials()
        if given.token:
            yield given.token.file(f"{path}.token")
        if given.login:
            yield from given.login.files(f"{path}.login")
        if given.creds:
            yield SecretFile("creds", given.creds.name, given.creds.key, f"{path}.creds")
        if given.nkey:
            yield SecretFile("nkey", given.nkey.name, given.nkey.key, f"{path}.nkey")
        tls = self.tls or NatsTls()
        if tls.ca:
            yield tls.ca.file("spec.broker.nats.tls.ca")
        if tls.certificate:
            yield from tls.certificate.files("spec.broker.nats.tls.certificate")
