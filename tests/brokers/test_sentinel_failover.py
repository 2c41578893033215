"""A primary that is replaced: by hand, by its death, and while it is frozen and cannot know of it."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
import redis

from tests.brokers.scripted_sentinel import ScriptedSentinel
from tests.brokers.site import CALM, HASTY, PATIENCE, Site, eventually, receive, settle
from tests.brokers.test_redis_claims import envelope
from tests.sentinels import WatchedRedis, role
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, BrokerUnavailableError, Outcome, WorkerIdentity

#: Sentinels of 6.2 keep a slower pace; once is enough.
pytestmark = pytest.mark.any_server

PAYLOADS = [b"1", b"2", b"3", b"4"]
#: Only the Sentinels can end a wait for an answer, not a timeout.
PATIENT = dataclasses.replace(CALM, block=10_000, command_timeout=10_000)
T = TypeVar("T")


@pytest.fixture(scope="module")
def watched() -> Iterator[WatchedRedis]:
    with WatchedRedis() as running:
        yield running


@pytest.fixture
def site(watched: WatchedRedis, make_site: Callable[..., Site], request: pytest.FixtureRequest) -> Site:
    """Its client stays on the server that is the primary now."""
    watched.settle()
    return make_site(watched.url, redis.Redis(port=watched.primary().port), f"ns-{request.node.name}")


async def replicated(watched: WatchedRedis) -> None:
    """Wait until the replica has everything that the primary has acknowledged so far."""
    with redis.Redis(port=watched.primary().port, socket_timeout=PATIENCE) as client:
        client.set("marker", 1)
        assert await asyncio.to_thread(client.wait, 1, 0) == 1


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Call again while the broker is unavailable, as the loops of a worker do."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except BrokerUnavailableError:
                await asyncio.sleep(0.05)


def blocks(port: int) -> bool:
    with redis.Redis(port=port) as client:
        return bool(client.info("clients")["blocked_clients"])


async def test_what_is_in_work_is_committed_on_the_new_primary(site: Site, watched: WatchedRedis) -> None:
    await site.publish(*PAYLOADS)
    broker = site.broker()
    consumer = broker.consumer("q", WorkerIdentity("r1", "w1"))
    renewer = broker.renewer("q", WorkerIdentity("r1", "w1"))
    deliveries = (await receive(consumer)).deliveries
    assert not await renewer.extend(deliveries)
    await replicated(watched)
    new = await asyncio.to_thread(watched.fail_over)
    # The old one is not told for some seconds. What one connection learns, all connections of a broker know.
    await broker.check("q")
    assert not await renewer.extend(deliveries)
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED] * 4
    reading = await site.read()
    assert (reading.server, reading.success, reading.private) == (f"127.0.0.1:{new.port}", 4, 0)
    await consumer.close()
    await renewer.close()


async def test_an_old_primary_that_wants_a_replica_takes_nothing_more(
    site: Site, watched: WatchedRedis
) -> None:
    """What docs/sentinel.md says of `min-replicas-to-write`: its replica left it when it was promoted."""
    site.client.config_set("min-replicas-to-write", 1)
    try:
        await site.publish(b"1")
        watched.leave_the_old_one_alone()
        new = await asyncio.to_thread(watched.fail_over)
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            site.client.lpush(site.keys.ready, b"lost")
        assert site.client.execute_command("ROLE")[0] == b"master"
        await insist(lambda: site.publish(b"2"))
        assert (await site.read()).server == f"127.0.0.1:{new.port}"
    finally:
        site.client.config_set("min-replicas-to-write", 0)


async def test_one_sentinel_dead_and_then_two(site: Site, watched: WatchedRedis) -> None:
    """The others go on: with one dead they can still promote, with two dead the way is still known."""
    first, second, third = watched.sentinels
    try:
        first.kill()
        new = await asyncio.to_thread(watched.fail_over)
        await site.broker().check("q")
        assert (await site.read()).server == f"127.0.0.1:{new.port}"
        await eventually(lambda: _names(third.primary, new))
        second.kill()
        await site.publish(b"1")
        assert len((await receive(site.consumer())).deliveries) == 1
    finally:
        for sentinel in (first, second):
            if not sentinel.running:
                sentinel.start()


async def _names(primary: Callable[[], dict[str, str]], server: EmbeddedRedis) -> bool:
    return primary()["port"] == str(server.port)


async def test_a_frozen_primary_is_left_and_a_settlement_that_it_got_is_unknown(
    site: Site, watched: WatchedRedis
) -> None:
    watched.leave_the_old_one_alone()
    await site.publish(b"0", *PAYLOADS)
    waiter = site.consumer("waiter", timing=PATIENT)
    consumer = site.consumer("holder", timing=dataclasses.replace(PATIENT, expiry=0.001))
    first, *deliveries = (await receive(consumer)).deliveries
    # From here on the server knows the transition: the frozen one will run it when it wakes up.
    assert await settle(consumer, [first], Action.COMMIT) == [Outcome.COMMITTED]
    waiting = asyncio.create_task(waiter.receive(1))
    await eventually(lambda: asyncio.to_thread(blocks, watched.primary().port))
    await replicated(watched)
    old = watched.primary()
    old.send(signal.SIGSTOP)
    try:
        settling = asyncio.create_task(settle(consumer, deliveries, Action.COMMIT))
        new = await asyncio.to_thread(watched.promoted_without, old)
        assert await settling == [Outcome.UNKNOWN] * 4
        with pytest.raises(BrokerUnavailableError, match=f"name 127.0.0.1:{new.port} as the primary"):
            await asyncio.wait_for(waiting, PATIENCE)
    finally:
        old.send(signal.SIGCONT)
    # What it had received it does now. It still takes itself for the primary, and nobody here does.
    await eventually(lambda: _succeeded(site, 5))
    assert role(old) == "master"
    before = _calls(site)
    reading = await site.read()
    assert (reading.server, reading.success, reading.owned) == (f"127.0.0.1:{new.port}", 1, 4)
    # Never sent again, so others run it again.
    assert (await insist(lambda: site.renewer("other", timing=HASTY).recover())).deliveries == 4
    taken = (await insist(lambda: waiter.receive(10))).deliveries
    assert [one.payload for one in taken] == PAYLOADS
    assert await settle(waiter, taken, Action.COMMIT) == [Outcome.COMMITTED] * 4
    assert (await site.read()).success == 5
    assert role(old) == "master", "the old primary was told too early for this test to say anything"
    assert _calls(site) == before
    await asyncio.to_thread(watched.settle)
    assert (await site.read()).success == 5


async def _succeeded(site: Site, count: int) -> bool:
    return bool(await asyncio.to_thread(site.client.get, site.keys.success) == str(count).encode())


def _calls(site: Site) -> int:
    """How many transitions the server of the site's client has run."""
    statistics = site.client.info("commandstats")
    return sum(int(statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "eval"))


