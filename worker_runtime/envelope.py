"""The envelope around a payload: `{"pid", "queue", "timestamp", "payload", "attempts"}` as JSON.

Its shape is the one that existing producers of utopia-php/queue 4 write and read. The payload is never
decoded here: it passes through as the bytes that came in.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from worker_runtime.brokers.base import PayloadRefusedError

#: Longest pid in bytes of UTF-8. It becomes part of a key name.
MAX_PID_BYTES = 256
#: Largest payload that a publisher accepts, in bytes. Redis refuses values above 512 MB by itself.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024


class Envelope(msgspec.Struct, gc=False):
    """One decoded envelope. `payload` holds the raw JSON bytes."""

    pid: str
    payload: msgspec.Raw
    timestamp: float
    attempts: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Loose(msgspec.Struct, gc=False):
    """What other producers may write: numbers as floats or as text, null for absent."""

    pid: Any = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    timestamp: Any = msgspec.UNSET
    attempts: Any = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why bytes are not an envelope. `reason` is one of a few stable words, `detail` is for people.

    Reasons: json, not-an-object, pid, payload, timestamp, attempts, too-deep.
    """

    reason: str
    detail: str


_strict = msgspec.json.Decoder(Envelope).decode
_loose = msgspec.json.Decoder(_Loose).decode
_raw = msgspec.json.Decoder(msgspec.Raw).decode


def decode_envelope(raw: bytes) -> Envelope | Unreadable:
    """Read one envelope. Never raises for what the bytes hold.

    `timestamp` and `attempts` may be numbers or numeric text; absent attempts are 0. Other fields are
    ignored.
    """
    try:
        envelope = _strict(raw)
        # The decoder skips over the payload without looking at its text.
        if not raw.isascii():
            raw.decode()
    except msgspec.ValidationError:
        envelope_or_not = _decode_loosely(raw)
        if isinstance(envelope_or_not, Unreadable):
            return envelope_or_not
        envelope = envelope_or_not
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unreadable("json", str(error))
    except RecursionError:
        return Unreadable("too-deep", "arrays or objects are nested too deeply")
    pid = envelope.pid
    if 0 < len(pid) <= 64 or 0 < len(pid.encode()) <= MAX_PID_BYTES:
        return envelope
    return Unreadable("pid", f"has {len(pid.encode())} bytes, allowed are 1 to {MAX_PID_BYTES}")


def _decode_loosely(raw: bytes) -> Envelope | Unreadable:
    try:
        raw.decode()
        loose = _loose(raw)
    except msgspec.ValidationError as error:
        return Unreadable("not-an-object", str(error))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unreadable("json", str(error))
    except RecursionError:
        return Unreadable("too-deep", "arrays or objects are nested too deeply")
    if not isinstance(loose.pid, str):
        return Unreadable("pid", _read("pid", loose.pid, "text"))
    if isinstance(loose.payload, msgspec.UnsetType):
        return Unreadable("payload", "is missing")
    timestamp = _number(loose.timestamp)
    if timestamp is None:
        return Unreadable("timestamp", _read("timestamp", loose.timestamp, "a number"))
    attempts = 0.0 if loose.attempts is None else _number(loose.attempts)
    if attempts is None:
        return Unreadable("attempts", _read("attempts", loose.attempts, "a number"))
    return Envelope(loose.pid, loose.payload, timestamp, max(0, int(attempts)))


def _read(name: str, value: object, wanted: str) -> str:
    if value is msgspec.UNSET:
        return "is missing"
    return f"is {repr(value)[:60]} where {wanted} belongs"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def published_at(raw: bytes | None) -> float | None:
    """When an envelope says it was published, seconds since the epoch; None when that cannot be read."""
    if raw is None:
        return None
    envelope = decode_envelope(raw)
    return None if isinstance(envelope, Unreadable) else envelope.timestamp


def encode_envelope(pid: str, queue: str, timestamp: int, payload: bytes) -> bytes:
    """Wrap a raw JSON payload as a producer does: no `attempts` before the first retry.
    Raises PayloadRefusedError when the payload is not JSON or too large."""
    check_payload(payload)
    return b'{"pid":%b,"queue":%b,"timestamp":%d,"payload":%b}' % (
        msgspec.json.encode(pid),
        msgspec.json.encode(queue),
        timestamp,
        payload,
    )


def encode_envelopes(
    queue: str, timestamp: int, pids: Sequence[str], payloads: Sequence[bytes]
) -> list[bytes]:
    """The same for many. Its PayloadRefusedError says which of them it is."""
    envelopes: list[bytes] = []
    try:
        for pid, payload in zip(pids, payloads, strict=True):
            envelopes.append(encode_envelope(pid, queue, timestamp, payload))
    except PayloadRefusedError as error:
        error.index = len(envelopes)
        raise
    return envelopes


def retry_envelope(queue: str, payload: bytes, attempts: int) -> tuple[bytes, bytes]:
    """The two parts of a retry's envelope around the number of its timestamp, which the server writes: a
    fresh pid and the very bytes of the payload. `attempts` are the tries so far, the failed one included."""
    head = b'{"pid":"%b","queue":%b,"timestamp":' % (new_pid().encode(), msgspec.json.encode(queue))
    return head, b',"payload":%b,"attempts":%d}' % (payload, attempts)


def check_payload(payload: bytes) -> None:
    """Raise PayloadRefusedError unless these bytes are one JSON value of acceptable size."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise PayloadRefusedError(
            f"the payload has {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} are accepted;"
            " store large data elsewhere and publish a reference to it"
        )
    try:
        _raw(payload)
        if not payload.isascii():
            payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadRefusedError(
            f"the payload {payload[:40]!r} is not JSON ({error}); encode it first,"
            " for example with json.dumps"
        ) from None


class PidGenerator:
    """Makes pids like PHP's uniqid: 13 hexadecimal digits of microseconds, a random digit, a dot, 8 digits.

    Time never repeats within one generator, so that a batch published within one microsecond has no twins;
    between processes 30 random bits decide.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        micros = int(self._clock() * 1_000_000)
        with self._lock:
            if micros <= self._last:
                micros = self._last + 1
            self._last = micros
        seconds, rest = divmod(micros, 1_000_000)
        noise = f"{random.randrange(10**9):09d}"
        return f"{seconds:08x}{rest:05x}{noise[0]}.{noise[1:]}"


new_pid = PidGenerator()
