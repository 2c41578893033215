"""What this package writes down beside the queue itself, in a key-value bucket of its own: fences, live
workers, and how often a message was given back unstarted. Older workers know nothing of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from worker_runtime.brokers.announcing import Announced, announced
from worker_runtime.brokers.base import PROTOCOL, BrokerError, Presence, WorkerIdentity, WorkerReading
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.answers import Reply
from worker_runtime.brokers.nats.api import Stored
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import QueueNames, untoken
from worker_runtime.brokers.nats.receipt import Receipt
from worker_runtime.brokers.nats.wire import Request


class _Record(Announced, kw_only=True):
    """One live worker. `up` and `expiry` in seconds; the stream knows when it was written."""

    worker: str = ""
    protocol: str = PROTOCOL
    up: float = 0.0
    expiry: float = 0.0


async def put(link: Link, subject: str, value: bytes, doing: str, *, patience: float = 0.0) -> None:
    """Write one entry. Returns when the bucket has it; may be repeated at will."""
    reply = await link.request(subject, value, patience=patience)
    api.read_pub_ack(reply, link.name, doing)


async def fence_of(link: Link, names: QueueNames, revision: str) -> str:
    """Why this revision may not receive, empty when it may. Asks the leader."""
    asked = [{"last_by_subj": names.fence(one)} for one in (revision, "*")]
    for held in await api.get_messages(link, names.books, asked):
        if held is not None and held.payload:
            return held.payload.decode("utf-8", "backslashreplace")
    return ""


async def entries(link: Link, names: QueueNames, kind: str) -> list[Stored]:
    """All entries whose key begins with this word."""
    info = await api.stream_info(link, names.books, names.key(kind, ">"))
    subjects = [] if info is None else sorted(info["state"].get("subjects") or ())
    found = await api.get_messages(link, names.books, [{"last_by_subj": one} for one in subjects])
    return [one for one in found if one is not None]


async def all_fences(link: Link, names: QueueNames) -> Mapping[str, str]:
    held = {
        untoken(one.subject.rpartition(".")[2]): one.payload for one in await entries(link, names, "fence")
    }
    everybody = await api.get_message(link, names.books, {"last_by_subj": names.fence("*")})
    if everybody is not None:
        held["*"] = everybody.payload
    return {revision: why.decode("utf-8", "backslashreplace") for revision, why in held.items() if why}


# -- live workers --------------------------------------------------------------------------------------


def encode_record(identity: WorkerIdentity, presence: Presence, up: float, expiry: float) -> bytes:
    own = msgspec.structs.asdict(announced(identity, presence))
    return msgspec.json.encode(_Record(worker=identity.worker, up=up, expiry=expiry, **own))


async def roster(link: Link, names: QueueNames, now: float) -> tuple[list[WorkerReading], list[str]]:
    """Live workers by name, and the subjects of those that are not alive any more. `now` is the server's
    time, seconds since the epoch."""
    alive, gone = [], []
    for stored in await entries(link, names, "worker"):
        try:
            record = msgspec.json.decode(stored.payload, type=_Record)
        except (msgspec.DecodeError, UnicodeDecodeError):
            record = _Record(worker=untoken(stored.subject.rpartition(".")[2]), reason="it cannot be read")
        silent = max(0.0, now - stored.at)
        if silent >= record.expiry:
            gone.append(stored.subject)
            continue
        alive.append(record.reading(record.worker, record.up + silent, record.expiry - silent))
    return sorted(alive, key=lambda each: each.worker), gone


# -- what was given back unstarted ---------------------------------------------------------------------


def note_release(names: QueueNames, receipt: Receipt) -> Request:
    """The request that notes one more of it, before it is given back."""
    subject = names.released(receipt.sequence, receipt.stored_at)
    return subject, b"", b"%d" % (receipt.released + 1)


async def read_releases(link: Link, names: QueueNames, receipts: Sequence[Receipt]) -> None:
    """Fill in how often each of these was given back. Raises BrokerError when that cannot be learned."""
    if not receipts:
        return
    asked = [{"last_by_subj": names.released(one.sequence, one.stored_at)} for one in receipts]
    for receipt, held in zip(receipts, await api.get_messages(link, names.books, asked), strict=True):
        receipt.released = int(held.payload) if held is not None and held.payload.isdigit() else 0


async def forget_releases(link: Link, names: QueueNames, receipts: Sequence[Receipt]) -> None:
    """Remove the notes of settled messages. What remains is swept later."""
    subject = f"$JS.API.STREAM.PURGE.{names.books}"
    requests: list[Request] = [
        (subject, b"", msgspec.json.encode({"filter": names.released(one.sequence, one.stored_at)}))
        for one in receipts
    ]
    try:
        await link.ask(requests, _ignore)
    except BrokerError:
        pass


def _ignore(_: int, __: Reply) -> None:
    """Whether it worked is seen by the next sweep."""


async def sweep_releases(link: Link, names: QueueNames, first: int) -> None:
    """Remove the notes of messages that are no longer in the stream, whose first one has this sequence."""
    info = await api.stream_info(link, names.books, names.key("released", "*"))
    for subject in () if info is None else info["state"].get("subjects") or ():
        sequence = subject.rpartition(".")[2].partition("-")[0]
        if sequence.isdigit() and int(sequence) < first:
            await api.purge_subject(link, names.books, subject)


def server_time(info: Mapping[str, object]) -> float:
    """When a server wrote this answer; by the clock of this machine where it does not say."""
    text = info.get("ts")
    return api.seconds_of(text) if isinstance(text, str) else time.time()
