"""Reading a queue whatever it holds."""

from __future__ import annotations

import time

import pytest

from tests.brokers.site import Site, receive
from tests.brokers.test_redis_claims import envelope, push, run
from worker_runtime.brokers.base import BrokerRefusedError, LedgerRow
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
