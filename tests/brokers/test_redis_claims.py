"""Poison, twins, and asking twice."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.brokers.site import CALM, Site, receive, settle
from worker_runtime.brokers.base import Action, Outcome
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.poison import decode_poison
from worker_runtime.brokers.redis.scripts import Call


def envelope(pid: str, payload: bytes = b"1") -> bytes:
    return b'{"pid":"%b","queue":"q","timestamp":1,"payload":%b}' % (pid.encode(), payload)


def push(site: Site, *raws: bytes) -> None:
    site.client.lpush(site.keys.ready, *raws)


def run(site: Site, call: Call) -> Any:
    """The reply, which each script has of its own kind."""
    return site.client.execute_command(*call.by_source())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "json"),
        (b"\x00\xff\n\xfe\x00", "json"),
        (b'{"a":1}\n{"b":2}', "json"),
        (b"[]", "not-an-object"),
        (b'{"pid":"x","timestamp":1}', "payload"),
        (b'{"pid":"","timestamp":1,"payload":1}', "pid"),
        (b'{"pid":"x","timestamp":[],"payload":1}', "timestamp"),
        (bytes(range(256)) * 4096, "json"),
    ],
)
async def test_poison_keeps_its_bytes_and_the_others_are_delivered(
    raw: bytes, reason: str, standalone: Site
) -> None:
    good = [envelope(f"p{n}", b"%d" % n) for n in range(99)]
    push(standalone, *good[:50], raw, *good[50:])
    consumer = standalone.consumer("w7", "r9")
    received = await receive(consumer, 100)
    assert received.poisoned == 1
    assert [one.payload for one in received.deliveries] == [b"%d" % n for n in range(99)]
    entry = decode_poison(standalone.client.lrange(standalone.keys.poison, 0, -1)[0])
    assert (entry.raw, entry.reason, entry.revision, entry.worker) == (raw, reason, "r9", "w7")
    assert entry.detail
    assert entry.at > 1_700_000_000_000
    assert set(await settle(consumer, received.deliveries, Action.COMMIT)) == {Outcome.COMMITTED}
    reading = await standalone.read()
    assert (reading.poison, reading.total, reading.success, reading.private) == (1, 99, 99, 0)
    assert (reading.ledger["r9"].poisoned, reading.ledger["r9"].claimed) == (1, 99)


async def test_only_poison(standalone: Site) -> None:
    push(standalone, b"a", b"b")
    received = await receive(standalone.consumer())
    assert (len(received.deliveries), received.poisoned) == (0, 2)
    assert (await standalone.read()).private == 0


async def test_twins_in_one_batch_are_two_deliveries(standalone: Site) -> None:
    raws = [envelope("twin", b"1"), envelope("twin", b"2"), envelope("other", b"3"), envelope("twin", b"4")]
    push(standalone, *raws)
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    assert sorted(one.payload for one in deliveries) == [b"1", b"2", b"3", b"4"]
    assert len({one.pid for one in deliveries}) == 4
    assert deliveries[0].pid == "twin"
    for one in deliveries:
        record = standalone.client.get(standalone.keys.job(one.pid))
        assert json.loads(record)["payload"] == int(one.payload)
    assert set(await settle(consumer, deliveries, Action.RELEASE)) == {Outcome.RELEASED}
    assert sorted(standalone.ready()) == sorted(raws)


async def test_a_twin_of_owned_work_never_overwrites_it(standalone: Site) -> None:
    push(standalone, envelope("twin", b"1"))
    a, b = standalone.consumer("a"), standalone.consumer("b")
    first = (await receive(a)).deliveries
    push(standalone, envelope("twin", b"2"), envelope("other", b"3"))
    second = (await receive(b)).deliveries
    assert sorted(one.payload for one in second) == [b"2", b"3"]
    assert "twin" not in {one.pid for one in second}
    assert standalone.client.get(standalone.keys.job("twin")) == envelope("twin", b"1")
    assert await settle(a, first, Action.RELEASE) == [Outcome.RELEASED]
    assert set(await settle(b, second, Action.COMMIT)) == {Outcome.COMMITTED}
    assert standalone.ready() == [envelope("twin", b"1")]


async def test_a_twin_of_owned_work_without_a_record_leaves_its_owner(standalone: Site) -> None:
    push(standalone, envelope("twin", b"1"))
    a, b = standalone.consumer("a"), standalone.consumer("b")
    first = (await receive(a)).deliveries
    standalone.client.delete(standalone.keys.job("twin"))
    push(standalone, envelope("twin", b"2"))
    second = (await receive(b)).deliveries
    assert [one.payload for one in second] == [b"2"]
    assert await settle(a, first, Action.COMMIT) == [Outcome.COMMITTED]
    assert await settle(b, second, Action.COMMIT) == [Outcome.COMMITTED]


async def test_a_twin_of_a_failed_message_keeps_the_failed_record(standalone: Site) -> None:
    push(standalone, envelope("twin", b"1"))
    consumer = standalone.consumer()
    await settle(consumer, (await receive(consumer)).deliveries, Action.REJECT)
    push(standalone, envelope("twin", b"2"))
    again = (await receive(consumer)).deliveries
    assert [one.payload for one in again] == [b"2"]
    assert again[0].pid != "twin"
    assert standalone.client.get(standalone.keys.job("twin")) == envelope("twin", b"1")


async def test_release_gives_back_the_very_bytes(standalone: Site) -> None:
    raws = [
        b'{ "payload" : {"b":1,"a":[ ],"e":{}} , "pid":"a.{b}.c", "timestamp": "12", "x": 1.0 }',
        b'{"pid":"2","timestamp":1.50,"payload":"\\u00e9\\/","attempts":2,"queue":"elsewhere"}',
    ]
    push(standalone, *raws)
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    assert [(one.attempts, one.queue) for one in deliveries] == [(0, "q"), (2, "q")]
    await settle(consumer, deliveries, Action.RELEASE)
    assert standalone.ready() == raws
    reading = await standalone.read()
    assert (reading.total, reading.processing, reading.private) == (0, 0, 0)


async def test_release_without_a_record_changes_nothing_for_that_one(standalone: Site) -> None:
    push(standalone, envelope("a"), envelope("b"))
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    standalone.client.delete(standalone.keys.job("a"))
    assert await settle(consumer, deliveries, Action.RELEASE) == [Outcome.MISSING, Outcome.RELEASED]
    reading = await standalone.read()
    assert (reading.ready, reading.owned, reading.processing, reading.total) == (1, 1, 1, 1)


async def test_a_rejected_record_starts_to_age_when_it_is_rejected(standalone: Site) -> None:
    push(standalone, envelope("a"), envelope("b"))
    consumer = standalone.consumer(timing=dataclasses.replace(CALM, job_ttl=500))
    deliveries = (await receive(consumer)).deliveries
    assert standalone.client.ttl(standalone.keys.job("a")) == -1
    await settle(consumer, deliveries, Action.REJECT, Action.COMMIT)
    assert 0 < standalone.client.ttl(standalone.keys.job("a")) <= 500
    assert standalone.client.get(standalone.keys.job("b")) is None
    assert standalone.client.lrange(standalone.keys.failed, 0, -1) == [b"a"]
    assert standalone.client.get(standalone.keys.failed_count) == b"1"


async def test_staging_goes_first_and_comes_back_in_order(standalone: Site) -> None:
    raws = [envelope(f"p{n}") for n in range(5)]
    push(standalone, *raws)
    for _ in range(3):
        standalone.client.blmove(standalone.keys.ready, standalone.keys.staging, 1, "RIGHT", "LEFT")
    keys = standalone.keys
    assert run(standalone, transitions.reserve(keys, "one", "r", 1, 9))[2:] == raws[:1]
    assert run(standalone, transitions.unstage(keys, 1)) == 1
    assert run(standalone, transitions.unstage(keys, 1000)) == 1
    assert run(standalone, transitions.unstage(keys, 1000)) == 0
    assert standalone.ready() == raws[1:]


async def test_asking_twice_for_a_reservation_gives_the_same(standalone: Site) -> None:
    raws = [envelope(f"p{n}") for n in range(5)]
    push(standalone, *raws)
    call = transitions.reserve(standalone.keys, "one", "r", 3, 9)
    first = run(standalone, call)
    standalone.client.hset(standalone.keys.fence, "r", "stop")
    assert run(standalone, call) == first
    assert run(standalone, transitions.reserve(standalone.keys, "two", "r", 3, 9)) == [b"fenced", b"stop"]
    assert standalone.client.llen(standalone.keys.ready) == 2


async def test_asking_twice_for_a_claim_claims_once(standalone: Site) -> None:
    keys = standalone.keys
    push(standalone, envelope("a"), envelope("b"), b"junk")
    deadline = run(standalone, transitions.reserve(keys, "one", "r", 9, 9))[1]
    poison = [(2, b'{"reason":"json"}')]
    call = transitions.claim(keys, "one", deadline, "r w one", "r", 9, ["a", "b"], poison)
    assert run(standalone, call) == [b"claimed"]
    assert run(standalone, call) == [b"before", 0, 1]
    reading = await standalone.read()
    assert (reading.total, reading.owned, reading.poison, reading.ledger["r"].claimed) == (2, 2, 1, 2)


async def test_a_late_claim_does_not_touch_a_new_reservation_of_the_same_name(standalone: Site) -> None:
    keys = standalone.keys
    push(standalone, envelope("a"))
    deadline = run(standalone, transitions.reserve(keys, "one", "r", 9, 9))[1]
    call = transitions.claim(keys, "one", deadline, "r w one", "r", 9, ["a"])
    assert run(standalone, call) == [b"claimed"]
    push(standalone, envelope("b"))
    again = run(standalone, transitions.reserve(keys, "one", "r", 9, 99))
    assert again[2:] == [envelope("b")]
    assert run(standalone, call) == [b"before", 0]
    assert standalone.client.lrange(keys.reservation("one"), 0, -1) == [envelope("b")]


async def test_a_large_payload_passes_through(standalone: Site) -> None:
    payload = b'"' + b"x" * 10_000_000 + b'"'
    await standalone.publish(payload, b"1")
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    assert [len(one.payload) for one in deliveries] == [len(payload), 1]
    assert set(await settle(consumer, deliveries, Action.COMMIT)) == {Outcome.COMMITTED}
