"""A Redis Cluster that loses a primary: every part of the broker follows, and nothing is settled twice."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import redis

from tests.brokers.site import CALM, PATIENCE, Site, eventually, receive, settle
from tests.replicated_cluster import ReplicatedCluster
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import (
    Action,
    BrokerUnavailableError,
    Outcome,
    Place,
    Presence,
    Role,
    Settlement,
)
from worker_runtime.brokers.emptiness import verify_empty

#: Nothing here is ended by the time of a command: what ends earlier was ended for another reason.
LONG = dataclasses.replace(CALM, command_timeout=600, block=0.2)


@pytest.fixture
async def on_six(six: ReplicatedCluster, make_site: Callable[..., Site]) -> Site:
    client = redis.RedisCluster(host="127.0.0.1", port=six.nodes[0].port)
    return make_site(six.url, client, f"{{t{secrets.token_hex(4)}}}")


async def persistent(call: Callable[[], Awaitable[Any]]) -> Any:
    """As every caller of a broker does: what is unavailable is asked for again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except BrokerUnavailableError:
                await asyncio.sleep(0.1)


async def lose_primary(six: ReplicatedCluster, key: str, how: str) -> EmbeddedRedis:
    """The new one."""
    if how == "by hand":
        return await asyncio.to_thread(six.fail_over, key)
    primary, replica = six.primary(key), six.replica(key)
    await asyncio.to_thread(six.replicated, key)
    primary.kill()
    return await asyncio.to_thread(six.promote, replica, key, "TAKEOVER")


def address(node: EmbeddedRedis) -> str:
    return f"127.0.0.1:{node.port}"


@pytest.mark.parametrize("how", ["by hand", "killed"])
async def test_every_part_follows(how: str, six: ReplicatedCluster, on_six: Site) -> None:
    consumer, renewer, inspector = on_six.consumer(timing=LONG), on_six.renewer(), on_six.inspector()
    maintenance, fences, publisher = on_six.maintenance(), on_six.fences(), on_six.broker().publisher()
    try:
        (pid,) = await publisher.publish_many("q", [b"1"])
        deliveries = list((await receive(consumer)).deliveries)
        presence = Presence(True, 1, 1, 1)
        await renewer.announce(presence)
        assert not await renewer.extend(deliveries)
        await fences.fence("q", "r9", "before")
        before = await inspector.read("q")
        assert before.server == address(six.primary(on_six.keys.ready))

        new = await lose_primary(six, on_six.keys.ready, how)

        reading = await persistent(lambda: inspector.read("q"))
        assert (reading.server, reading.role) == (address(new), Role.PRIMARY)
        assert (reading.owned, [one.worker for one in reading.workers]) == (1, ["w1"])
        assert await persistent(lambda: renewer.extend(deliveries)) == []
        await persistent(lambda: renewer.announce(presence))
        assert (await persistent(renewer.recover)).deliveries == 0
        assert (await persistent(renewer.promote)).moved == 0
        assert await persistent(lambda: fences.fences("q")) == {"r9": "before"}
        assert (await persistent(lambda: maintenance.retry("q"))).retried == 0
        assert (await persistent(lambda: inspector.find("q", pid))).place is Place.OWNED
        await persistent(lambda: publisher.publish_many("q", [b"2"]))
        deliveries += (await persistent(lambda: receive(consumer))).deliveries
        assert [one.payload for one in deliveries] == [b"1", b"2"]
        assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED] * 2
        found = await verify_empty(inspector, "q")
        assert (found.empty, found.reading.server) == (True, address(new))
        await on_six.broker().check("q")
    finally:
        await publisher.close()


async def test_only_the_primary_is_read(six: ReplicatedCluster, on_six: Site) -> None:
    """The URL names a replica, which has the keys and would answer a client that asks it to."""
    await on_six.publish(b"1")
    await asyncio.to_thread(six.replicated, on_six.keys.ready)
    replica, primary = six.replica(on_six.keys.ready), six.primary(on_six.keys.ready)
    inspector = on_six.inspector(f"redis+cluster://{address(replica)}")
    found = await verify_empty(inspector, "q")
    assert (found.reading.role, found.reading.server) == (Role.PRIMARY, address(primary))


