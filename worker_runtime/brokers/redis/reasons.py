"""How the reason of a failed or dead message is kept: `ns.reason.q.<pid>`, one JSON object.

`{"at":<server milliseconds>,"why":"exhausted","detail":"ValueError: ...","revision":"...","worker":"..."}`.
Readers of another protocol do not know the key; the record and the lists stay as they write them.
"""

from __future__ import annotations

import msgspec

from worker_runtime.brokers.base import WorkerIdentity


class Reason(msgspec.Struct):
    at: int = 0
    why: str = ""
    detail: str = ""
    revision: str = ""
    worker: str = ""


def encode_reason(why: str, detail: str, identity: WorkerIdentity | None = None) -> bytes:
    """Without its time, which the server adds."""
    # Whatever a job printed: a reason that cannot be written must not keep its message from being settled.
    fields = {"why": why, "detail": detail.encode("utf-8", "backslashreplace").decode()}
    if identity is not None:
        fields |= {"revision": identity.revision, "worker": identity.worker}
    return msgspec.json.encode(fields)


def decode_reason(raw: bytes | None) -> Reason:
    """Empty when there is none; what somebody else wrote there counts as its text."""
    if raw is None:
        return Reason()
    try:
        return msgspec.json.decode(raw, type=Reason)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Reason(detail=raw.decode("utf-8", "backslashreplace"))
