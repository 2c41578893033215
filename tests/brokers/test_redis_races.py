"""Two sides want the same message at the same moment, a thousand times; a server that forgets."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
import redis

from tests.brokers.site import CALM, PATIENCE, Site, receive, settle
from tests.brokers.test_redis_claims import envelope, push
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, BrokerUnavailableError, Delivery, Outcome, Recovered


@pytest.mark.parametrize("action", [Action.COMMIT, Action.REJECT, Action.RELEASE, Action.RETRY])
async def test_a_settlement_against_recovery_has_one_winner(action: Action, standalone: Site) -> None:
    """250 interleavings for each kind of settlement, their order and distance from a seed."""
    chance = random.Random(action.value)
    wins: Counter[str] = Counter()
    wanted = {Action.COMMIT: Outcome.COMMITTED, Action.RELEASE: Outcome.RELEASED}.get(
        action, Outcome.REJECTED
    )
    push(standalone, *(envelope(f"p{n}") for n in range(250)))
    consumer, renewer = standalone.consumer(), standalone.renewer(max_takeovers=0)
    deliveries = (await receive(consumer, 250)).deliveries
    client, liveness = standalone.client, standalone.keys.liveness
    # Seconds that a settlement is late at most: less after one that was, more after one that was not. So
    # both sides win on a quick machine and on a busy one.
    latest = 0.004

    async def late(seconds: float, delivery: Delivery) -> Outcome:
        await asyncio.sleep(seconds)
        return (await settle(consumer, [delivery], action))[0]

    for delivery in deliveries:
        client.zadd(liveness, {delivery.pid: 1})
        racers = [late(chance.uniform(0, latest), delivery), renewer.recover()]
        chance.shuffle(racers)
        results = await asyncio.wait_for(asyncio.gather(*racers), PATIENCE)
        outcome = next(one for one in results if isinstance(one, Outcome))
        recovered = next(one.deliveries for one in results if isinstance(one, Recovered))
        assert (outcome, recovered) in ((wanted, 0), (Outcome.MISSING, 1)), delivery.pid
        wins["recovery" if recovered else "settlement"] += 1
        latest *= 0.9 if recovered else 1.1
    assert set(wins) == {"recovery", "settlement"}, "one side always came first: nothing raced"
    reading = await standalone.read()
    row = reading.ledger["r1"]
    assert (reading.owned, reading.processing, row.taken_over) == (0, 0, wins["recovery"])
    assert row.committed + row.rejected + row.released == wins["settlement"]
    assert row.claimed == 250
    delayed = wins["settlement"] if action is Action.RETRY else 0
    back = wins["recovery"] + (wins["settlement"] if action is Action.RELEASE else 0)
    assert (reading.ready, reading.delayed) == (back, delayed)


async def test_scripts_are_flushed_at_every_fifth_batch_under_load(standalone: Site) -> None:
    """Counted in batches and not in time: a quick machine is done before a clock has ticked twice."""
    push(standalone, *(envelope(f"p{n}") for n in range(3000)))
    quick = dataclasses.replace(CALM, block=0.01)
    consumers = [standalone.consumer(f"w{n}", timing=quick) for n in range(3)]
    renewers = [standalone.renewer(f"w{n}") for n in range(3)]
    seen: Counter[str] = Counter()
    batches = itertools.count(1)
    flushes = 0

    async def flush() -> None:
        nonlocal flushes
        await asyncio.to_thread(standalone.client.script_flush)
        flushes += 1

    async def consume(number: int) -> None:
        # Flushed beside the calls, so that some find their script missing in the middle of a batch.
        async with asyncio.TaskGroup() as beside:
            while deliveries := (await receive(consumers[number], 20)).deliveries:
                if next(batches) % 5 == 0:
                    beside.create_task(flush())
                assert not await renewers[number].extend(deliveries)
                outcomes = await settle(consumers[number], deliveries, Action.COMMIT)
                assert set(outcomes) == {Outcome.COMMITTED}
                seen.update(one.pid for one in deliveries)

    await asyncio.gather(*(consume(number) for number in range(3)))
    assert flushes >= 3000 / 20 / 5
    reading = await standalone.read()
    assert (set(seen.values()), len(seen)) == ({1}, 3000)
    assert (reading.success, reading.ready, reading.private) == (3000, 0, 0)


async def test_a_server_that_comes_back_without_its_data(make_site: Callable[..., Site]) -> None:
    """Nothing of before can be settled any more, and what is published from then on is consumed."""
    with EmbeddedRedis() as server:
        site = make_site(server.url, redis.Redis(port=server.port), "ns")
        consumer = site.consumer(timing=dataclasses.replace(CALM, block=10_000))
        renewer = site.renewer()
        await site.publish(b"1", b"2", b"3")
        before = (await receive(consumer, 2)).deliveries
        server.restart()
        # By one that knows nothing of the restart, and by one whose connection ended with it.
        fresh = site.consumer("fresh")
        assert set(await settle(fresh, before, Action.RELEASE)) == {Outcome.MISSING}
        assert set(await settle(consumer, before, Action.COMMIT)) <= {Outcome.MISSING, Outcome.UNKNOWN}
        await site.publish(b"4")
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    after = (await consumer.receive(10)).deliveries
                    lost = list(await renewer.extend(before))
                    break
                except BrokerUnavailableError:
                    await asyncio.sleep(0.02)
        assert [one.payload for one in after] == [b"4"]
        assert lost == list(before)
        assert await settle(consumer, after, Action.COMMIT) == [Outcome.COMMITTED]
        reading = await site.read()
        assert (reading.success, reading.total, reading.private, reading.ready) == (1, 1, 0, 0)
        assert (reading.ledger["r1"].claimed, reading.ledger["r1"].committed) == (1, 1)


@pytest.mark.parametrize(
    "pid", ["{a}.b", "a{b}c{d}", "..", "p.reservation.q", "*", "a\\u0000b", "é☃", "0" * 250]
)
async def test_a_pid_may_be_any_text(pid: str, site: Site) -> None:
    """It becomes part of a key; braces in it do not move that key to another slot."""
    raw = b'{"pid":"%b","queue":"q","timestamp":1,"payload":{"n":1}}' % pid.encode()
    push(site, raw, raw)
    consumer = site.consumer()
    deliveries = (await receive(consumer, 1)).deliveries
    assert deliveries[0].payload == b'{"n":1}'
    assert not await site.renewer().extend(deliveries)
    assert await settle(consumer, deliveries, Action.RELEASE) == [Outcome.RELEASED]
    assert site.ready() == [raw, raw]
    deliveries = (await receive(consumer, 1)).deliveries
    site.client.zadd(site.keys.liveness, {deliveries[0].pid: 1})
    assert (await site.renewer().recover()).deliveries == 1
    assert site.ready() == [raw, raw]
    deliveries = (await receive(consumer, 1)).deliveries
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED]
    reading = await site.read()
    assert (reading.success, reading.ready, reading.private) == (1, 1, 0)
