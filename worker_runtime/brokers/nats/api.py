"""JetStream's API: requests and answers in JSON, refusals as errors that say what to do."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from worker_runtime.brokers.base import (
    BrokerFullError,
    BrokerRefusedError,
    BrokerUnavailableError,
    QueueUnusableError,
)
from worker_runtime.brokers.nats.answers import Reply
from worker_runtime.brokers.nats.link import FORBIDDEN, NOBODY, Link
from worker_runtime.brokers.nats.wire import LostReplyError, decode_headers

NO_MESSAGE, NO_CONSUMER, NO_STREAM, OVERLAP = 10037, 10014, 10059, 10065
#: Refusals that pass by themselves: no leader, no quorum, out of some resource for a moment.
_LATER = frozenset({10005, 10008, 10009, 10023, 10074, 10118, 10120, 10164, 10167})
#: There is no room; it will be taken when somebody has made some.
_FULL = frozenset({10002, 10028, 10047, 10077})
#: The account has no JetStream, which somebody has to give it.
_NO_JETSTREAM = 10039
#: What to do about a refusal.
_WAYS_OUT = {
    10002: "raise the JetStream limits of the account, or let workers take what waits there",
    10023: "its servers lack storage or replicas: see max_file and max_mem of their jetstream blocks",
    10026: "raise the account's or the stream's limit for consumers",
    10027: "raise max_streams of the account: each queue needs four",
    10028: "raise max_mem of the account or its servers, or let workers take what waits there",
    _NO_JETSTREAM: "write `jetstream: enabled` into the account's block of the server's configuration (or"
    " give its JWT limits for JetStream), or sign in as a user of an account that has it",
    10047: "raise max_file of the account or its servers, or let workers take what waits there",
    10077: "raise the limits of the stream, or let workers take what waits there",
}


class ApiError(BrokerRefusedError):
    """JetStream answered and refused. `code` is its err_code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Stored:
    """One message as a stream keeps it. `at` is when it was stored, seconds since the epoch."""

    subject: str
    sequence: int
    payload: bytes
    headers: dict[str, str]
    at: float


def read_answer(reply: Reply, where: str, doing: str) -> dict[str, Any]:
    """Raises ApiError, BrokerRefusedError or BrokerUnavailableError when it is not a success."""
    if reply.status == NOBODY:
        raise BrokerUnavailableError(
            f"NATS at {where} cannot {doing}: nobody answers for JetStream there: its servers are electing a"
            " leader, or none of them that is up has JetStream (it needs a jetstream block, or -js)"
        )
    if reply.status == FORBIDDEN:
        raise BrokerRefusedError(f"NATS at {where} does not let this user {doing}: {reply.words}")
    try:
        answer: dict[str, Any] = json.loads(reply.payload)
    except ValueError:
        raise BrokerUnavailableError(
            f"NATS at {where} cannot {doing}: its answer is {reply.payload[:80]!r} and not JSON"
        ) from None
    error = answer.get("error")
    if error:
        code = int(error.get("err_code", error.get("code", 0)))
        text = f"NATS at {where} cannot {doing}: {error.get('description', 'it does not say why')} ({code})"
        if code in _WAYS_OUT:
            text += f"; {_WAYS_OUT[code]}"
        if code == _NO_JETSTREAM:
            raise QueueUnusableError(text)
        if code in _FULL:
            raise BrokerFullError(text)
        if code in _LATER:
            raise BrokerUnavailableError(text)
        raise ApiError(text, code)
    return answer


async def call(
    link: Link,
    subject: str,
    body: dict[str, Any] | None,
    doing: str,
    *,
    patience: float = 0.0,
    reads: bool = False,
) -> dict[str, Any]:
    """One request to $JS.API. `doing` completes "NATS cannot ..."; what only `reads` may be asked twice."""
    payload = b"" if body is None else json.dumps(body).encode()
    reply = await link.request(f"$JS.API.{subject}", payload, patience=patience, reads=reads)
    try:
        return read_answer(reply, link.name, doing)
    except BrokerUnavailableError:
        link.move_on()
        raise


async def find(
    link: Link,
    subject: str,
    body: dict[str, Any] | None,
    doing: str,
    *,
    patience: float = 0.0,
    reads: bool = False,
) -> dict[str, Any] | None:
    """The same, None when what is asked for is not there."""
    try:
        return await call(link, subject, body, doing, patience=patience, reads=reads)
    except ApiError as error:
        if error.code in (NO_MESSAGE, NO_CONSUMER, NO_STREAM):
            return None
        raise


