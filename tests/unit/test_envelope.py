"""The codec of envelopes: what producers write is read, what is not an envelope is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from worker_runtime.brokers.base import PayloadRefusedError
from worker_runtime.envelope import (
    MAX_PAYLOAD_BYTES,
    Envelope,
    PidGenerator,
    Unreadable,
    check_payload,
    decode_envelope,
    encode_envelope,
    published_at,
)

#: As a PHP producer writes it: escapes, no attempts, an empty list and an empty object.
WRITTEN_BY_PHP = (
    b'{"pid":"6b0c7156da2800.45976061","queue":"ho","timestamp":1795977558,'
    b'"payload":{"n":2,"s":"\\u00e9\\ud83d\\ude00","f":1,"u":"a\\/b","e":[],"o":{}}}'
)


def read(raw: bytes) -> Envelope:
    envelope = decode_envelope(raw)
    assert isinstance(envelope, Envelope), envelope
    return envelope


def test_an_envelope_of_a_php_producer() -> None:
    envelope = read(WRITTEN_BY_PHP)
    assert envelope.pid == "6b0c7156da2800.45976061"
    assert envelope.timestamp == 1795977558
    assert envelope.attempts == 0
    assert bytes(envelope.payload) == b'{"n":2,"s":"\\u00e9\\ud83d\\ude00","f":1,"u":"a\\/b","e":[],"o":{}}'


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (b"1795977558", 1795977558),
        (b"1795977558.25", 1795977558.25),
        (b'"1795977558"', 1795977558),
        (b"0", 0),
    ],
)
def test_timestamps_of_other_producers(timestamp: bytes, expected: float) -> None:
    raw = b'{"pid":"a","queue":"q","timestamp":%b,"payload":[]}' % timestamp
    assert read(raw).timestamp == expected
    assert published_at(raw) == expected


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [(b"0", 0), (b"3", 3), (b"2.0", 2), (b'"4"', 4), (b"null", 0), (b"-1", 0)],
)
def test_attempts(attempts: bytes, expected: int) -> None:
    raw = b'{"pid":"a","timestamp":1,"payload":[],"attempts":%b}' % attempts
    assert read(raw).attempts == expected


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "json"),
        (b"{", "json"),
        (b"\x00\xff\x00", "json"),
        (b"junk", "json"),
        (b'{"pid":"a","timestamp":1,"payload":{bad}}', "json"),
        (b'{"pid":"a","timestamp":1,"payload":"\xff\xfe"}', "json"),
        (b'{"pid":"a","timestamp":"x\xff","payload":1}', "json"),
        (b'{"pid":"\\ud800","timestamp":1,"payload":1}', "json"),
        (b'{"pid":"a","timestamp":1,"payload":1} {}', "json"),
        (b"[1]", "not-an-object"),
        (b'"text"', "not-an-object"),
        (b"null", "not-an-object"),
        (b'{"timestamp":1,"payload":1}', "pid"),
        (b'{"pid":7,"timestamp":1,"payload":1}', "pid"),
        (b'{"pid":"","timestamp":1,"payload":1}', "pid"),
        (b'{"pid":"' + b"x" * 257 + b'","timestamp":1,"payload":1}', "pid"),
        ('{"pid":"' + "é" * 129 + '","timestamp":1,"payload":1}', "pid"),
        (b'{"pid":"a","timestamp":1}', "payload"),
        (b'{"pid":"a","payload":1}', "timestamp"),
        (b'{"pid":"a","timestamp":"soon","payload":1}', "timestamp"),
        (b'{"pid":"a","timestamp":true,"payload":1}', "timestamp"),
        (b'{"pid":"a","timestamp":[1],"payload":1}', "timestamp"),
        (b'{"pid":"a","timestamp":"nan","payload":1}', "timestamp"),
        (b'{"pid":"a","timestamp":1,"payload":1,"attempts":"many"}', "attempts"),
        (b'{"pid":"a","timestamp":1,"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too-deep"),
    ],
)
def test_what_is_not_an_envelope(raw: bytes | str, reason: str) -> None:
    verdict = decode_envelope(raw.encode() if isinstance(raw, str) else raw)
    assert isinstance(verdict, Unreadable)
    assert verdict.reason == reason
    assert verdict.detail


def test_the_longest_pid_is_read() -> None:
    assert read(b'{"pid":"' + b"x" * 256 + b'","timestamp":1,"payload":1}').pid == "x" * 256


@given(st.binary(max_size=200))
def test_bytes_never_raise(raw: bytes) -> None:
    assert isinstance(decode_envelope(raw), Envelope | Unreadable)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(_JSON, st.booleans())
def test_what_is_encoded_is_read_back_to_the_byte(value: object, ascii_only: bool) -> None:
    payload = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    raw = encode_envelope("pid", 'a "queue"', 7, payload)
    assert bytes(read(raw).payload) == payload
    assert json.loads(raw)["queue"] == 'a "queue"'
    assert b"attempts" not in raw.replace(payload, b"")


@pytest.mark.parametrize("payload", [b"", b"{", b"1 2", b"\xff", b'"\xff"', b"[" * 100_000])
def test_a_payload_that_is_not_json_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadRefusedError, match="is not JSON"):
        check_payload(payload)


def test_a_payload_that_is_too_large_is_refused() -> None:
    with pytest.raises(PayloadRefusedError, match="at most"):
        check_payload(b'"' + b"x" * MAX_PAYLOAD_BYTES + b'"')


def test_pids_differ_and_rise_even_when_the_clock_stands() -> None:
    generate = PidGenerator(clock=lambda: 1795977558.5)
    pids = [generate() for _ in range(2000)]
    times = [pid[:13] for pid in pids]
    assert len(set(times)) == 2000
    assert times == sorted(times)
    assert int(pids[0][:8], 16) == 1795977558
