"""The list of live workers: who announces itself, who is cleared away, and by whose clock."""

from __future__ import annotations

import dataclasses
import time

import pytest

from tests.brokers.site import CALM, Site, eventually
from tests.brokers.test_redis_claims import run
from worker_runtime.brokers.base import BrokerRefusedError, Presence, WorkerIdentity
from worker_runtime.brokers.redis import transitions

BUSY = Presence(receiving=True, outstanding=3, coroutines=2, prefetch=10)
SHORT = dataclasses.replace(CALM, expiry=0.001)


async def test_how_the_one_before_it_ended_is_told_in_short(site: Site) -> None:
    me = WorkerIdentity("r7", "w1", "pod-1", restarts=2, last_end="exit code 1" * 100, place="ab/0")
    renewer = site.broker().renewer("q", me)
    await renewer.announce(BUSY)
    (worker,) = (await site.read()).workers
    await renewer.close()
    assert (worker.restarts, worker.last_end) == (2, ("exit code 1" * 100)[:100])
    assert worker.place == "ab/0"


async def test_a_worker_is_listed_with_what_it_says_until_it_signs_off(site: Site) -> None:
    renewer = site.renewer("pod-1-ab", "r7", host="pod-1")
    await renewer.announce(BUSY)
    (worker,) = (await site.read()).workers
    assert (worker.worker, worker.revision, worker.protocol, worker.host) == (
        "pod-1-ab",
        "r7",
        "Reservation",
        "pod-1",
    )
    assert (worker.receiving, worker.reason, worker.outstanding) == (True, "", 3)
    assert (worker.coroutines, worker.prefetch) == (2, 10)
    assert 0 <= worker.uptime < 300
    assert 300 < worker.expires_in <= CALM.expiry
    await renewer.announce(dataclasses.replace(BUSY, receiving=False, reason="fenced: stop", outstanding=0))
    (later,) = (await site.read()).workers
    assert (later.receiving, later.reason, later.outstanding) == (False, "fenced: stop", 0)
    await renewer.sign_off()
    await renewer.sign_off()
    assert list((await site.read()).workers) == []
    assert not site.client.exists(site.keys.workers)
    assert not site.client.exists(site.keys.roster)


async def test_the_age_of_a_worker_counts_from_its_first_beat(standalone: Site) -> None:
    await standalone.renewer().announce(BUSY)
    record = standalone.client.hget(standalone.keys.roster, "w1")
    hour_ago = int(time.time() * 1000) - 3_600_000
    begin = record.index(b":") + 1
    standalone.client.hset(
        standalone.keys.roster, "w1", record[:begin] + b"%d" % hour_ago + record[record.index(b",") :]
    )
    await standalone.renewer().announce(BUSY)
    (worker,) = (await standalone.read()).workers
    assert 3_500 < worker.uptime < 4_000


async def test_one_that_is_not_heard_of_is_not_listed_and_cleared_by_any_other(standalone: Site) -> None:
    await standalone.renewer("silent", timing=SHORT).announce(BUSY)

    async def gone() -> bool:
        return not (await standalone.read()).workers

    await eventually(gone)
    assert standalone.client.hexists(standalone.keys.roster, "silent")
    await standalone.renewer("other").announce(BUSY)
    assert standalone.client.hkeys(standalone.keys.roster) == [b"other"]
    assert standalone.client.zrange(standalone.keys.workers, 0, -1) == [b"other"]


async def test_one_that_comes_back_late_is_listed_again(standalone: Site) -> None:
    late = standalone.renewer("late", timing=SHORT)
    await late.announce(BUSY)
    await standalone.renewer("other").announce(BUSY)
    await standalone.renewer("late").announce(BUSY)
    assert [each.worker for each in (await standalone.read()).workers] == ["late", "other"]


def test_clearing_is_bounded(standalone: Site) -> None:
    keys, client = standalone.keys, standalone.client
    names = {f"w{n}": 1 for n in range(250)}
    client.zadd(keys.workers, names)
    client.hset(keys.roster, mapping=dict.fromkeys(names, "{}"))
    call = transitions.beat(keys, "new", 60, b"{}")
    assert [run(standalone, call) for _ in range(4)] == [100, 100, 50, 0]
    assert client.hkeys(keys.roster) == [b"new"]


async def test_records_of_others_are_read_as_far_as_they_go(standalone: Site) -> None:
    keys, client = standalone.keys, standalone.client
    for name, record in {
        b"newer": b'{"started":1,"revision":"r9","mood":"fine"}',
        b"broken": b"\xff{",
        b"\xff": b"{}",
    }.items():
        client.zadd(keys.workers, {name: 9e15})
        client.hset(keys.roster, name, record)
    client.zadd(keys.workers, {b"bare": 9e15})
    workers = {each.worker: each for each in (await standalone.read()).workers}
    assert sorted(workers) == ["\\xff", "bare", "broken", "newer"]
    assert workers["newer"].revision == "r9"
    assert "cannot be read" in workers["broken"].reason


@pytest.mark.parametrize("key", ["workers", "roster"])
async def test_a_key_of_another_type_is_named(key: str, standalone: Site) -> None:
    name = getattr(standalone.keys, key)
    standalone.client.set(name, "text")
    with pytest.raises(BrokerRefusedError, match=name):
        await standalone.renewer().announce(BUSY)
    with pytest.raises(BrokerRefusedError, match=name):
        await standalone.broker().check("q")
