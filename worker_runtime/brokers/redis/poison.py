"""How the poison list keeps what could not be decoded.

An entry is one line of JSON, a line feed, and the raw bytes exactly as they were, whatever they hold:
`{"at":<server milliseconds>,"reason":"json","detail":"...","revision":"...","worker":"..."}\\n<raw bytes>`.
JSON text never holds a bare line feed, so the first one is the border.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from worker_runtime.brokers.base import WorkerIdentity
from worker_runtime.envelope import Unreadable


class _Header(msgspec.Struct):
    at: int = 0
    reason: str = ""
    detail: str = ""
    revision: str = ""
    worker: str = ""


@dataclass(frozen=True, slots=True)
class PoisonEntry:
    """`at` is in milliseconds of the server's clock; `raw` is what was published."""

    at: int
    reason: str
    detail: str
    revision: str
    worker: str
    raw: bytes


def encode_why(why: Unreadable, identity: WorkerIdentity) -> bytes:
    """The header without its time, which the server adds."""
    return msgspec.json.encode(
        {
            "reason": why.reason,
            "detail": why.detail[:500],
            "revision": identity.revision,
            "worker": identity.worker,
        }
    )


def decode_poison(entry: bytes) -> PoisonEntry:
    """Read one entry; a list that somebody else filled yields entries with the reason "foreign"."""
    line, border, raw = entry.partition(b"\n")
    try:
        if not border:
            raise msgspec.DecodeError("no line feed")
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return PoisonEntry(0, "foreign", "the entry has no header of ours", "", "", entry)
    return PoisonEntry(header.at, header.reason, header.detail, header.revision, header.worker, raw)
