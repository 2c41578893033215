"""Delayed retries, dead letters and crash loops, as they look to other readers of the keys."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence

import pytest

from tests.brokers.fault_proxy import Fault, FaultProxy, Seen
from tests.brokers.site import CALM, HASTY, PATIENCE, Site, eventually, receive, settle
from tests.brokers.test_redis_claims import envelope, push
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, Consumer, Delivery, Outcome, Renewer, Settlement, Swept

DAY = dataclasses.replace(CALM, job_ttl=86_400)


async def retry_later(consumer: Consumer, deliveries: Sequence[Delivery], delay: float) -> list[Outcome]:
    outcomes: list[Outcome] = []
    settlements = [Settlement(one, Action.RETRY, "no", delay) for one in deliveries]
    await consumer.settle(settlements, lambda _, outcome, __: outcomes.append(outcome))
    return outcomes


async def test_the_delayed_member_is_the_whole_new_envelope(standalone: Site) -> None:
    client, keys = standalone.client, standalone.keys
    push(standalone, b'{"pid":"a","queue":"q","timestamp":1.5,"attempts":"3","payload":{"x":[ 1.0 ]},"z":1}')
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    before = time.time()
    assert await retry_later(consumer, deliveries, 3600) == [Outcome.REJECTED]
    [(member, due)] = client.zrange(keys.delayed, 0, -1, withscores=True)
    assert b'"payload":{"x":[ 1.0 ]},' in member
    written = json.loads(member)
    assert list(written) == ["pid", "queue", "timestamp", "payload", "attempts"]
    assert (written["queue"], written["attempts"]) == ("q", 4)
    assert written["pid"] != "a"
    assert written["timestamp"] == int(due / 1000), "dated by the moment from which it may be taken"
    assert before + 3590 < due / 1000 < time.time() + 3610
    assert not client.exists(keys.job("a"), keys.reason("a"), keys.failed, keys.dead, keys.processing)
    assert (client.get(keys.failed_count), client.get(keys.processing_count)) == (b"1", b"0")
    assert (await standalone.read()).private == 1


async def test_thousands_that_are_due_come_in_order_to_the_end_of_the_queue(standalone: Site) -> None:
    count = 2500
    client, keys = standalone.client, standalone.keys
    client.zadd(keys.delayed, {envelope(f"p{n:05}"): n for n in range(count)})
    client.zadd(keys.delayed, {envelope("later"): (time.time() + 3600) * 1000})
    push(standalone, envelope("first"))
    promoted = await standalone.renewer().promote()
    assert promoted.moved == count
    assert promoted.next_due is not None
    assert 3500 < promoted.next_due < 3700
    assert standalone.ready() == [envelope("first"), *(envelope(f"p{n:05}") for n in range(count))]


async def test_a_consumer_without_a_renewer_finds_what_is_due(standalone: Site) -> None:
    standalone.client.zadd(standalone.keys.delayed, {envelope("a"): 1})
    consumer = standalone.consumer(timing=dataclasses.replace(CALM, block=0.02))
    assert [one.pid for one in (await receive(consumer)).deliveries] == ["a"]


@pytest.mark.parametrize("action", [Action.REJECT, Action.DEAD])
async def test_the_time_to_live_starts_with_the_rejection(action: Action, standalone: Site) -> None:
    client, keys = standalone.client, standalone.keys
    push(standalone, envelope("a"), envelope("b"))
    consumer = standalone.consumer(timing=DAY)
    one, _ = (await receive(consumer)).deliveries
    assert client.ttl(keys.job("a")) == -1
    outcomes: list[Outcome] = []
    await consumer.settle([Settlement(one, action, "why")], lambda _, outcome, __: outcomes.append(outcome))
    for key in (keys.job("a"), keys.reason("a")):
        assert 86_000 < client.ttl(key) <= 86_400
    assert client.ttl(keys.job("b")) == -1
    assert client.get(keys.job("a")) == envelope("a"), "as its producer wrote it"


async def test_a_reason_never_stays_for_ever(standalone: Site) -> None:
    push(standalone, envelope("a"))
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    await consumer.settle([Settlement(deliveries[0], Action.REJECT, "why")], lambda *_: None)
    assert standalone.client.ttl(standalone.keys.job("a")) == -1
    assert 29 < standalone.client.ttl(standalone.keys.reason("a")) / 86_400 <= 30


async def test_a_late_retry_writes_nothing(standalone: Site) -> None:
    await standalone.publish(b"1", b"2")
    old = standalone.consumer("old", timing=HASTY)
    lost = (await receive(old)).deliveries
    await eventually(lambda: _recovered(standalone.renewer("new")))
    new = standalone.consumer("new")
    taken = (await receive(new, 1)).deliveries
    assert await retry_later(old, lost, 0) == [Outcome.SUPERSEDED, Outcome.MISSING]
    outcomes: list[Outcome] = []
    dead = [Settlement(one, Action.DEAD, "why") for one in lost]
    await old.settle(dead, lambda _, outcome, __: outcomes.append(outcome))
    assert outcomes == [Outcome.SUPERSEDED, Outcome.MISSING]
    assert not standalone.client.keys(f"{standalone.namespace}.reason.*")
    reading = await standalone.read()
    assert (reading.delayed, reading.dead, reading.ready, reading.owned) == (0, 0, 1, 1)
    assert await settle(new, taken, Action.COMMIT) == [Outcome.COMMITTED]


async def test_a_wrong_type_stops_retries_before_any_write_and_nothing_else(standalone: Site) -> None:
    await standalone.publish(b"1", b"2")
    consumer = standalone.consumer()
    one, two = (await receive(consumer)).deliveries
    standalone.client.set(standalone.keys.delayed, "x")
    assert await retry_later(consumer, [one], 0) == [Outcome.UNKNOWN]
    assert await settle(consumer, [two], Action.COMMIT) == [Outcome.COMMITTED]
    standalone.client.delete(standalone.keys.delayed)
    assert (await standalone.read()).owned == 1
    assert await retry_later(consumer, [one], 0) == [Outcome.REJECTED]


# crash loops


async def _recovered(renewer: Renewer) -> bool:
    recovered = await renewer.recover()
    return recovered.deliveries + recovered.crash_loops > 0


async def _lose_owner(site: Site, renewer: Renewer) -> None:
    consumer = site.consumer("victim", timing=dataclasses.replace(HASTY, block=0.01))
    await site.maintenance().promote("q", everything=True)
    assert (await receive(consumer)).deliveries
    await eventually(lambda: _recovered(renewer))


async def test_a_message_that_loses_too_many_owners_is_a_dead_letter(standalone: Site) -> None:
    client, keys = standalone.client, standalone.keys
    raw = envelope("a", b'{"x" : 1.0}')
    push(standalone, raw)
    renewer = standalone.renewer(timing=DAY, max_takeovers=3)
    for count in (1, 2):
        await _lose_owner(standalone, renewer)
        assert client.hgetall(keys.takeovers) == {b"a": b"%d" % count}
        places = [*standalone.ready(), *client.zrange(keys.delayed, 0, -1)]
        assert places == [raw], "its bytes are untouched"
    assert 6 < client.ttl(keys.takeovers) / 86_400 <= 7
    await _lose_owner(standalone, renewer)
    reading = await standalone.read()
    assert (reading.ready, reading.private, reading.dead, reading.processing) == (0, 0, 1, 0)
    assert client.get(keys.job("a")) == raw
    assert 86_000 < client.ttl(keys.job("a")) <= 86_400
    assert not client.exists(keys.takeovers)
    [dead] = await standalone.maintenance().retained("q")
    assert (dead.pid, dead.why) == ("a", "crash-loop")
    assert "3 times" in dead.reason
    assert "victim" in dead.reason
    row = reading.ledger["r1"]
    assert (row.claimed, row.taken_over) == (3, 3)
    assert (reading.total, client.get(keys.failed_count)) == (1, b"1")


async def test_the_count_survives_a_release_and_ends_with_a_settlement(standalone: Site) -> None:
    client, keys = standalone.client, standalone.keys
    push(standalone, envelope("a"), envelope("b"))
    renewer = standalone.renewer()
    await _lose_owner(standalone, renewer)
    consumer = standalone.consumer()
    await settle(consumer, (await receive(consumer)).deliveries, Action.RELEASE)
    assert client.hgetall(keys.takeovers) == {b"a": b"1", b"b": b"1"}
    await settle(consumer, (await receive(consumer)).deliveries, Action.COMMIT, Action.REJECT)
    assert not client.exists(keys.takeovers)


async def test_no_limit_means_no_limit(standalone: Site) -> None:
    push(standalone, envelope("a"))
    renewer = standalone.renewer(max_takeovers=0)
    for _ in range(12):
        await _lose_owner(standalone, renewer)
    assert (await standalone.read()).delayed == 1
    [(_, due)] = standalone.client.zrange(standalone.keys.delayed, 0, -1, withscores=True)
    assert 20 < due / 1000 - time.time() < 100, "the wait between takeovers is bounded"


async def test_what_lost_its_owner_twice_is_parted_from_its_companions(standalone: Site) -> None:
    """One message that kills its worker takes all down that were prefetched with it, again and again, unless
    they come back at other times than it does."""
    client, keys = standalone.client, standalone.keys
    raws = [envelope(f"p{n:02}") for n in range(40)]
    push(standalone, *raws)
    renewer = standalone.renewer()
    await _lose_owner(standalone, renewer)
    assert standalone.ready() == raws, "once is no suspicion: to the head, in order"
    before = time.time()
    await _lose_owner(standalone, renewer)
    apart = client.zrange(keys.delayed, 0, -1, withscores=True)
    assert sorted(raw for raw, _ in apart) == sorted(raws)
    waits = [due / 1000 - before for _, due in apart]
    assert min(waits) > 0.4
    assert max(waits) - min(waits) > 0.5
    reading = await standalone.read()
    assert (reading.delayed, reading.ready, reading.owned, reading.total) == (40, 0, 0, 0)


# faults: each step cut before it ran and after it ran


def at(number: int, name: str, fault: Fault) -> tuple[list[int], object]:
    """A rule for the n-th command of a name; what it met is counted in the list."""
    met = [0]

    def rule(seen: Seen) -> Fault:
        if seen.name == name:
            met[0] += 1
            if met[0] == number:
                return fault
        return Fault.PASS

    return met, rule


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
async def test_a_worker_cut_off_in_a_retry_leaves_one_message(
    fault: Fault, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    await standalone.publish(b"1")
    _, rule = at(1, "settle", fault)
    async with FaultProxy(redis_server.port, rule) as proxy:  # type: ignore[arg-type]
        consumer = standalone.consumer(timing=HASTY, url=proxy.url)
        deliveries = (await receive(consumer)).deliveries
        assert await retry_later(consumer, deliveries, 0) == [Outcome.UNKNOWN]
    reading = await standalone.read()
    expected = (1, 0) if fault is Fault.CUT_BEFORE else (0, 1)
    assert (reading.owned, reading.delayed, reading.ready) == (*expected, 0)
    renewer = standalone.renewer()
    if fault is Fault.CUT_BEFORE:
        await eventually(lambda: _recovered(renewer))
    else:
        assert (await renewer.promote()).moved == 1
    [again] = (await receive(standalone.consumer())).deliveries
    assert (again.payload, again.attempts) == (b"1", reading.delayed)


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_promotion_that_is_cut_off_promotes_once(
    step: int, fault: Fault, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    raws = [envelope(f"p{n:05}") for n in range(2500)]
    standalone.client.zadd(standalone.keys.delayed, {raw: n for n, raw in enumerate(raws)})
    met, rule = at(step, "promote_delayed", fault)
    async with FaultProxy(redis_server.port, rule) as proxy:  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE):
            await standalone.renewer(url=proxy.url).promote()
        assert met[0] >= step
    await standalone.renewer().promote()
    assert standalone.ready() == raws
    assert (await standalone.read()).delayed == 0


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.any_server
async def test_a_sweep_that_dies_at_any_command_loses_and_doubles_nothing(
    fault: Fault, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    payloads = [b"%d" % n for n in range(450)]
    commands, step = 100, 0
    while step < commands:
        step += 1
        await standalone.publish(*payloads)
        consumer = standalone.consumer(f"w{step}")
        await settle(consumer, (await receive(consumer, 1000)).deliveries, Action.REJECT)
        dead = False

        def rule(seen: Seen, step: int = step) -> Fault:
            nonlocal dead
            dead = dead or seen.number == step
            return fault if seen.number == step else Fault.CUT_BEFORE if dead else Fault.PASS

        async with FaultProxy(redis_server.port, rule) as proxy:
            sweeper = standalone.maintenance(url=proxy.url)
            result = await asyncio.gather(sweeper.retry("q"), return_exceptions=True)
            if not dead:
                commands = 0
                assert list(result) == [Swept(retried=450)]
        reading = await standalone.read()
        assert reading.ready + reading.failed == len(payloads)
        await standalone.maintenance().retry("q")
        deliveries = (await receive(consumer, 1000)).deliveries
        assert sorted(one.payload for one in deliveries) == sorted(payloads)
        await settle(consumer, deliveries, Action.COMMIT)
        assert not standalone.client.keys(f"{standalone.namespace}.jobs.*")
    assert step > 10


async def test_a_full_server_still_takes_retries_and_gives_them_back(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    """Each transition frees memory before it takes any, so that work can leave a server that is full."""
    client = standalone.client
    push(standalone, *(envelope(f"p{n}") for n in range(4)))
    consumer = standalone.consumer()
    one, two, three, four = (await receive(consumer)).deliveries
    client.zadd(standalone.keys.liveness, {four.pid: 1})
    client.config_set("maxmemory", 1)
    try:
        assert await retry_later(consumer, [one], 0) == [Outcome.REJECTED]
        outcomes = await settle(consumer, [two, three], Action.DEAD, Action.REJECT)
        assert outcomes == [Outcome.REJECTED] * 2
        renewer = standalone.renewer(max_takeovers=1)
        assert (await renewer.promote()).moved == 1
        assert (await renewer.recover()).crash_loops == 1
    finally:
        client.config_set("maxmemory", 0)
    reading = await standalone.read()
    assert (reading.ready, reading.dead, reading.failed, reading.private) == (1, 2, 1, 0)
