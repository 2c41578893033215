"""Acknowledgements on one connection: each gets its own answer, however the answers arrive."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import pytest

from worker_runtime.brokers.nats.address import parse_address
from worker_runtime.brokers.nats.answers import Reply
from worker_runtime.brokers.nats.wire import Wire, connect

pytestmark = pytest.mark.any_server

#: From the reply subjects of the acknowledgements that came in together to what is sent back.
Script = Callable[[list[bytes]], bytes]


@contextlib.asynccontextmanager
async def speaking(script: Script, piece: int, count: int) -> AsyncIterator[Wire]:
    """A connection to a server that waits for `count` acknowledgements and sends the answer in pieces."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576}\r\n')
        replies: list[bytes] = []
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            if line.startswith(b"PUB "):
                replies.append(line.split()[2])
                if len(replies) == count:
                    answer = script(replies)
                    for start in range(0, len(answer), piece):
                        writer.write(answer[start : start + piece])
                        await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        wire = await connect(parse_address(f"nats://127.0.0.1:{port}"), 30.0, "test")
        try:
            yield wire
        finally:
            wire.close()


def confirmation(reply: bytes) -> bytes:
    return b"MSG %b 1 0\r\n\r\n" % reply


def status(reply: bytes, code: int) -> bytes:
    headers = b"NATS/1.0 %d No Responders\r\n\r\n" % code
    return b"HMSG %b 1 %d %d\r\n%b\r\n" % (reply, len(headers), len(headers), headers)


@pytest.mark.parametrize("piece", [1, 7, 64, 100_000])
async def test_every_acknowledgement_has_its_own_verdict(piece: int) -> None:
    """Out of order, twice, of nobody, between other messages, cut anywhere; one in ten is a refusal."""

    def script(replies: list[bytes]) -> bytes:
        inbox = replies[0].rpartition(b".")[0]
        answers = [
            status(one, 503) if n % 10 == 0 else confirmation(one) for n, one in enumerate(replies) if n != 55
        ]
        answers += [confirmation(replies[1]), confirmation(replies[2]), confirmation(inbox + b".fffff")]
        random.Random(7).shuffle(answers)
        return b"PING\r\n".join([b"".join(answers[:40]), b"".join(answers[40:])])

    confirmed: list[int] = []
    others: list[tuple[int, int]] = []
    async with speaking(script, piece, 100) as wire:
        subjects = [b"$JS.ACK.Q_X.worker.1.%d.%d.1700000000000000000.0" % (n, n) for n in range(100)]
        asking = asyncio.create_task(
            wire.acknowledge(
                subjects, confirmed.extend, lambda index, reply: others.append((index, reply.status)), 30.0
            )
        )
        await asyncio.sleep(0)
        await wire.flush()  # the server reads on when it has sent its answer
        assert not asking.done(), "one of them has no answer"
        wire.close()
        assert await asking == [55]
    assert sorted(confirmed) == [n for n in range(100) if n % 10 and n != 55]
    assert sorted(others) == [(n, 503) for n in range(0, 100, 10)]


async def test_answers_of_two_settlements_that_arrive_in_one_piece_find_their_own() -> None:
    first: list[int] = []
    second: list[int] = []

    def script(replies: list[bytes]) -> bytes:
        return b"".join(confirmation(one) for one in [*replies[::-1]])

    def refuse(index: int, reply: Reply) -> None:
        pytest.fail(f"{index} was answered {reply}")

    async with speaking(script, 100_000, 7) as wire:
        left = await asyncio.gather(
            wire.acknowledge([b"$JS.ACK.a"] * 3, first.extend, refuse, 30.0),
            wire.acknowledge([b"$JS.ACK.b"] * 4, second.extend, refuse, 30.0),
        )
    assert list(left) == [[], []]
    assert (first, second) == ([2, 1, 0], [3, 2, 1, 0])
