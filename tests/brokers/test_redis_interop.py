"""Side by side with workers and producers of utopia-php/queue 4 on one queue."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections import Counter

import pytest
import redis

from tests.brokers.legacy_worker import LegacyWorker, php_json
from tests.brokers.site import CALM, PATIENCE, Site, eventually, receive, settle
from worker_runtime.brokers.base import Action, Outcome
from worker_runtime.brokers.emptiness import verify_empty

PID = "6b0c7156da2800.45976061"

#: Envelopes byte for byte, with what a reader has to find in them: payload bytes, timestamp, attempts.
ENVELOPES: dict[str, tuple[bytes, bytes, float, int]] = {
    "as a producer writes it": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"ho","timestamp":1795977558,"payload":{"n":2,"s":"\u00e9\ud83d\ude00","f":1,"e":[],"o":{}}}',
        rb'{"n":2,"s":"\u00e9\ud83d\ude00","f":1,"e":[],"o":{}}',
        1795977558,
        0,
    ),
    "requeued": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"ho","timestamp":1795977558,"payload":[],"attempts":3}',
        b"[]",
        1795977558,
        3,
    ),
    "attempts zero": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"q","timestamp":1,"payload":{},"attempts":0}',
        b"{}",
        1,
        0,
    ),
    "float timestamp": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"q","timestamp":1795977558.8125,"payload":[1]}',
        b"[1]",
        1795977558.8125,
        0,
    ),
    "whole float timestamp": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"q","timestamp":1795977558.0,"payload":[1]}',
        b"[1]",
        1795977558,
        0,
    ),
    "exponent in the timestamp": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"q","timestamp":1.795977558e9,"payload":[1]}',
        b"[1]",
        1795977558,
        0,
    ),
    "numeric text as timestamp": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"q","timestamp":"1795977558","payload":{"a":null}}',
        b'{"a":null}',
        1795977558,
        0,
    ),
    "numeric text with a fraction": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"q","timestamp":"1795977558.25","payload":{"a":null},"attempts":"2"}',
        b'{"a":null}',
        1795977558.25,
        2,
    ),
    "slashes": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"a\/b","timestamp":7,"payload":{"u":"https:\/\/a\/b","v":"c/d"}}',
        rb'{"u":"https:\/\/a\/b","v":"c/d"}',
        7,
        0,
    ),
    "nested empties, order of keys, numbers": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"q","timestamp":7,"payload":{"z":[{},[],[[]],{"a":{}}],"a":1.0,"b":1,"c":1e2,"d":-0.0,"e":12345678901234567890}}',
        rb'{"z":[{},[],[[]],{"a":{}}],"a":1.0,"b":1,"c":1e2,"d":-0.0,"e":12345678901234567890}',
        7,
        0,
    ),
    "raw UTF-8, spaces, another order, unknown fields": (
        '{ "payload" : {"s": "é😀\u2028", "s": 2} , "timestamp":7,"extra":{"x":[1]},"queue":"q",'
        '"pid":"6b0c7156da2800.45976061" }'.encode(),
        '{"s": "é😀\u2028", "s": 2}'.encode(),
        7,
        0,
    ),
    "a NUL in a text": (
        rb'{"pid":"6b0c7156da2800.45976061","queue":"q","timestamp":7,"payload":{"n":"\u0000"}}',
        rb'{"n":"\u0000"}',
        7,
        0,
    ),
}


@pytest.mark.parametrize("name", ENVELOPES)
async def test_bytes_come_back_as_they_came(name: str, site: Site) -> None:
    raw, payload, timestamp, attempts = ENVELOPES[name]
    site.client.lpush(site.keys.ready, raw)
    consumer = site.consumer()
    (delivery,) = (await receive(consumer)).deliveries
    assert (delivery.pid, delivery.payload) == (PID, payload)
    assert (delivery.timestamp, delivery.attempts) == (timestamp, attempts)
    # Given back: the very bytes.
    assert await settle(consumer, [delivery], Action.RELEASE) == [Outcome.RELEASED]
    assert site.ready() == [raw]
    # Rejected: the record is the very bytes, and what the other protocol needs is in it.
    again = (await receive(consumer)).deliveries
    assert await settle(consumer, again, Action.REJECT) == [Outcome.REJECTED]
    assert site.client.lrange(site.keys.failed, 0, -1) == [PID.encode()]
    record = site.client.get(site.keys.job(PID))
    assert record == raw
    assert {"pid", "queue", "timestamp"} <= set(json.loads(record))


@pytest.mark.parametrize("action", [Action.COMMIT, Action.REJECT])
async def test_what_stays_of_a_message_is_what_the_others_leave(action: Action, standalone: Site) -> None:
    legacy = LegacyWorker(standalone.client, standalone.namespace, "theirs")
    legacy.enqueue({"n": 1}, PID)
    message = legacy.receive()
    assert message is not None
    (legacy.commit if action is Action.COMMIT else legacy.reject)(message)

    LegacyWorker(standalone.client, standalone.namespace).enqueue({"n": 1}, PID)
    consumer = standalone.consumer()
    await settle(consumer, (await receive(consumer)).deliveries, action)

    names: dict[str, set[str]] = {"theirs": set(), "q": set()}
    private = {standalone.keys.ledger, standalone.keys.reason(PID)}
    for name in standalone.client.keys(f"{standalone.namespace}.*"):
        text = name.decode()
        queue = "theirs" if ".theirs" in text else "q"
        if text not in private:
            names[queue].add(text.replace(f".{queue}", ".Q"))
    assert names["q"] == names["theirs"]
    for name in names["q"]:
        ours, theirs = (name.replace(".Q", f".{queue}") for queue in ("q", "theirs"))
        assert standalone.client.type(ours) == standalone.client.type(theirs)
        if ".stats." in name:
            assert standalone.client.get(ours) == standalone.client.get(theirs), name


async def test_both_kinds_of_workers_share_one_queue(standalone: Site) -> None:
    """Every message is handled once, and the counters that both kinds write add up."""
    count = 600
    payloads = [{"n": n, "s": "é/", "e": [], "f": n / 4} for n in range(count)]
    producer = LegacyWorker(standalone.client, standalone.namespace)
    for payload in payloads[: count // 2]:
        producer.enqueue(payload)
    handled: list[tuple[str, int]] = []
    stop = threading.Event()
    # Both kinds get their turn, however late one of them is connected: each waits for the other once.
    theirs_began, ours_began = threading.Event(), threading.Event()

    def handler(pid: str, payload: dict[str, int], attempts: int) -> bool:
        handled.append(("theirs", payload["n"]))
        theirs_began.set()
        ours_began.wait(PATIENCE)
        return payload["n"] % 50 != 7

    async def legacy() -> None:
        with redis.Redis(port=standalone.client.connection_pool.connection_kwargs["port"]) as client:
            worker = LegacyWorker(client, standalone.namespace)
            await asyncio.to_thread(worker.work, handler, stop.is_set)

    async def ours(name: str) -> None:
        consumer = standalone.consumer(name, timing=dataclasses.replace(CALM, block=0.2))
        while not stop.is_set():
            deliveries = (await receive(consumer, 7)).deliveries
            actions = []
            for one in deliveries:
                number = json.loads(one.payload)["n"]
                handled.append(("ours", number))
                actions.append(Action.REJECT if number % 50 == 7 else Action.COMMIT)
            if deliveries:
                ours_began.set()
                outcomes = await settle(consumer, deliveries, *actions)
                assert set(outcomes) <= {Outcome.COMMITTED, Outcome.REJECTED}
            await asyncio.to_thread(theirs_began.wait, PATIENCE)

    tasks = [asyncio.create_task(each) for each in (legacy(), legacy(), ours("w1"), ours("w2"))]
    await standalone.publish(*[json.dumps(payload).encode() for payload in payloads[count // 2 :]])

    async def all_handled() -> bool:
        return len(handled) >= count or any(task.done() for task in tasks)

    await eventually(all_handled)
    stop.set()
    theirs_began.set()
    ours_began.set()
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    assert sorted(number for _, number in handled) == list(range(count))
    kinds = Counter(kind for kind, _ in handled)
    assert set(kinds) == {"ours", "theirs"}
    reading = await standalone.read()
    failed = len([n for n in range(count) if n % 50 == 7])
    assert (reading.ready, reading.private, reading.processing) == (0, 0, 0)
    assert (reading.total, reading.success, reading.failed) == (count, count - failed, failed)
    assert standalone.client.get(standalone.keys.processing_count) == b"0"
    assert reading.ledger["r1"].claimed == kinds["ours"]


async def test_their_leftovers_are_recovered_by_the_age_of_the_envelope(standalone: Site) -> None:
    """It died in its handler: a record as it writes it, an entry in processing, no token."""
    legacy = LegacyWorker(standalone.client, standalone.namespace)
    now = int(time.time())
    legacy.enqueue({"n": 1, "s": "é/"}, "old", now - 90_100)
    legacy.enqueue({"n": 2}, "young", now - 80_000)
    records = [legacy.receive(), legacy.receive()]
    renewer = standalone.renewer()
    assert (await renewer.recover()).deliveries == 1
    assert standalone.ready() == [php_json(records[0])]
    assert standalone.client.lrange(standalone.keys.processing, 0, -1) == [b"young"]
    consumer = standalone.consumer()
    (delivery,) = (await receive(consumer)).deliveries
    assert (delivery.pid, json.loads(delivery.payload)) == ("old", {"n": 1, "s": "é/"})
    assert await settle(consumer, [delivery], Action.COMMIT) == [Outcome.COMMITTED]
    # The other one comes back late and finishes by itself.
    assert records[1] is not None
    legacy.commit(records[1])
    reading = await standalone.read()
    assert (reading.total, reading.success, reading.processing, reading.private) == (2, 2, 0, 0)


async def test_their_sweep_leaves_what_our_workers_hold_alone(standalone: Site) -> None:
    legacy = LegacyWorker(standalone.client, standalone.namespace)
    legacy.enqueue({"n": 1})
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    assert legacy.reap() == 0
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED]
    assert standalone.client.llen(standalone.keys.ready) == 0


async def test_after_a_drain_they_read_everything_that_is_left(standalone: Site) -> None:
    """Received, partly rejected, partly taken over, the rest given back: then nothing is private, ready and
    failed hold what came in, byte for byte, and a worker of the other protocol finishes all of it."""
    raws = [
        raw.replace(PID.encode(), b"6b0c7156da28%02d.45976061" % number)
        for number, (raw, *_) in enumerate(ENVELOPES.values())
    ]
    standalone.client.lpush(standalone.keys.ready, *raws)
    leaving, dead = standalone.consumer("leaving"), standalone.consumer("dead")
    first = (await receive(dead, 3)).deliveries
    rest = (await receive(leaving, 100)).deliveries
    assert len(first) + len(rest) == len(raws)
    # Old ones: the sweep of the other protocol leaves what is not older than its own start.
    refused = [one for one in rest if one.timestamp < 10]
    await settle(leaving, refused, Action.REJECT)
    await settle(leaving, [one for one in rest if one.timestamp >= 10], Action.RELEASE)
    standalone.client.delete(standalone.keys.liveness)
    assert (await standalone.renewer().recover()).deliveries == 3
    assert (await verify_empty(standalone.inspector(), "q")).empty

    rejected = [raw for raw in raws[3:] if json.loads(raw)["pid"] in {one.pid for one in refused}]
    ready = [raw for raw in raws if raw not in rejected]
    assert len(rejected) >= 3
    assert standalone.ready() == ready
    pids = list(reversed(standalone.client.lrange(standalone.keys.failed, 0, -1)))
    assert sorted(standalone.client.mget([standalone.keys.job(pid) for pid in pids])) == sorted(rejected)

    legacy = LegacyWorker(standalone.client, standalone.namespace)
    assert legacy.retry() == len(rejected)
    seen = []
    while (message := legacy.receive()) is not None:
        seen.append(message["payload"])
        legacy.commit(message)
    expected = [json.loads(raw)["payload"] for raw in ready]
    assert seen[: len(ready)] == expected
    again = [json.loads(raw)["payload"] for raw in rejected]
    assert sorted(map(str, seen[len(ready) :])) == sorted(map(str, again))
    assert standalone.client.get(standalone.keys.processing_count) == b"0"


async def test_they_read_our_retries(standalone: Site) -> None:
    """A retry of ours is a new envelope around the very payload, with one more attempt."""
    raw, payload, _, attempts = ENVELOPES["nested empties, order of keys, numbers"]
    standalone.client.lpush(standalone.keys.ready, raw)
    consumer = standalone.consumer()
    outcomes = await settle(consumer, (await receive(consumer)).deliveries, Action.RETRY)
    assert outcomes == [Outcome.REJECTED]
    renewer = standalone.renewer()

    async def promoted() -> bool:
        return (await renewer.promote()).moved == 1

    await eventually(promoted)
    assert b'"payload":' + payload in standalone.ready()[0]
    message = LegacyWorker(standalone.client, standalone.namespace).receive()
    assert message is not None
    assert (message["payload"], message["attempts"]) == (json.loads(payload), attempts + 1)
    assert message["queue"] == "q"
