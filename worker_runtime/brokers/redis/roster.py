"""How the roster keeps one record for each live worker.

The server adds "started", the milliseconds of its clock at the first beat, when it writes the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from worker_runtime.brokers.announcing import Announced, announced
from worker_runtime.brokers.base import Presence, WorkerIdentity, WorkerReading


class _Record(Announced, kw_only=True):
    started: int = 0


def encode_record(identity: WorkerIdentity, presence: Presence) -> bytes:
    return msgspec.json.encode(announced(identity, presence))


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
        up = max(0.0, (now_ms - record.started) / 1000) if record.started else 0.0
        workers.append(record.reading(name.decode("utf-8", "backslashreplace"), up, left))
    return sorted(workers, key=lambda each: each.worker)