async def test_a_wait_on_a_primary_that_stands_still_ends_with_its_replacement(
    six: ReplicatedCluster, on_six: Site
) -> None:
    """Its sockets stay open, so that only the others can tell. No time of a command ends this wait."""
    key = on_six.keys.ready
    primary = six.primary(key)
    consumer = on_six.consumer(timing=LONG)
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(lambda: asyncio.to_thread(blocked, primary))
    with six.stopped(key) as replica:
        await asyncio.to_thread(six.wait_for_promotion, replica, key)
        with contextlib.suppress(BrokerUnavailableError):
            assert not (await asyncio.wait_for(waiting, PATIENCE)).deliveries
        await on_six.publish(b"1")
        assert [one.payload for one in (await persistent(lambda: receive(consumer))).deliveries] == [b"1"]


def blocked(node: EmbeddedRedis) -> bool:
    """Whether a client waits there."""
    with redis.Redis(port=node.port) as client:
        return bool(client.info("clients")["blocked_clients"])


async def test_a_settlement_that_a_primary_took_with_it_is_unknown_and_stays_so(
    six: ReplicatedCluster, on_six: Site
) -> None:
    """Sent to a primary that stands still, and run by it when it wakes up, a replica by then to all others.
    The new one never sees it: the delivery is still owned there, and its owner may settle it."""
    key = on_six.keys.ready
    await on_six.publish(b"1", b"2")
    consumer = on_six.consumer(timing=LONG)
    one, two = (await receive(consumer)).deliveries
    await asyncio.to_thread(six.replicated, key)
    publisher = on_six.broker(LONG).publisher()
    with six.stopped(key) as replica:
        texts: list[str] = []
        outcomes: list[Outcome] = []

        def note(_: Settlement, outcome: Outcome, text: str) -> None:
            outcomes.append(outcome)
            texts.append(text)

        settling = asyncio.create_task(consumer.settle([Settlement(one, Action.COMMIT)], note))
        await asyncio.to_thread(six.wait_for_promotion, replica, key)
        await asyncio.wait_for(settling, PATIENCE)
        assert outcomes == [Outcome.UNKNOWN]
        assert "another server has taken its place" in texts[0]
        assert await settle(consumer, [two], Action.COMMIT) == [Outcome.COMMITTED]
        await publisher.publish_many("q", [b"3"])
    await asyncio.to_thread(six.repair)
    reading = await on_six.read()
    assert reading.server == address(replica)
    assert (reading.owned, reading.success, reading.ready) == (1, 1, 1), "it was not sent again"
    assert reading.ledger["r1"].claimed == 2
    assert await settle(consumer, [one], Action.COMMIT) == [Outcome.COMMITTED]
    await publisher.close()


async def test_nobody_goes_on_using_a_primary_that_comes_back(six: ReplicatedCluster, on_six: Site) -> None:
    key = on_six.keys.ready
    primary = six.primary(key)
    consumer, renewer, fences = on_six.consumer(timing=LONG), on_six.renewer(timing=LONG), on_six.fences()
    await renewer.promote()
    await receive(consumer)
    await fences.fences("q")
    with six.stopped(key) as replica:
        await asyncio.to_thread(six.wait_for_promotion, replica, key)
    await asyncio.to_thread(six.repair)
    six.ask(primary, "CONFIG", "RESETSTAT")
    for _ in range(3):
        await persistent(lambda: on_six.publish(b"1"))
        taken = (await persistent(lambda: receive(consumer))).deliveries
        assert len(taken) == 1
        assert await persistent(partial(renewer.extend, taken)) == []
        await persistent(lambda: fences.fences("q"))
        assert await settle(consumer, taken, Action.COMMIT) == [Outcome.COMMITTED]
    used = six.ask(primary, "INFO", "commandstats")
    # What a primary replicates arrives as plain commands; scripts and waits are the clients' own.
    scripts = {name: stat for name, stat in used.items() if name.rpartition("_")[2] in {"evalsha", "blmove"}}
    assert sum(stat["calls"] for stat in scripts.values()) == 0, scripts
