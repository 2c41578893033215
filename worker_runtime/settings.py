"""Every setting of a worker process: one list, by environment variable or by flag of `queueworker run`.

The operator writes the same variables into the pods (and local processes) that it starts, so this list is
also the interface between the two halves. A flag wins over a variable, a variable over the code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from worker_runtime.brokers.nats.address import with_credentials


class SettingsError(ValueError):
    """A setting cannot be used. The text names the variable, what was read and what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Values are validated; durations are in seconds."""

    broker_url: str = "redis://127.0.0.1:6379/0"
    namespace: str = "utopia-queue"
    nats_credentials: str = ""
    #: Only this queue is consumed; empty means every job of the app.
    queue: str = ""
    #: Override what the code says for `queue` (or for the only job of the app). None leaves the code's value.
    coroutines: int | None = None
    prefetch: int | None = None
    revision: str = "local"
    processes: int = 1
    shutdown_seconds: float = 30.0
    expiry_seconds: float = 60.0
    block_seconds: float = 2.0
    job_ttl_seconds: float = 0.0
    #: None leaves what the code says of each job.
    max_takeovers: int | None = None
    commit_timeout_seconds: float | None = None
    #: 0 turns the admin endpoints off.
    admin_port: int = 0
    admin_host: str = "0.0.0.0"
    log_format: str = "auto"
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class Variable:
    """One documented setting: its name, the field it sets, its parser and a line of help."""

    name: str
    field: str
    parse: Callable[[str], Any]
    help: str


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("must be 1 or more")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError("must be a port from 0 to 65535")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e7:
        raise ValueError("must be a number of seconds above 0")
    return value


def _seconds_or_zero(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError("must be a number of seconds, or 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("must be 0 or more")
    return value


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError("must be one of " + ", ".join(allowed))
        return text

    return parse


def _word(text: str) -> str:
    if not text or any(c.isspace() for c in text):
        raise ValueError("must be one word without spaces")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be UTF-8") from None
    return text


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "QUEUEWORKER_BROKER_URL",
        "broker_url",
        _word,
        "where the queue lives: redis://, redis+cluster:// or redis+sentinel:// (rediss for TLS), nats:// or tls://",
    ),
    Variable(
        "QUEUEWORKER_NAMESPACE", "namespace", _word, "prefix of all keys; on Redis Cluster with a {hash tag}"
    ),
    Variable(
        "QUEUEWORKER_NATS_CREDENTIALS",
        "nats_credentials",
        _word,
        "directory with creds, nkey, token, or username and password; ca.crt, tls.crt and tls.key for TLS",
    ),
    Variable("QUEUEWORKER_QUEUE", "queue", _word, "consume only this queue"),
    Variable("QUEUEWORKER_COROUTINES", "coroutines", _positive_int, "handlers that run at once, per process"),
    Variable(
        "QUEUEWORKER_PREFETCH", "prefetch", _positive_int, "unacknowledged deliveries at most, per process"
    ),
    Variable("QUEUEWORKER_REVISION", "revision", _word, "name of the revision in the broker's books"),
    Variable("QUEUEWORKER_PROCESSES", "processes", _positive_int, "worker processes"),
    Variable(
        "QUEUEWORKER_SHUTDOWN_SECONDS", "shutdown_seconds", _seconds, "seconds that a graceful stop may take"
    ),
    Variable(
        "QUEUEWORKER_EXPIRY_SECONDS",
        "expiry_seconds",
        _seconds,
        "seconds without renewal after which others may take a delivery over",
    ),
    Variable(
        "QUEUEWORKER_BLOCK_SECONDS", "block_seconds", _seconds, "longest wait on an empty queue, in seconds"
    ),
    Variable(
        "QUEUEWORKER_JOB_TTL_SECONDS",
        "job_ttl_seconds",
        _seconds_or_zero,
        "seconds that records of failed and dead messages are kept; 0 is for ever",
    ),
    Variable(
        "QUEUEWORKER_MAX_TAKEOVERS",
        "max_takeovers",
        _count,
        "a message that lost its owner this often is a dead letter; 0 is never",
    ),
    Variable(
        "QUEUEWORKER_COMMIT_TIMEOUT_SECONDS",
        "commit_timeout_seconds",
        _seconds,
        "seconds within which a deferred commit must be decided",
    ),
    Variable(
        "QUEUEWORKER_ADMIN_PORT", "admin_port", _port, "port of /livez /readyz /status /metrics; 0 is off"
    ),
    Variable("QUEUEWORKER_ADMIN_HOST", "admin_host", _word, "address that the admin port listens on"),
    Variable(
        "QUEUEWORKER_LOG_FORMAT",
        "log_format",
        _one_of("auto", "json", "text"),
        "how log lines look: json, text, or auto (text on a terminal, else json)",
    ),
    Variable(
        "QUEUEWORKER_LOG_LEVEL",
        "log_level",
        _one_of("debug", "info", "warning", "error"),
        "the least that is logged: debug, info, warning or error",
    ),
)


def settings_from(environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Read the variables, then apply overrides that are not None (the flags). Raises SettingsError."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for variable in VARIABLES:
        text = environ.get(variable.name, "")
        if text == "":
            continue
        try:
            values[variable.field] = variable.parse(text)
        except ValueError as error:
            raise SettingsError(
                f"{variable.name}={text!r} cannot be used: {error}. It means: {variable.help}."
            ) from None
    values.update({key: value for key, value in overrides.items() if value is not None})
    settings = Settings(**values)
    if settings.nats_credentials:
        url = with_credentials(settings.broker_url, settings.nats_credentials)
        settings = replace(settings, broker_url=url)
    return settings
