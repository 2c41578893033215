"""Totals in a durable store, besides the broker's books: who counts them, and what is made of the answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, ValidationError

from queueworker_operator.api.credentials import Authority, Certificate, Login, SecretFile, Token
from queueworker_operator.api.schema import Int32, Model, Tolerant
from queueworker_operator.api.template import Template

#: Names the file that takes the answer, in the environment of whoever counts.
RESULT_VARIABLE = "QUEUEWORKER_RESULT_FILE"
#: An answer of so many bytes or more is not read: a kubelet cuts it there.
LONGEST_ANSWER = 4096
#: How much of what was read is shown to people.
_SHOWN = 120

_PLACEHOLDER = re.compile(r"\$([A-Za-z]+)")
_Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]


class AuditJob(Model):
    """Whoever counts the totals, once for each window."""

    template: Template = Field(
        description="The pod template of the Job. The container named audit, else the first one, writes its "
        "answer to the file that QUEUEWORKER_RESULT_FILE names, and ends with 0."
    )
    timeout_seconds: Annotated[Int32, Field(ge=5, le=86400)] = Field(
        default=300, description="Seconds that it may take, its start included."
    )


class QueryCredentials(Model):
    """As whom to ask: exactly one member."""

    token: Token | None = Field(default=None, description="By a bearer token.")
    login: Login | None = Field(default=None, description="By a user's name and password.")


class QueryTls(Model):
    """How the encrypted connection is verified."""

    ca: Authority | None = Field(
        default=None,
        description="Whose certificates are trusted instead of those that the operator's image trusts.",
    )
    certificate: Certificate | None = Field(
        default=None, description="What the operator shows of itself, where a client has to."
    )


class AuditQuery(Model):
    """A Prometheus that knows how many messages are lost."""

    url: Annotated[str, Field(min_length=1, max_length=2048)] = Field(
        description="Where it answers, without /api/v1, such as http://prometheus:9090."
    )
    query: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="An instant query whose answer is one number: how many messages of the canary are lost. "
        "$canary, $stable, $committedEver and others are filled in."
    )
    settle_seconds: Annotated[Int32, Field(ge=0, le=3600)] = Field(
        default=60,
        description="Seconds after the end of the window until it is asked: longer than it takes until what "
        "was stored is scraped.",
    )

    credentials: QueryCredentials | None = Field(
        default=None,
        description="As whom to ask: exactly one member. Secrets in the namespace of the QueueWorker.",
    )
    tls: QueryTls | None = Field(default=None, description="How an encrypted connection is verified.")

    def files(self) -> Iterator[SecretFile]:
        """What signing in and verifying take from Secrets, called as for a broker."""
        path = "prometheus.credentials"
        given = self.credentials or QueryCredentials()
        if given.token:
            yield given.token.file(f"{path}.token")
        if given.login:
            yield from given.login.files(f"{path}.login")
        tls = self.tls or QueryTls()
        if tls.ca:
            yield tls.ca.file("prometheus.tls.ca")
        if tls.certificate:
            yield from tls.certificate.files("prometheus.tls.certificate")

    def filled(self, values: Mapping[str, str]) -> str:
        """The query with each `$name` that is known replaced; all else stays as it is."""
        return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), self.query)


class Totals(Tolerant):
    """What the durable store says of a window."""

    #: Messages that should be in the store, those of them that are, and those that are not.
    expected: _Count
    counted: _Count
    lost: _Count
    #: How many are in it once more than they should be.
    duplicates: _Count

    @property
    def surplus(self) -> int:
        """What is counted beyond what is expected and what duplicates explain: something else."""
        return max(0, self.counted + self.lost - self.expected - self.duplicates)


class BadAnswerError(ValueError):
    """An answer that is none. The text says what was read."""


def shown(raw: bytes) -> str:
    """The end of what was read, on one line."""
    text = " ".join(raw.decode(errors="replace").split())
    return text if len(text) <= _SHOWN else f"...{text[-_SHOWN:]}"


def read_totals(raw: bytes, tell: Callable[[bytes], str] = shown) -> Totals:
    """From the bytes of the answer. Raises BadAnswerError, which shows an answer by `tell`."""
    if len(raw) >= LONGEST_ANSWER:
        raise BadAnswerError(f"its answer has {LONGEST_ANSWER} bytes or more")
    if not raw.strip():
        raise BadAnswerError("it left no answer")
    try:
        totals = Totals.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        wrong = f"{field}: {first['msg']}" if field else first["msg"]
        raise BadAnswerError(f"its answer is {tell(raw)} ({wrong})") from None
    if totals.expected > totals.counted + totals.lost:
        raise BadAnswerError(
            f"its answer contradicts itself: of {totals.expected} expected, {totals.counted} are counted "
            f"and only {totals.lost} lost"
        )
    return totals


def audit_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container whose answer counts: the one named `audit`, else the first."""
    containers: list[Mapping[str, Any]] = template["spec"]["containers"]
    return next((c for c in containers if c.get("name") == "audit"), containers[0])


def audit_name(resource: str, revision: str, settings: str, began_at: datetime, number: int) -> str:
    """The same for the same try of the same analysis: who begins it twice finds the first. At most 49
    characters, so that it may be a label and the beginning of a pod's name."""
    text = f"{revision} {settings} {began_at.isoformat()} {number}"
    return f"{resource}-audit-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
