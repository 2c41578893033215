"""A Redis Cluster that moves a slot, and maps of it that are wrong: a move is followed, and what a node did
not run is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import hiredis
import pytest
import redis

from tests.brokers.site import CALM, PATIENCE, Site, eventually, receive, settle
from tests.brokers.test_cluster_failover import address, blocked, persistent
from tests.replicated_cluster import Move, ReplicatedCluster
from tests.services import free_port
from worker_runtime.brokers.base import Action, BrokerUnavailableError, Outcome, Presence

PAYLOADS = [b'{"n":%d}' % n for n in range(6)]
SOON = dataclasses.replace(CALM, block=0.2)


@pytest.fixture
async def on_six(six: ReplicatedCluster, make_site: Callable[..., Site]) -> Site:
    client = redis.RedisCluster(host="127.0.0.1", port=six.nodes[0].port)
    return make_site(six.url, client, f"{{t{secrets.token_hex(4)}}}")


@pytest.fixture
async def move(six: ReplicatedCluster, on_six: Site) -> AsyncIterator[Callable[[], Awaitable[Move]]]:
    """Opens the move of the queue's slot; at the end it is finished, since the slots are for all tests."""
    moves: list[Move] = []

    async def begin() -> Move:
        moves.append(await asyncio.to_thread(six.open_move, on_six.keys.ready))
        return moves[-1]

    yield begin
    for one in moves:
        await asyncio.to_thread(one.finish)


async def test_a_settlement_that_meets_a_half_moved_slot_is_sent_again_until_it_runs(
    on_six: Site, move: Callable[[], Awaitable[Move]]
) -> None:
    """The node refuses a script some of whose keys have gone (TRYAGAIN): it did not run. Both ends of the
    move refuse it while it lasts."""
    await on_six.publish(*PAYLOADS)
    consumer = on_six.consumer(timing=SOON)
    deliveries = (await receive(consumer)).deliveries
    moving = await move()
    await asyncio.to_thread(moving.take, on_six.keys.owners, str(on_six.keys.job(deliveries[0].pid)))
    settling = asyncio.create_task(settle(consumer, deliveries, Action.COMMIT))
    for _ in range(2):
        await eventually(lambda: _refused(moving, on_six))
        assert not settling.done()
    await asyncio.to_thread(moving.take, *moving.keys())
    await eventually(lambda: _refused(moving, on_six))
    assert not settling.done()
    await asyncio.to_thread(moving.finish)
    assert await settling == [Outcome.COMMITTED] * len(PAYLOADS)
    reading = await persistent(on_six.read)
    assert (reading.success, reading.total, reading.private) == (6, 6, 0)
    assert reading.server == address(moving.target)


async def _refused(moving: Move, on_six: Site) -> bool:
    """One more script than before was refused by an end of the move."""

    def rejected() -> int:
        total = 0
        for node in (moving.source, moving.target):
            with redis.Redis(port=node.port) as client:
                total += int(client.info("errorstats").get("errorstat_TRYAGAIN", {}).get("count", 0))
        return total

    before = await asyncio.to_thread(rejected)
    await asyncio.sleep(0.05)
    return await asyncio.to_thread(rejected) > before


async def test_a_worker_that_stops_does_not_wait_for_the_end_of_a_move(
    on_six: Site, move: Callable[[], Awaitable[Move]]
) -> None:
    """What the nodes refused did not run, so the next settlement of the same deliveries counts."""
    await on_six.publish(*PAYLOADS)
    consumer = on_six.consumer(timing=dataclasses.replace(SOON, command_timeout=3))
    deliveries = (await receive(consumer)).deliveries
    moving = await move()
    consumer.interrupt()
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.UNKNOWN] * 6
    await asyncio.to_thread(moving.finish)
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED] * 6


async def test_what_has_gone_ahead_is_asked_for_there(
    on_six: Site, move: Callable[[], Awaitable[Move]]
) -> None:
    """ASK: commands and scripts all of whose keys have moved run on the other node before the slot is its
    own, also a script that this node has never seen."""
    await on_six.publish(*PAYLOADS)
    consumer, renewer, publisher = on_six.consumer(timing=SOON), on_six.renewer(), on_six.broker().publisher()
    deliveries = (await receive(consumer, 5)).deliveries
    await renewer.announce(Presence(True, 5, 5, 5))
    moving = await move()
    await asyncio.to_thread(moving.take, *moving.keys())
    with redis.Redis(port=moving.target.port) as client:
        client.script_flush()
    try:
        assert not await renewer.extend(deliveries)
        await renewer.announce(Presence(True, 5, 5, 5))
        await publisher.publish_many("q", [b"7"])
        assert await on_six.fences().fences("q") == {}
    finally:
        await publisher.close()
    await asyncio.to_thread(moving.finish)
    rest = (await receive(consumer)).deliveries
    assert [one.payload for one in rest] == [PAYLOADS[5], b"7"]
    assert set(await settle(consumer, [*deliveries, *rest], Action.COMMIT)) == {Outcome.COMMITTED}


