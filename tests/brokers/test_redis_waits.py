"""A message that comes while a consumer waits: owned in one step behind the wait, or as carefully as ever."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import redis

from tests.brokers.fault_proxy import Fault, FaultProxy, Rule, Seen
from tests.brokers.site import CALM, PATIENCE, Site, eventually, receive, settle
from tests.brokers.test_redis_claims import envelope, push, run
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import (
    Action,
    BrokerRefusedError,
    BrokerUnavailableError,
    Consumer,
    Fenced,
    Outcome,
    Received,
)
from worker_runtime.brokers.redis import scripts, transitions
from worker_runtime.brokers.redis.poison import decode_poison

NEVER = dataclasses.replace(CALM, block=10_000)


@pytest.fixture(autouse=True)
def scripts_are_loaded(redis_server: EmbeddedRedis) -> None:
    """So that the first call of a transition is one that runs."""
    with redis.Redis(port=redis_server.port) as client:
        for script in scripts.ALL:
            client.script_load(script.source)


@contextlib.asynccontextmanager
async def waiting(
    site: Site, url: str | None = None
) -> AsyncIterator[tuple[Consumer, asyncio.Task[Received]]]:
    """A consumer whose receive waits on the server."""
    consumer = site.consumer(timing=NEVER, url=url)
    receiving = asyncio.create_task(receive(consumer))
    await eventually(site.somebody_waits)
    yield consumer, receiving
    await consumer.close()


def once(name: str, fault: Fault) -> Rule:
    struck = False

    def rule(seen: Seen) -> Fault:
        nonlocal struck
        if seen.name != name or struck:
            return Fault.PASS
        struck = True
        return fault

    return rule


async def one_is_owned(site: Site, consumer: Consumer, received: Received, payload: bytes = b"1") -> None:
    """It is in the books once, and nowhere else; then it is committed."""
    assert [one.payload for one in received.deliveries] == [payload]
    reading = await site.read()
    assert (reading.owned, reading.processing, reading.private, reading.total) == (1, 1, 1, 1)
    assert (reading.ledger["r1"].claimed, len(reading.reservations)) == (1, 0)
    assert await settle(consumer, received.deliveries, Action.COMMIT) == [Outcome.COMMITTED]
    reading = await site.read()
    assert (reading.success, reading.private, reading.processing) == (1, 0, 0)


async def taken_over(site: Site) -> None:
    """Its owner has not renewed it for too long."""
    (pid,) = site.client.zrange(site.keys.liveness, 0, -1)
    site.client.zadd(site.keys.liveness, {pid: 1})
    assert (await site.renewer("other").recover()).deliveries == 1


async def test_it_is_owned_by_the_command_behind_the_wait(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with FaultProxy(redis_server.port) as proxy, waiting(standalone, proxy.url) as (consumer, task):
        (pid,) = await standalone.publish(b"1")
        received = await task
        assert proxy.names()[-2:] == ["BLMOVE", "take"]
        assert received.deliveries[0].pid == pid
        await one_is_owned(standalone, consumer, received)


async def test_the_rest_is_left_to_the_next_receive(standalone: Site) -> None:
    async with waiting(standalone) as (consumer, task):
        push(standalone, envelope("a", b"1"), envelope("b", b"2"), envelope("c", b"3"))
        first = (await task).deliveries
        rest = (await receive(consumer)).deliveries
        assert [one.payload for one in (*first, *rest)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
async def test_when_the_answer_is_lost_the_next_receive_asks_again(
    fault: Fault, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with (
        FaultProxy(redis_server.port, before=once("take", fault)) as proxy,
        waiting(standalone, proxy.url) as (consumer, task),
    ):
        await standalone.publish(b"1")
        with pytest.raises(BrokerUnavailableError, match="did not answer"):
            await task
        await one_is_owned(standalone, consumer, await receive(consumer))


async def test_when_the_answer_is_lost_and_nobody_asks_it_is_recovered(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with FaultProxy(redis_server.port, before=once("take", Fault.CUT_AFTER)) as proxy:
        async with waiting(standalone, proxy.url) as (consumer, task):
            await standalone.publish(b"1")
            with pytest.raises(BrokerUnavailableError):
                await task
            await taken_over(standalone)
            other = standalone.consumer("other")
            taken = (await receive(other)).deliveries
            assert await settle(other, taken, Action.COMMIT) == [Outcome.COMMITTED]
            consumer.interrupt()
            assert not (await receive(consumer)).deliveries
    reading = await standalone.read()
    assert (reading.success, reading.total, reading.private, reading.ready) == (1, 1, 0, 0)
    assert reading.ledger["r1"].taken_over == 1


async def test_a_flushed_script_is_loaded_again(standalone: Site) -> None:
    async with waiting(standalone) as (consumer, task):
        standalone.client.script_flush()
        await standalone.publish(b"1")
        await one_is_owned(standalone, consumer, await task)


async def test_a_fence_that_comes_between_holds(standalone: Site, redis_server: EmbeddedRedis) -> None:
    async with (
        FaultProxy(redis_server.port, before=once("take", Fault.HOLD_COMMAND)) as proxy,
        waiting(standalone, proxy.url) as (_, task),
    ):
        await standalone.publish(b"1")
        await asyncio.wait_for(proxy.event.wait(), PATIENCE)
        assert (await standalone.read()).staging == 1
        await standalone.fences().fence("q", "r1", "stop")
        proxy.let_go.set()
        assert await task == Received(fenced=Fenced("stop"))
        reading = await standalone.read()
        assert (reading.ready, reading.private, reading.total) == (1, 0, 0)


async def test_a_fence_that_comes_behind_is_too_late(standalone: Site, redis_server: EmbeddedRedis) -> None:
    async with (
        FaultProxy(redis_server.port, after=once("take", Fault.HOLD_REPLY)) as proxy,
        waiting(standalone, proxy.url) as (consumer, task),
    ):
        await standalone.publish(b"1")
        await asyncio.wait_for(proxy.event.wait(), PATIENCE)
        await standalone.fences().fence("q", "r1", "stop")
        proxy.let_go.set()
        await one_is_owned(standalone, consumer, await task)
        assert (await receive(consumer)).fenced == Fenced("stop")


async def test_who_reserves_in_between_has_it(standalone: Site, redis_server: EmbeddedRedis) -> None:
    async with (
        FaultProxy(redis_server.port, before=once("take", Fault.HOLD_COMMAND)) as proxy,
        waiting(standalone, proxy.url) as (_, task),
    ):
        await standalone.publish(b"1")
        await asyncio.wait_for(proxy.event.wait(), PATIENCE)
        other = standalone.consumer("other")
        await one_is_owned(standalone, other, await receive(other))
        proxy.let_go.set()
        assert await task == Received()
    reading = await standalone.read()
    assert (reading.success, reading.total, reading.private) == (1, 1, 0)


async def test_paused_for_longer_than_the_expiry(standalone: Site, redis_server: EmbeddedRedis) -> None:
    """As by SIGSTOP: what it was given belongs to others, who are done with it, when it goes on."""
    async with FaultProxy(redis_server.port, after=once("take", Fault.HOLD_REPLY)) as proxy:
        async with waiting(standalone, proxy.url) as (consumer, task):
            await standalone.publish(b"1")
            await asyncio.wait_for(proxy.event.wait(), PATIENCE)
            await taken_over(standalone)
            other = standalone.consumer("other")
            taken = (await receive(other)).deliveries
            proxy.let_go.set()
            late = (await task).deliveries
            assert await settle(consumer, late, Action.COMMIT) == [Outcome.SUPERSEDED]
            assert await settle(other, taken, Action.COMMIT) == [Outcome.COMMITTED]
    reading = await standalone.read()
    assert (reading.success, reading.total, reading.private) == (1, 1, 0)


async def test_a_stop_between_leaves_it_to_others(standalone: Site, redis_server: EmbeddedRedis) -> None:
    async with (
        FaultProxy(redis_server.port, after=once("BLMOVE", Fault.HOLD_REPLY)) as proxy,
        waiting(standalone, proxy.url) as (consumer, task),
    ):
        await standalone.publish(b"1")
        await asyncio.wait_for(proxy.event.wait(), PATIENCE)
        consumer.interrupt()
        proxy.let_go.set()
        received = await task
        await settle(consumer, received.deliveries, Action.RELEASE)
        await consumer.close()
        reading = await standalone.read()
        assert (reading.ready, reading.private, reading.total) == (1, 0, 0)


async def test_what_a_cancelled_wait_has_moved_goes_to_another_that_waits(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with (
        FaultProxy(redis_server.port, after=once("BLMOVE", Fault.HOLD_REPLY)) as proxy,
        waiting(standalone, proxy.url) as (_, cancelled),
    ):
        other = standalone.consumer("other", timing=NEVER)
        task = asyncio.create_task(receive(other))
        await eventually(lambda: _blocked(standalone, 2))
        await standalone.publish(b"1")
        await asyncio.wait_for(proxy.event.wait(), PATIENCE)
        cancelled.cancel()
        proxy.let_go.set()
        await one_is_owned(standalone, other, await task)


async def _blocked(site: Site, count: int) -> bool:
    clients = await asyncio.to_thread(site.client.info, "clients")
    return bool(clients["blocked_clients"] >= count)


@pytest.mark.parametrize("fault", [Fault.PASS, Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize("name", ["promote_delayed", "reserve"])
async def test_a_wait_that_brought_nothing_ends_with_a_look_for_retries(
    name: str, fault: Fault, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    await standalone.publish(b"1")
    first = standalone.consumer("first")
    assert await settle(first, (await receive(first)).deliveries, Action.RETRY) == [Outcome.REJECTED]
    struck = False

    def strike(seen: Seen) -> Fault:
        nonlocal struck
        looks = seen.name == "promote_delayed" or proxy.log[-2].name == "promote_delayed"
        if struck or seen.name != name or not looks:
            return Fault.PASS
        struck = True
        return fault

    async with FaultProxy(redis_server.port, before=strike) as proxy:
        consumer = standalone.consumer(timing=dataclasses.replace(CALM, block=0.05), url=proxy.url)
        received = await receive(consumer)
        assert struck
        assert [(one.payload, one.attempts) for one in received.deliveries] == [(b"1", 1)]
        assert await settle(consumer, received.deliveries, Action.COMMIT) == [Outcome.COMMITTED]
        await consumer.close()
    reading = await standalone.read()
    assert (reading.success, reading.private, len(reading.reservations)) == (1, 0, 0)
    assert reading.ledger["r1"].claimed == 2


async def _owned_twin(site: Site) -> Callable[[], Awaitable[None]]:
    push(site, envelope("twin", b"0"))
    owner = site.consumer("owner", "r0")
    (first,) = (await receive(owner)).deliveries

    async def check() -> None:
        assert site.client.get(site.keys.job("twin")) == envelope("twin", b"0")
        assert await settle(owner, [first], Action.COMMIT) == [Outcome.COMMITTED]

    return check


async def _failed_twin(site: Site) -> Callable[[], Awaitable[None]]:
    push(site, envelope("twin", b"0"))
    owner = site.consumer("owner", "r0")
    await settle(owner, (await receive(owner)).deliveries, Action.REJECT)

    async def check() -> None:
        assert site.client.get(site.keys.job("twin")) == envelope("twin", b"0")
        assert site.client.lrange(site.keys.failed, 0, -1) == [b"twin"]

    return check


async def _only_liveness(site: Site) -> Callable[[], Awaitable[None]]:
    site.client.zadd(site.keys.liveness, {"twin": 1})

    async def check() -> None:
        pass

    return check


async def _only_an_owner(site: Site) -> Callable[[], Awaitable[None]]:
    site.client.hset(site.keys.owners, "twin", "r0 owner one")

    async def check() -> None:
        assert site.client.hget(site.keys.owners, "twin") == b"r0 owner one"
        site.client.hdel(site.keys.owners, "twin")

    return check


@pytest.mark.parametrize("twin", [_owned_twin, _failed_twin, _only_liveness, _only_an_owner])
async def test_a_pid_of_which_something_is_known(
    twin: Callable[[Site], Awaitable[Callable[[], Awaitable[None]]]], standalone: Site
) -> None:
    check = await twin(standalone)
    async with waiting(standalone) as (consumer, task):
        push(standalone, envelope("twin", b"1"))
        deliveries = (await task).deliveries
        assert [one.payload for one in deliveries] == [b"1"]
        await check()
        assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED]
    assert (await standalone.read()).private == 0


async def test_poison_is_put_aside(standalone: Site) -> None:
    async with waiting(standalone) as (_, task):
        push(standalone, b"junk")
        received = await task
        assert (len(received.deliveries), received.poisoned) == (0, 1)
        assert decode_poison(standalone.client.lrange(standalone.keys.poison, 0, -1)[0]).raw == b"junk"
        reading = await standalone.read()
        assert (reading.private, reading.ledger["r1"].poisoned) == (0, 1)


_OTHER = {
    "owners": "a hash",
    "liveness": "a zset",
    "processing": "a list",
    "total": "a string",
    "processing_count": "a string",
    "ledger": "a hash",
    "fence": "a hash",
}


@pytest.mark.parametrize("key", sorted(_OTHER))
async def test_a_key_of_another_type_is_named_and_nothing_is_half_done(key: str, standalone: Site) -> None:
    name = getattr(standalone.keys, key)
    async with waiting(standalone) as (consumer, task):
        standalone.client.sadd(name, "junk")
        push(standalone, envelope("a", b"1"))
        with pytest.raises(BrokerRefusedError, match=rf"the key {name} holds a set where {_OTHER[key]}"):
            await task
        assert not standalone.client.exists(standalone.keys.job("a"))
        assert standalone.client.type(name) == b"set"
        standalone.client.delete(name)
        await one_is_owned(standalone, consumer, await receive(consumer))


@pytest.mark.parametrize("key", ["total", "processing_count", "ledger"])
async def test_a_counter_that_is_no_number_is_named(key: str, standalone: Site) -> None:
    name = getattr(standalone.keys, key)
    async with waiting(standalone) as (consumer, task):
        if key == "ledger":
            standalone.client.hset(name, "r1:claimed", "many")
        else:
            standalone.client.set(name, "many")
        push(standalone, envelope("a", b"1"))
        with pytest.raises(BrokerRefusedError, match=rf'{name} holds "many" .*where a whole number belongs'):
            await task
        assert not standalone.client.exists(standalone.keys.job("a"))
        standalone.client.delete(name)
        await one_is_owned(standalone, consumer, await receive(consumer))


def test_asking_twice_claims_once_and_renews(standalone: Site) -> None:
    keys, client, raw = standalone.keys, standalone.client, envelope("a")
    push(standalone, raw, envelope("b"))
    for _ in range(2):
        client.lmove(keys.ready, keys.staging, "RIGHT", "LEFT")
    call = transitions.take(keys, raw, "a", "r w one", "r", 9)
    assert run(standalone, call) == [b"claimed"]
    client.zadd(keys.liveness, {"a": 1})
    client.hset(keys.fence, "r", "stop")
    assert run(standalone, call) == [b"claimed"]
    assert client.zscore(keys.liveness, "a") > 1
    assert (client.get(keys.total), client.lrange(keys.staging, 0, -1)) == (b"1", [envelope("b")])


def test_a_full_server_refuses_it_as_a_whole() -> None:
    with EmbeddedRedis(args=("--maxmemory-policy", "noeviction")) as server:
        site = Site(server.url, redis.Redis(port=server.port), "ns")
        keys, client, raw = site.keys, site.client, envelope("a")
        client.lpush(keys.staging, raw)
        client.config_set("maxmemory", "1")
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            run(site, transitions.take(keys, raw, "a", "r w one", "r", 9))
        client.config_set("maxmemory", "0")
        assert client.keys("*") == [keys.staging.encode()]
        client.close()
