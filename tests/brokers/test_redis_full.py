"""A server at its memory limit refuses what needs more; whatever is in work can still be renewed, settled and
given back, or everything would expire and run twice just then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.brokers.site import CALM, Site, receive, settle
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, BrokerRefusedError, Outcome, Presence, Role
from worker_runtime.brokers.emptiness import verify_empty


@pytest.fixture(scope="module")
def small_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(args=("--maxmemory-policy", "noeviction")) as server:
        yield server


@pytest.fixture
def small(small_server: EmbeddedRedis, make_site: Callable[..., Site]) -> Iterator[Site]:
    site = make_site(small_server.url, redis.Redis(port=small_server.port), "ns")
    site.client.config_set("maxmemory", "0")
    site.client.flushall()
    yield site
    site.client.config_set("maxmemory", "0")


async def full(site: Site) -> None:
    site.client.config_set("maxmemory", "1")
    with pytest.raises(BrokerRefusedError, match="maxmemory"):
        await site.publish(b"0")


async def test_renewal_and_the_list_of_workers_go_on(small: Site) -> None:
    await small.publish(b"1", b"2")
    consumer, renewer = small.consumer(), small.renewer()
    deliveries = (await receive(consumer)).deliveries
    await renewer.announce(Presence(True, 2, 1, 2))
    liveness = small.keys.liveness
    small.client.zadd(liveness, {deliveries[0].pid: 1})
    small.client.zrem(liveness, deliveries[1].pid)
    await full(small)
    assert not await renewer.extend(deliveries)
    assert all(score > 1 for _, score in small.client.zrange(liveness, 0, -1, withscores=True))
    assert small.client.zcard(liveness) == 2
    await renewer.announce(Presence(True, 2, 1, 2))
    assert (await renewer.recover()).deliveries == 0
    assert set(await settle(consumer, deliveries, Action.COMMIT)) == {Outcome.COMMITTED}
    await renewer.sign_off()


@pytest.mark.parametrize("action", list(Action))
async def test_every_kind_of_settlement(action: Action, small: Site) -> None:
    await small.publish(b"1")
    consumer = small.consumer()
    deliveries = (await receive(consumer)).deliveries
    await full(small)
    (outcome,) = await settle(consumer, deliveries, action)
    assert outcome in (Outcome.COMMITTED, Outcome.REJECTED, Outcome.RELEASED)
    reading = await small.read()
    assert (reading.owned, reading.processing) == (0, 0)
    assert reading.ready + reading.delayed + reading.failed + reading.dead + reading.success == 1


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_recovery_of_deliveries(times: int, small: Site) -> None:
    """Back to ready at first, through the delayed ones the second time, a dead letter at the limit."""
    await small.publish(b"1")
    consumer, renewer = small.consumer(), small.renewer(max_takeovers=3)
    for n in range(1, times + 1):
        (delivery,) = (await receive(consumer)).deliveries
        small.client.zadd(small.keys.liveness, {delivery.pid: 1})
        if n == times:
            await full(small)
        recovered = await renewer.recover()
        assert (recovered.deliveries, recovered.crash_loops) == ((1, 0) if n < 3 else (0, 1))
        if n < times:
            await small.maintenance().promote("q", everything=True)
    reading = await small.read()
    assert (reading.ready, reading.delayed, reading.dead) == tuple(int(times == n) for n in (1, 2, 3))


async def test_reservations_staging_and_retries_go_back(small: Site) -> None:
    await small.publish(b"1", b"2", b"3")
    consumer, maintenance = small.consumer(), small.maintenance()
    (delivery,) = (await receive(consumer, 1)).deliveries
    assert await settle(consumer, [delivery], Action.RETRY) == [Outcome.REJECTED]
    small.client.lmove(small.keys.ready, small.keys.staging, "RIGHT", "LEFT")
    reserved = small.client.rpop(small.keys.ready)
    small.client.rpush(small.keys.reservation("r"), reserved)
    small.client.zadd(small.keys.reservations, {"r": 1})
    await full(small)
    quick = dataclasses.replace(CALM, block=0.001)
    assert await small.maintenance(quick).promote("q", everything=True) == 1
    assert (await small.renewer().recover()).reservations == 1
    assert await maintenance.unstage("q") == 1
    reading = await small.read()
    assert (reading.ready, reading.private) == (3, 0)


async def test_it_can_be_read_and_proven_empty(small: Site) -> None:
    await small.publish(*[b"1"] * 5)
    await receive(small.consumer("w1"), 2)
    reserved = small.client.rpop(small.keys.ready)
    small.client.rpush(small.keys.reservation("r"), reserved)
    small.client.zadd(small.keys.reservations, {"r": 1})
    before = await small.read()
    await full(small)
    reading = await small.read()
    moving: dict[str, Any] = {"oldest_ready_age": None, "reservations": (), "cpu_seconds": None}
    assert dataclasses.replace(reading, **moving) == dataclasses.replace(before, **moving)
    assert [one.size for one in reading.reservations] == [1]
    assert (reading.ready, reading.reserved, reading.owned, reading.role) == (2, 1, 2, Role.PRIMARY)
    empty = await verify_empty(small.inspector(), "another")
    assert (empty.empty, empty.why) == (True, "")
    denied = f"redis://blind:pw@127.0.0.1:{small.url.rpartition(':')[2]}"
    small.client.execute_command("ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-role")
    assert (await small.inspector(denied).read("q")).role is Role.UNKNOWN
    assert reading.cpu_seconds is not None
    small.client.execute_command("ACL", "SETUSER", "blind", "-info", "+role")
    blind = await small.inspector(denied).read("q")
    assert (blind.role, blind.cpu_seconds) == (Role.PRIMARY, None)
