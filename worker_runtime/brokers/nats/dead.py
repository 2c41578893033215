"""The dead stream: rejected messages, dead letters and what could not be decoded.

The body is the very message that was published; why it is there stands in headers, which readers of an
older protocol do not look at. JetStream has no list of failed messages: what a handler rejected without a
policy is in the same stream, marked as failed.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker_runtime.brokers.base import Retained, WorkerIdentity
from worker_runtime.brokers.nats.api import Stored
from worker_runtime.brokers.nats.names import QueueNames
from worker_runtime.brokers.nats.wire import Request, encode_headers
from worker_runtime.envelope import Unreadable, decode_envelope

#: Kept free under the server's limit when a message is published, so that its reason fits later.
RESERVED = 1024
_PLACE, _WHY, _REASON, _ATTEMPTS = "Qw-Place", "Qw-Why", "Qw-Reason", "Qw-Attempts"
_BY = "Qw-By"
FAILED, DEAD = "failed", "dead"


def _escaped(text: str, limit: int) -> str:
    """One line of ASCII in at most `limit` bytes."""
    return text.encode("unicode_escape").decode()[:limit]


def _unescaped(text: str) -> str:
    try:
        return text.encode().decode("unicode_escape")
    except UnicodeDecodeError:  # cut within an escape, or of somebody else
        return text


def bury(
    names: QueueNames,
    body: bytes,
    sequence: int,
    stored_at: int,
    limit: int,
    *,
    place: str,
    why: str,
    reason: str,
    attempts: int,
    by: WorkerIdentity,
) -> Request:
    """The request that puts a message into the dead stream, once however often it is sent within the
    stream's window for duplicates. `sequence` and `stored_at` are those of the message in its
    own stream. `limit` is the server's max_payload; the reason is cut to fit."""
    must = {"Nats-Msg-Id": f"dead.{sequence}.{stored_at}", _PLACE: place}
    more = must | {
        _WHY: _escaped(why, 64),
        _ATTEMPTS: str(attempts),
        _BY: _escaped(f"{by.revision} {by.worker}", 200),
    }
    for headers in (more, must):
        room = limit - len(body) - len(encode_headers(headers))
        if room < 0:
            continue
        room -= len(_REASON) + 4
        if headers is more and reason and room > 0:
            headers[_REASON] = _escaped(reason, min(room, 4096))
        return names.dead, encode_headers(headers), body
    return names.dead, b"", body


def move_to_dead(names: QueueNames, message: Stored, why: str) -> Request:
    """The request that makes a failed message a dead letter."""
    headers = {name: value for name, value in message.headers.items() if not name.startswith("Nats-")}
    headers |= {"Nats-Msg-Id": f"park.{message.sequence}.{message.at:.6f}", _PLACE: DEAD}
    headers |= {_WHY: "parked", _REASON: _escaped(why, 4096)}
    return names.dead, encode_headers(headers), message.payload


def is_failed(headers: Mapping[str, str]) -> bool:
    return headers.get(_PLACE) == FAILED


def why_of(headers: Mapping[str, str]) -> tuple[str, str]:
    """The stable word and the reason; empty where none was kept."""
    return _unescaped(headers.get(_WHY, "")), _unescaped(headers.get(_REASON, ""))


def attempts_of(message: Stored) -> int:
    """Tries before the one after which it was buried."""
    noted = message.headers.get(_ATTEMPTS, "")
    if noted.isdigit():
        return int(noted)
    envelope = decode_envelope(message.payload)
    return 0 if isinstance(envelope, Unreadable) else envelope.attempts


def retained(message: Stored) -> Retained:
    envelope = decode_envelope(message.payload)
    why, reason = why_of(message.headers)
    if isinstance(envelope, Unreadable):
        return Retained(f"{message.sequence}", None, None, message.payload, why, reason, message.at)
    return Retained(
        envelope.pid,
        envelope.timestamp,
        attempts_of(message),
        bytes(envelope.payload),
        why,
        reason,
        message.at,
    )
