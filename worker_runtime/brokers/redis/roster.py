"""How the roster keeps one record for each live worker.

A record is a JSON object. The server adds "started", the milliseconds of its clock at the first beat, when
it writes the record; a reader fills in what an older or newer worker left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from worker_runtime.brokers.base import LONGEST_END, PROTOCOL, Presence, WorkerIdentity, WorkerReading


class _Record(msgspec.Struct):
    started: int = 0
    revision: str = ""
    protocol: str = ""
    host: str = ""
    receiving: bool = False
    reason: str = ""
    outstanding: int = 0
    coroutines: int = 0
    prefetch: int = 0
    restarts: int = 0
    last_end: str = ""
    place: str = ""


def encode_record(identity: WorkerIdentity, presence: Presence) -> bytes:
    return msgspec.json.encode(
        {
            "revision": identity.revision,
            "protocol": PROTOCOL,
            "host": identity.host,
            "receiving": presence.receiving,
            "reason": presence.reason[:500],
            "outstanding": presence.outstanding,
            "coroutines": presence.coroutines,
            "prefetch": presence.prefetch,
            "restarts": identity.restarts,
            "last_end": identity.last_end[:LONGEST_END],
            "place": identity.place,
        }
    )


def read_roster(
    expiries: Sequence[bytes], records: Mapping[bytes, bytes], now_ms: int
) -> list[WorkerReading]:
    """`expiries` is the flat reply worker, expiry, worker, expiry, ... Only those that live at `now_ms`."""
    workers = []
    for name, expiry in zip(expiries[::2], expiries[1::2], strict=True):
        left = (float(expiry) - now_ms) / 1000
        if left <= 0:
            continue
        try:
            record = msgspec.json.decode(records.get(name, b"{}"), type=_Record)
        except (msgspec.DecodeError, UnicodeDecodeError):
            record = _Record(reason="its record cannot be read")
        workers.append(
            WorkerReading(
                worker=name.decode("utf-8", "backslashreplace"),
                revision=record.revision,
                protocol=record.protocol,
                host=record.host,
                receiving=record.receiving,
                reason=record.reason,
                outstanding=record.outstanding,
                coroutines=record.coroutines,
                prefetch=record.prefetch,
                uptime=max(0.0, (now_ms - record.started) / 1000) if record.started else 0.0,
                expires_in=left,
                restarts=record.restarts,
                last_end=record.last_end[:LONGEST_END],
                place=record.place,
            )
        )
    return sorted(workers, key=lambda each: each.worker)