async def test_a_killed_primary_that_comes_back_empty_is_not_used(site: Site, watched: WatchedRedis) -> None:
    await site.publish(*PAYLOADS)
    consumer = site.consumer()
    deliveries = (await receive(consumer, 2)).deliveries
    await replicated(watched)
    old = watched.primary()
    old.kill()
    new = await asyncio.to_thread(watched.promoted_without, old)
    await asyncio.to_thread(old.restart)
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED] * 2
    assert [one.payload for one in (await receive(consumer)).deliveries] == PAYLOADS[2:]
    assert (await site.read()).server == f"127.0.0.1:{new.port}"


async def test_a_claim_that_was_not_replicated_is_superseded_or_missing_never_committed_twice(
    make_site: Callable[..., Site],
) -> None:
    """Two servers that never met: what the first one did is lost."""
    raw = [envelope("one", b"1"), envelope("two", b"2")]
    with EmbeddedRedis() as old, EmbeddedRedis() as new:
        async with ScriptedSentinel(old.port) as sentinel:
            site = make_site(WatchedRedis.url_of(sentinel.port), redis.Redis(port=new.port), "ns")
            with redis.Redis(port=old.port) as client:
                client.lpush(site.keys.ready, *raw)
            site.client.lpush(site.keys.ready, raw[0])
            broker = site.broker()
            late, other = (broker.consumer("q", WorkerIdentity("r1", name)) for name in ("late", "other"))
            deliveries = (await receive(late)).deliveries
            sentinel.says(new.port, epoch=2)
            taken = (await receive(other)).deliveries
            assert [one.pid for one in taken] == ["one"]
            assert await settle(late, deliveries, Action.COMMIT) == [Outcome.SUPERSEDED, Outcome.MISSING]
            assert await settle(other, taken, Action.COMMIT) == [Outcome.COMMITTED]
            assert (await site.read()).success == 1
            await late.close()
            await other.close()