async def stream_info(
    link: Link, stream: str, subjects: str = "", *, patience: float = 0.0
) -> dict[str, Any] | None:
    """None when there is no such stream. `subjects` asks for the counts of the subjects that match it."""
    body = {"subjects_filter": subjects} if subjects else None
    doing = f"describe the stream {stream}"
    return await find(link, f"STREAM.INFO.{stream}", body, doing, patience=patience, reads=True)


async def consumer_info(
    link: Link, stream: str, durable: str, *, patience: float = 0.0
) -> dict[str, Any] | None:
    doing = f"describe the consumer {durable} of {stream}"
    subject = f"CONSUMER.INFO.{stream}.{durable}"
    return await find(link, subject, None, doing, patience=patience, reads=True)


async def owners_of(link: Link, subject: str) -> list[str]:
    """The names of the streams that take this subject, a page of them at most."""
    body = {"subject": subject}
    answer = await call(link, "STREAM.NAMES", body, f"find the stream that takes {subject}", reads=True)
    return [str(one) for one in answer.get("streams") or ()]


async def get_message(link: Link, stream: str, question: dict[str, Any]) -> Stored | None:
    """By {"seq": n}, {"last_by_subj": s} or {"seq": n, "next_by_subj": s}, read from the leader."""
    doing = f"read a message of {stream}"
    answer = await find(link, f"STREAM.MSG.GET.{stream}", question, doing, reads=True)
    return None if answer is None else _stored(answer)


async def get_messages(link: Link, stream: str, questions: Sequence[dict[str, Any]]) -> list[Stored | None]:
    """Many at once. Raises BrokerError when one of them could not be read."""
    replies: list[Reply | None] = [None] * len(questions)
    subject = f"$JS.API.STREAM.MSG.GET.{stream}"

    def note(index: int, reply: Reply) -> None:
        replies[index] = reply

    requests = [(subject, b"", json.dumps(one).encode()) for one in questions]
    await link.inquire(requests, note)
    found: list[Stored | None] = []
    for reply in replies:
        if reply is None:
            raise LostReplyError(f"NATS at {link.name} did not say what {stream} holds")
        try:
            found.append(_stored(read_answer(reply, link.name, f"read a message of {stream}")))
        except ApiError as error:
            if error.code != NO_MESSAGE:
                raise
            found.append(None)
        except BrokerUnavailableError:
            link.move_on()
            raise
    return found


async def delete_message(link: Link, stream: str, sequence: int) -> bool:
    """False when it was gone. What is deleted is not overwritten with random bytes first."""
    body = {"seq": sequence, "no_erase": True}
    doing = f"delete message {sequence} of {stream}"
    try:
        await call(link, f"STREAM.MSG.DELETE.{stream}", body, doing)
    except ApiError as error:
        if error.code in (NO_MESSAGE, 10057):
            return False
        raise
    return True


async def purge_subject(link: Link, stream: str, subject: str) -> int:
    """Remove every message of one subject. How many were."""
    body = {"filter": subject}
    answer = await call(link, f"STREAM.PURGE.{stream}", body, f"remove {subject} from {stream}")
    return int(answer.get("purged", 0))


class PubAck(msgspec.Struct):
    """A stream's word that it has the message."""

    stream: str = ""
    duplicate: bool = False


_pub_ack = msgspec.json.Decoder(PubAck).decode


def read_pub_ack(reply: Reply, where: str, doing: str) -> PubAck:
    """Raises as `read_answer`."""
    if not reply.status and b'"error"' not in reply.payload:
        try:
            return _pub_ack(reply.payload)
        except msgspec.DecodeError:
            pass
    if reply.status == NOBODY:
        raise BrokerUnavailableError(
            f"NATS at {where} cannot {doing}: no stream takes it; run `queueworker provision QUEUE`, or its"
            " servers are electing a leader"
        )
    answer = read_answer(reply, where, doing)
    return PubAck(str(answer.get("stream", "")), bool(answer.get("duplicate")))


def _stored(answer: dict[str, Any]) -> Stored:
    message = answer["message"]
    return Stored(
        str(message["subject"]),
        int(message["seq"]),
        base64.b64decode(message.get("data", "")),
        decode_headers(base64.b64decode(message["hdrs"])) if message.get("hdrs") else {},
        seconds_of(message["time"]),
    )


def seconds_of(text: str) -> float:
    """Seconds since the epoch of the server's way to write a time, which may have nine decimal places."""
    head, dot, rest = text.partition(".")
    if not dot:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :].replace("Z", "+00:00")
    return datetime.fromisoformat(f"{head}{zone}").timestamp() + float(f"0.{digits}")
