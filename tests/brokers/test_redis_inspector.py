"""Reading a queue whatever it holds."""

from __future__ import annotations

import contextlib
import time

import pytest
import redis

from tests.brokers.site import Site, receive
from tests.brokers.test_redis_claims import envelope, push, run
from tests.services import RedisCluster
from worker_runtime.brokers.base import BrokerRefusedError, LedgerRow, Role
from worker_runtime.brokers.emptiness import verify_empty
from worker_runtime.brokers.redis import transitions

JUNK = b"\xff\x00\n junk"


async def test_a_queue_that_nobody_used(standalone: Site) -> None:
    reading = await standalone.read()
    assert (reading.ready, reading.private, reading.total, reading.success) == (0, 0, 0, 0)
    assert reading.oldest_ready_age is None
    assert (list(reading.reservations), dict(reading.owners), dict(reading.ledger)) == ([], {}, {})


async def test_bytes_that_are_not_text(standalone: Site) -> None:
    keys, client = standalone.keys, standalone.client
    for name in (keys.ready, keys.staging, keys.processing, keys.failed, keys.dead, keys.poison):
        client.lpush(name, JUNK)
    client.hset(keys.fence, JUNK, JUNK)
    client.hset(keys.owners, JUNK, JUNK)
    client.hset(keys.ledger, b"\xff:claimed", 3)
    client.hset(keys.ledger, JUNK, JUNK)
    client.zadd(keys.reservations, {JUNK: 1})
    client.rpush(keys.reservation(JUNK), JUNK, JUNK)
    client.zadd(keys.delayed, {JUNK: 1})
    reading = await standalone.read()
    assert (reading.ready, reading.staging, reading.reserved, reading.owned, reading.delayed) == (
        1,
        1,
        2,
        1,
        1,
    )
    assert (reading.processing, reading.failed, reading.dead, reading.poison) == (1, 1, 1, 1)
    assert reading.private == 5
    assert reading.oldest_ready_age is None
    assert dict(reading.fences) == {"\\xff\x00\n junk": "\\xff\x00\n junk"}
    assert dict(reading.ledger) == {"\\xff": LedgerRow(claimed=3)}
    (reservation,) = reading.reservations
    assert (reservation.id, reservation.size) == ("\\xff\x00\n junk", 2)
    assert reservation.deadline_in < -1_000_000
    # Recovery meets the same bytes and gives back what can be given back.
    recovered = await standalone.renewer().recover()
    assert recovered.reservations == 1
    reading = await standalone.read()
    assert (reading.ready, reading.reserved, reading.owned, reading.processing) == (3, 0, 0, 0)


async def test_the_age_of_the_oldest_ready_message(standalone: Site) -> None:
    then = int(time.time()) - 500
    push(standalone, b'{"pid":"a","timestamp":"%d.5","payload":1}' % then, envelope("b"))
    age = (await standalone.read()).oldest_ready_age
    assert age is not None
    assert 490 < age < 800


async def test_a_reservation_that_is_not_claimed_yet_is_counted(standalone: Site) -> None:
    push(standalone, envelope("a"), envelope("b"), envelope("c"))
    run(standalone, transitions.reserve(standalone.keys, "one", "r", 2, 60))
    await receive(standalone.consumer())
    reading = await standalone.read()
    assert (reading.ready, reading.reserved, reading.owned, reading.private) == (0, 2, 1, 3)


async def test_a_ledger_that_holds_no_number_is_named(standalone: Site) -> None:
    standalone.client.hset(standalone.keys.ledger, "r1:claimed", "many")
    with pytest.raises(BrokerRefusedError, match=r"ledger\.q \(r1:claimed\) holds b'many'"):
        await standalone.read()
    push(standalone, envelope("a"))
    with pytest.raises(BrokerRefusedError, match=r"ledger\.q holds \"many\" in field r1:claimed"):
        await receive(standalone.consumer())


async def test_the_role_of_the_server_is_told_and_an_empty_queue_is_proven(site: Site) -> None:
    await site.publish(b"1")
    found = await verify_empty(site.inspector(), "q")
    assert (found.empty, found.reading.role, found.reading.ready) == (True, Role.PRIMARY, 1)
    await receive(site.consumer())
    found = await verify_empty(site.inspector(), "q")
    assert (found.empty, found.reading.owned) == (False, 1)
    assert "1 owned by 1 workers" in found.why


async def test_a_slot_that_moves_away_is_followed(on_cluster: Site, redis_cluster: RedisCluster) -> None:
    """A reading in one transaction is turned away whole, and asked of the new owner."""
    inspector, fences = on_cluster.inspector(), on_cluster.fences()
    before = (await inspector.read("q")).server
    await fences.fences("q")
    ports = [node.port for node in redis_cluster.nodes]
    old = next(port for port in ports if before.endswith(f":{port}"))
    new = next(port for port in ports if port != old)
    try:
        _give_slot(redis_cluster, on_cluster.keys.ready, new)
        assert (await inspector.read("q")).server == f"127.0.0.1:{new}"
        assert await fences.fence("q", "r1", "moved")
        assert dict((await inspector.read("q")).fences) == {"r1": "moved"}
        await fences.unfence("q", "r1")
    finally:
        _give_slot(redis_cluster, on_cluster.keys.ready, old)
    assert (await inspector.read("q")).server == before


def _give_slot(cluster: RedisCluster, key: str, port: int) -> None:
    """Move an empty slot. The new owner is told first: the others must not point to one that refuses."""
    with contextlib.ExitStack() as stack:
        clients = {node.port: stack.enter_context(redis.Redis(port=node.port)) for node in cluster.nodes}
        slot = clients[port].execute_command("CLUSTER", "KEYSLOT", key)
        name = clients[port].execute_command("CLUSTER", "MYID")
        # Without the latest epoch, an earlier owner's next gossip takes the slot back where it arrives.
        clients[port].execute_command("CLUSTER", "BUMPEPOCH")
        for client in (clients[port], *clients.values()):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)


async def test_what_the_server_spends_is_read_where_the_user_may_ask(standalone: Site) -> None:
    inspector = standalone.inspector()
    first = await inspector.read("q")
    assert first.cpu_seconds is not None
    for _ in range(20):
        standalone.client.eval("for i = 1, 500000 do end", 0)
    second = await inspector.read("q")
    assert second.cpu_seconds is not None
    assert 0 < second.cpu_seconds - first.cpu_seconds < 60

    standalone.client.execute_command("ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-info", "-role")
    denied = f"redis://blind:pw@127.0.0.1:{standalone.url.rpartition(':')[2]}"
    reading = await standalone.inspector(denied).read("q")
    assert (reading.cpu_seconds, reading.role, reading.ready) == (None, Role.UNKNOWN, 0)