async def test_a_wait_is_sent_on_when_its_slot_moves_away(
    six: ReplicatedCluster, on_six: Site, move: Callable[[], Awaitable[Move]]
) -> None:
    """The server itself ends the wait (MOVED); it goes on where the slot is now."""
    consumer = on_six.consumer(timing=dataclasses.replace(CALM, block=10_000))
    waiting = asyncio.create_task(consumer.receive(10))
    source = await asyncio.to_thread(six.primary, on_six.keys.ready)
    await eventually(lambda: asyncio.to_thread(blocked, source))
    moving = await move()
    await asyncio.to_thread(moving.finish)
    await eventually(lambda: asyncio.to_thread(blocked, moving.target))
    await on_six.publish(b"1")
    deliveries = (await asyncio.wait_for(waiting, PATIENCE)).deliveries
    assert [one.payload for one in deliveries] == [b"1"]
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED]


async def test_a_cluster_that_is_down_is_waited_for(six: ReplicatedCluster, on_six: Site) -> None:
    """The owner of the queue is in a minority, so that it serves nobody (CLUSTERDOWN)."""
    await on_six.publish(*PAYLOADS)
    consumer = on_six.consumer(timing=SOON)
    deliveries = (await receive(consumer)).deliveries
    with six.minority(on_six.keys.ready):
        with pytest.raises(BrokerUnavailableError, match=r"CLUSTERDOWN.*check CLUSTER INFO"):
            await on_six.renewer().extend(deliveries)
        settling = asyncio.create_task(settle(consumer, deliveries, Action.COMMIT))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(settling), 0.3)
    assert await settling == [Outcome.COMMITTED] * 6


async def test_a_node_that_joins_and_leaves_again(six: ReplicatedCluster, on_six: Site) -> None:
    """The queue is on it meanwhile. Afterwards it is gone for good, although clients still know it."""
    consumer, publisher = on_six.consumer(timing=SOON), on_six.broker(SOON).publisher()

    async def one_goes_through(payload: bytes) -> None:
        await persistent(lambda: publisher.publish_many("q", [payload]))
        deliveries = (await persistent(lambda: receive(consumer))).deliveries
        assert [one.payload for one in deliveries] == [payload]
        assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED]

    try:
        with six.guest() as guest:
            await one_goes_through(b"1")
            there = await asyncio.to_thread(six.open_move, on_six.keys.ready, guest)
            await asyncio.to_thread(there.finish)
            await one_goes_through(b"2")
            assert (await on_six.read()).server == address(guest)
            back = await asyncio.to_thread(six.open_move, on_six.keys.ready, there.source, guest)
            await asyncio.to_thread(back.finish)
            await one_goes_through(b"3")
        await one_goes_through(b"4")
        await asyncio.to_thread(six.fail_over, on_six.keys.ready, "TAKEOVER")
        await one_goes_through(b"5")
    finally:
        await publisher.close()


# Maps and nodes that lead astray. Each comes first in the URL.


@contextlib.asynccontextmanager
async def _node(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of something that is no Redis."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def _resets(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass
    writer.close()


def _names(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Its map says that this port owns everything."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader(notEnoughData=...)
        while data := await reader.read(1000):
            commands.feed(data)
            while commands.gets() is not ...:
                writer.write(b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % port)
        writer.close()

    return answer


@pytest.mark.parametrize(
    "what", ["resets", "says nothing", "names a dead node", "names itself and is silent"]
)
async def test_a_node_that_leads_astray_is_passed_by(what: str, six: ReplicatedCluster, on_six: Site) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if what == "resets":
            port = await stack.enter_async_context(_node(_resets))
        elif what == "says nothing":
            port = await stack.enter_async_context(_node(_says_nothing))
        elif what == "names a dead node":
            port = await stack.enter_async_context(_node(_names(free_port())))
        else:
            silent = await stack.enter_async_context(_node(_says_nothing))
            port = await stack.enter_async_context(_node(_names(silent)))
        url = f"redis+cluster://127.0.0.1:{port},{address(six.nodes[0])}"
        consumer = on_six.consumer(timing=dataclasses.replace(SOON, command_timeout=600), url=url)
        await on_six.publish(b"1")
        deliveries = (await persistent(lambda: receive(consumer))).deliveries
        assert [one.payload for one in deliveries] == [b"1"]
        assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED]
