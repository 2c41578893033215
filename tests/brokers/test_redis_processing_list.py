"""The processing list after settlements and takeovers: what they concern is gone, the rest is in order."""

from __future__ import annotations

import random

import pytest

from tests.brokers.site import Site, receive, settle
from worker_runtime.brokers.base import Action, Outcome


def listed(site: Site) -> list[str]:
    return [pid.decode() for pid in site.client.lrange(site.keys.processing, 0, -1)]


@pytest.mark.parametrize("seed", range(12))
async def test_settlements_leave_everybody_elses_entries_in_order(seed: int, standalone: Site) -> None:
    chance = random.Random(seed)
    history = [f"old{n}" for n in range(chance.choice([0, 3, 500]))]
    if history:
        standalone.client.rpush(standalone.keys.processing, *history)
    consumers = [standalone.consumer(f"w{n}") for n in range(chance.choice([1, 2, 12]))]
    owned = []
    for turn in range(24):
        consumer = consumers[turn % len(consumers)]
        await standalone.publish(*[b"%d" % n for n in range(chance.choice([1, 7, 40]))])
        owned += [(consumer, one) for one in (await receive(consumer, 40)).deliveries]
        if chance.random() < 0.3:  # a worker of the older protocol takes one
            standalone.client.lpush(standalone.keys.processing, f"legacy{turn}")
        if chance.random() < 0.2:  # or an entry is taken away behind our back
            standalone.client.lrem(standalone.keys.processing, 1, chance.choice(owned)[1].pid)
        mine = [one for of, one in owned if of is consumer]
        chosen = chance.sample(mine, chance.randint(0, len(mine)))
        before, settled = listed(standalone), {one.pid for one in chosen}
        outcomes = await settle(consumer, chosen, Action.COMMIT)
        assert set(outcomes) <= {Outcome.COMMITTED}
        assert listed(standalone) == [pid for pid in before if pid not in settled]
        owned = [(of, one) for of, one in owned if one.pid not in settled]


async def test_an_entry_that_stands_there_twice_goes_once(standalone: Site) -> None:
    await standalone.publish(*[b"%d" % n for n in range(20)])
    consumer = standalone.consumer()
    deliveries = (await receive(consumer, 20)).deliveries
    standalone.client.lpush(standalone.keys.processing, deliveries[3].pid)
    await settle(consumer, deliveries[:16], Action.COMMIT)
    left = [one.pid for one in reversed(deliveries[16:])]
    assert listed(standalone) == [*left, deliveries[3].pid]


@pytest.mark.parametrize("history", [0, 500])
async def test_a_takeover_leaves_everybody_elses_entries_in_order(history: int, standalone: Site) -> None:
    keys, client = standalone.keys, standalone.client
    for turn in range(10):
        await standalone.publish(*[b"%d" % n for n in range(20)])
        overdue = (await receive(standalone.consumer("dead"), 10)).deliveries
        await receive(standalone.consumer("alive"), 10)
        client.zadd(keys.liveness, {one.pid: turn + 1 for one in overdue[::2]})
    if history:
        client.rpush(keys.processing, *[f"old{n}" for n in range(history)])
        client.mset({keys.job(f"old{n}"): b"of another protocol" for n in range(history)})
    gone = {
        pid.decode() for pid, expiry in client.zrange(keys.liveness, 0, -1, withscores=True) if expiry < 99
    }
    before = listed(standalone)
    assert len(gone) == 50
    assert (await standalone.renewer().recover()).deliveries == 50
    assert listed(standalone) == [pid for pid in before if pid not in gone]


@pytest.mark.parametrize("count", [1, 16])
async def test_of_two_entries_the_newest_goes(count: int, standalone: Site) -> None:
    """A settlement looks from the new end, so what an older worker left behind costs it nothing and stays."""
    await standalone.publish(*[b"1"] * 16)
    consumer = standalone.consumer()
    deliveries = (await receive(consumer, 16)).deliveries
    pid = deliveries[0].pid
    standalone.client.rpush(standalone.keys.processing, *[f"old{n}" for n in range(50)], pid)
    assert set(await settle(consumer, deliveries[:count], Action.COMMIT)) == {Outcome.COMMITTED}
    assert listed(standalone)[-1] == pid
    assert listed(standalone).count(pid) == 1
