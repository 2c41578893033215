"""One connection to a NATS server: the client protocol, requests, and nothing that is sent later.

Written here and not taken from nats-py: a worker must be able to drop a connection that stands still without
its buffer being written after all (an acknowledgement that arrives too late deletes a message under its next
holder), and closing there writes the buffer first. It is also half the cost for each message.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from worker_runtime.brokers.base import BrokerRefusedError, BrokerUnavailableError
from worker_runtime.brokers.nats.address import Address, Server
from worker_runtime.brokers.nats.answers import Answers, OnConfirmed, OnReply, Reply
from worker_runtime.brokers.nats.signing import credentials

#: Seconds between two pings, and how many of them may stay unanswered.
PING_PERIOD = 5.0
_PINGS = 2
#: Seconds between two proofs that this process reads what comes in.
TICK = 0.1
_REPLIES, _INBOX = b"1", b"2"


class LostReplyError(BrokerUnavailableError):
    """It was sent and its answer did not come: nobody knows whether it took effect."""


class NotSentError(BrokerUnavailableError):
    """It did not leave this process."""


#: A part of what the server says before it ends a connection, and what to do about it.
_WAYS_OUT = (
    (
        "authorization violation",
        "; it does not know this user, or not with this password, token or key: give them in the broker URL"
        " or by QUEUEWORKER_NATS_CREDENTIALS, or add the user to the server",
    ),
    ("authentication timeout", "; it waited too long for the sign-in: see the load of the server"),
    ("authentication expired", "; the JWT has run out: put a new one into the file of credentials"),
    ("authentication revoked", "; the JWT was revoked: put a new one into the file of credentials"),
    ("connections exceeded", "; a worker process holds four connections for each job: raise max_connections"),
    ("subscriptions exceeded", "; a connection has up to two subscriptions: raise max_subscriptions"),
)

_UNTRUSTED = (
    "name the authority that vouches for it by tls_ca in the broker URL or as ca.crt among the credentials,"
    " and the server as its certificate does"
)

#: Subject, headers (complete, or empty), payload.
Request = tuple[str, bytes, bytes]
#: Reply subject and payload of what arrived in the inbox with a reply subject.
OnDelivery = Callable[[bytes, bytes], None]
#: Subject and all the rest of what arrived there without one.
OnStatus = Callable[[bytes, Reply], None]


def encode_headers(headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def decode_headers(raw: bytes) -> dict[str, str]:
    lines = raw.decode("utf-8", "backslashreplace").split("\r\n")[1:]
    pairs = [line.partition(":") for line in lines if line]
    return {name.strip(): value.strip() for name, _, value in pairs}


class Wire(asyncio.Protocol):
    """Made by `connect`. Not for use by two event loops."""

    def __init__(self, server: Server) -> None:
        self.name = str(server)
        self.info: dict[str, Any] = {}
        #: Why it can no longer be used; empty while it can.
        self.gone = ""
        #: Monotonic time at which everything that had come in by then had been read.
        self.heard_at = 0.0
        self.on_delivery: OnDelivery = lambda *_: None
        self.on_status: OnStatus = lambda *_: None
        self.on_gone: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._prefix = f"_INBOX.{secrets.token_hex(8)}"
        self._answers = Answers(f"{self._prefix}.r.".encode(), _REPLIES)
        self._hello: asyncio.Future[None] = self._loop.create_future()
        #: Who waits for the answer to each PING that is on its way, in their order; None is nobody.
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._inboxes = 0
        self._inbox_sid = _INBOX
        self._unanswered = 0
        self._ticks = [0.0, 0.0]
        self._timers: list[asyncio.TimerHandle] = []
        self._refused = False

    # -- opening and closing -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop are of no class of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    async def open(self, address: Address, server: Server, name: str) -> None:
        """Speak until the server has let us in. Raises BrokerError."""
        await self._hello
        if address.tls is not None or self.info.get("tls_required"):
            import ssl

            assert self._transport is not None
            context = ssl.create_default_context() if address.tls is None else address.tls.context()
            upgraded = await self._loop.start_tls(self._transport, self, context, server_hostname=server.host)
            self._transport = cast(asyncio.Transport, upgraded)
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": "1",
            "name": name,
            **credentials(address, str(self.info.get("nonce", ""))),
        }
        self._write(b"CONNECT %b\r\n" % json.dumps(hello).encode())
        await self.flush()
        self._write(b"SUB %b.r.* %b\r\n" % (self._prefix.encode(), _REPLIES))
        self._tick()
        self._ping()

    def close(self) -> None:
        """At once; what was not sent never will be."""
        self._lose("it was closed")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the connection was lost{f': {exc}' if exc else ''}")

    def _lose(self, why: str, *, refused: bool = False) -> None:
        if self.gone:
            return
        self.gone = why
        self._refused = refused
        for timer in self._timers:
            timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        error = self.error()
        for future in (self._hello, *self._pongs):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()
        self._answers.end()
        self.on_gone()

    def error(self) -> BrokerRefusedError | BrokerUnavailableError:
        kind = BrokerRefusedError if self._refused else BrokerUnavailableError
        return kind(f"NATS at {self.name}: {self.gone}")

    def _tick(self) -> None:
        """What comes in later than the last tick but one was sent later, however late it is read: between
        two ticks everything is read that had arrived."""
        self.heard_at = self._ticks[0]
        self._ticks = [self._ticks[1], self._loop.time()]
        self._timers[:1] = [self._loop.call_later(TICK, self._tick)]

    def _ping(self) -> None:
        if self._unanswered >= _PINGS:
            self._lose(f"it has not answered for {PING_PERIOD * _PINGS:g} s")
            return
        self._unanswered += 1
        self._pongs.append(None)
        self._write(b"PING\r\n")
        self._timers[1:] = [self._loop.call_later(PING_PERIOD, self._ping)]

    # -- sending -------------------------------------------------------------------------------------

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload together."""
        return int(self.info.get("max_payload", 1024 * 1024))

    @property
    def version(self) -> tuple[int, ...]:
        text = str(self.info.get("version", "0")).partition("-")[0]
        return tuple(int(part) for part in text.split(".") if part.isdigit())

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.gone:
            self._transport.write(data)

    async def flush(self) -> None:
        """Wait until the server has processed what was sent before, and what it had sent us is read."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self._write(b"PING\r\n")
        if self.gone:
            raise self.error()
        await pong

    def publish(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        self._write(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))

    async def ask(self, requests: Sequence[Request], on_reply: OnReply, timeout: float) -> list[int]:
        """Send all at once; `on_reply` gets each answer by the index of its request as soon as it is there.
        Returns when the last one is, or after `timeout` seconds, or when the connection is gone: those that
        have no answer by then, and never get one."""
        lines = []
        to, subjects = self._answers.to, [subject.encode() for subject, _, _ in requests]
        for number, subject, (_, headers, payload) in zip(
            range(self._answers.count, self._answers.count + len(requests)), subjects, requests, strict=True
        ):
            if headers:
                size = len(headers)
                head = b"HPUB %b %b%x %d %d\r\n" % (subject, to, number, size, size + len(payload))
                lines.append(b"%b%b%b\r\n" % (head, headers, payload))
            else:
                lines.append(b"PUB %b %b%x %d\r\n%b\r\n" % (subject, to, number, len(payload), payload))
        return await self._exchange(lines, subjects, on_reply, None, timeout)

    async def acknowledge(
        self, subjects: Sequence[bytes], on_confirmed: OnConfirmed, on_reply: OnReply, timeout: float
    ) -> list[int]:
        """As `ask` with an acknowledgement to each of these; `on_confirmed` gets those that the server
        confirms, as many at once as arrive together, and `on_reply` any other answer."""
        to = self._answers.to
        lines = [
            b"PUB %b %b%x 4\r\n+ACK\r\n" % (subject, to, number)
            for number, subject in enumerate(subjects, self._answers.count)
        ]
        return await self._exchange(lines, subjects, on_reply, on_confirmed, timeout)

    async def _exchange(
        self,
        lines: Sequence[bytes],
        subjects: Sequence[bytes],
        on_reply: OnReply,
        on_confirmed: OnConfirmed | None,
        timeout: float,
    ) -> list[int]:
        if self.gone or not subjects:
            return list(range(len(subjects)))
        asking = self._answers.expect(subjects, on_reply, on_confirmed, self._loop.create_future())
        self._write(b"".join(lines))
        limit = self._loop.call_later(timeout, asking.give_up)
        try:
            await asking.done
        finally:
            limit.cancel()
            self._answers.forget(asking)
        return asking.unanswered()

    def subscribe(self) -> bytes:
        """A new inbox in place of the last one: `on_message` gets what arrives at INBOX.*."""
        self._inboxes += 1
        self._inbox_sid = b"%d" % (self._inboxes + 1)
        inbox = f"{self._prefix}.p{self._inboxes}".encode()
        self._write(b"SUB %b.* %b\r\n" % (inbox, self._inbox_sid))
        return inbox

    async def unsubscribe(self) -> None:
        """Give up the inbox: whatever the server had sent there is with `on_message` when this returns."""
        self._write(b"UNSUB %b\r\n" % self._inbox_sid)
        await self.flush()

    # -- reading -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        buffer = self._rest + data if self._rest else bytes(data)
        position, length = 0, len(buffer)
        confirmations = self._answers.confirmations
        while position < length:
            first = buffer[position]
            if first == 77:  # MSG subject sid [reply] size
                if run := confirmations(buffer, position):
                    position = run.end()
                    self._answers.confirmed(run[0])
                    continue
                end = buffer.find(b"\r\n", position)
                if end < 0:
                    break
                words = buffer[position + 4 : end].split()
                start = border = end + 2
                stop = start + int(words[-1])
                with_reply = len(words) == 4
            elif first == 72:  # HMSG subject sid [reply] size-of-headers size
                end = buffer.find(b"\r\n", position)
                if end < 0:
                    break
                words = buffer[position + 5 : end].split()
                start = end + 2
                border, stop = start + int(words[-2]), start + int(words[-1])
                with_reply = len(words) == 5
            else:
                end = buffer.find(b"\r\n", position)
                if end < 0:
                    break
                self._control(buffer[position:end])
                position = end + 2
                if self.gone:
                    return
                continue
            if stop + 2 > length:
                break
            position = stop + 2
            if words[1] == _REPLIES:
                self._answers.arrived(words[0], _reply(buffer[start:border], buffer[border:stop]))
            elif with_reply:
                self.on_delivery(words[2], buffer[border:stop])
            else:
                self.on_status(words[0], _reply(buffer[start:border], buffer[border:stop]))
            if self.gone:
                return
        self._rest = buffer[position:]

    def _control(self, line: bytes) -> None:
        word = line[:4].upper()
        if word == b"PING":
            self._write(b"PONG\r\n")
        elif word == b"PONG":
            self._unanswered = 0
            if self._pongs:
                pong = self._pongs.popleft()
                if pong is not None and not pong.done():
                    pong.set_result(None)
        elif word == b"INFO":
            self.info = json.loads(line[5:])
            if not self._hello.done():
                self._hello.set_result(None)
        elif word == b"-ERR":
            self._refusal(line[5:].decode("utf-8", "replace").strip(" '"))

    def _refusal(self, text: str) -> None:
        if text.lower().startswith("permissions violation"):
            # It ends nothing but the request: nobody will answer that one.
            subject = text.partition('"')[2].partition('"')[0]
            self._answers.refuse(subject.encode(), Reply(403, b"NATS/1.0 403 " + text.encode(), b""))
            return
        denied = ("authorization", "authentication", "maximum payload", "account", "user")
        way_out = next((out for said, out in _WAYS_OUT if said in text.lower()), "")
        self._lose(f"it said {text!r}{way_out}", refused=text.lower().startswith(denied))


def _reply(headers: bytes, payload: bytes) -> Reply:
    digits = headers[9:12]
    return Reply(int(digits) if digits.isdigit() else 0, headers, payload)


async def connect(address: Address, timeout: float, name: str) -> Wire:
    """To the first server that lets us in. Raises BrokerUnavailableError with what each of them did, or
    BrokerRefusedError when one refuses us as who we are."""
    problems = []
    for server in address.servers:
        loop = asyncio.get_running_loop()
        wire = Wire(server)
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(lambda wire=wire: wire, server.host, server.port)  # type: ignore[misc]
                await wire.open(address, server, name)
        except BrokerRefusedError:
            wire.close()
            raise
        except TimeoutError:
            problems.append(f"NATS at {server} did not let us in within {timeout:g} s")
        except OSError as error:  # also what goes wrong with certificates
            text = f"NATS at {server} cannot be reached: {error}"
            if (
                type(error).__name__ == "SSLCertVerificationError"
            ):  # ssl itself is loaded only where it is used
                text += f"; {_UNTRUSTED}"
            problems.append(text)
        except BrokerUnavailableError as error:
            problems.append(str(error))
        except BaseException:
            wire.close()
            raise
        else:
            return wire
        wire.close()
    raise NotSentError("; ".join(problems))
