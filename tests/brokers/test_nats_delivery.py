"""What holds on JetStream where it differs from the general cases of the conformance suite."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time

import pytest

from tests.brokers.nats_site import NatsSite
from tests.brokers.site import CALM, eventually, receive, receive_all, settle
from worker_runtime.brokers.base import (
    Action,
    BrokerUnavailableError,
    Consumer,
    Delivery,
    Outcome,
    Settlement,
    WorkerIdentity,
)

#: The version of the Redis server makes no difference.
pytestmark = pytest.mark.any_server

#: Short enough to wait for, long enough for a busy machine to settle within it.
BRIEF = 1.5
QUICK = dataclasses.replace(CALM, expiry=BRIEF)


async def test_expired_work_comes_again_and_its_late_owner_is_held_back(on_nats: NatsSite) -> None:
    await on_nats.provision(ack_wait=BRIEF, update=True)
    await on_nats.publish(b"1", b"2", b"3", b"4")
    old = on_nats.consumer("old", timing=QUICK)
    lost = (await receive(old)).deliveries
    new = on_nats.consumer("new", timing=QUICK)
    taken: list[Delivery] = []
    while len({one.pid for one in taken}) < 4:
        taken += (await receive(new)).deliveries
    assert [(one.pid, one.attempts) for one in taken[:4]] == [(one.pid, 1) for one in lost]
    assert list(await on_nats.renewer("old", timing=QUICK).extend(lost)) == list(lost)
    # The next holder must not feel what the late one does.
    actions = (Action.COMMIT, Action.COMMIT, Action.REJECT, Action.RELEASE)
    assert await settle(old, lost, *actions) == [Outcome.SUPERSEDED] * 4
    assert (await on_nats.consumer_info())["num_ack_pending"] == 4
    assert await on_nats.stored(on_nats.names.dead_stream) == 0
    assert await on_nats.stored(on_nats.names.stream) == 4


async def test_renewed_work_is_not_handed_out_again(on_nats: NatsSite) -> None:
    # A renewal that is a second late must not cost the work.
    wait = 2 * BRIEF
    timing = dataclasses.replace(CALM, expiry=wait)
    await on_nats.provision(ack_wait=wait, update=True)
    await on_nats.publish(b"1", b"2")
    consumer, renewer = on_nats.consumer(timing=timing), on_nats.renewer(timing=timing)
    held = (await receive(consumer)).deliveries
    other = on_nats.consumer("other", timing=dataclasses.replace(timing, block=2 * wait))
    began = time.monotonic()
    waiting = asyncio.create_task(other.receive(10))
    while not waiting.done():
        with contextlib.suppress(BrokerUnavailableError):  # its answer was late; it is asked for again
            assert not await renewer.extend(held)
        await asyncio.wait([waiting], timeout=wait / 12)
    assert not waiting.result().deliveries
    assert time.monotonic() - began > wait
    assert await settle(consumer, held, Action.COMMIT) == [Outcome.COMMITTED] * 2


async def test_what_older_producers_mark_as_urgent_is_left_to_older_workers(on_nats: NatsSite) -> None:
    reply = await on_nats.link.request(on_nats.names.priority, b'{"pid":"p","payload":1}')
    assert not reply.status
    await on_nats.publish(b"2")
    consumer = on_nats.consumer(timing=dataclasses.replace(CALM, block=0.3))
    [delivery] = await receive_all(consumer, 1)
    assert delivery.payload == b"2"
    assert await settle(consumer, [delivery], Action.COMMIT) == [Outcome.COMMITTED]
    assert not (await receive(consumer)).deliveries
    await on_nats.renewer().recover()
    assert await on_nats.stored(on_nats.names.stream) == 1


async def test_a_retry_is_the_same_message_with_one_more_attempt_after_its_delay(on_nats: NatsSite) -> None:
    payload = b'{"a":[ ],"b":{},"c":1.0,"d":"\\u00e9\xc3\xa9\\/"}'
    [pid] = await on_nats.publish(payload)
    consumer = on_nats.consumer()
    for attempts in range(3):
        [delivery] = (await receive(consumer)).deliveries
        assert (delivery.pid, delivery.payload, delivery.attempts) == (pid, payload, attempts)
        outcomes: list[Outcome] = []
        again = Settlement(delivery, Action.RETRY, delay=0.5)
        began = time.monotonic()
        await consumer.settle([again], lambda _, outcome, __, into=outcomes: into.append(outcome))  # type: ignore[misc]
        assert outcomes == [Outcome.REJECTED]
    [last] = (await receive(consumer)).deliveries
    assert time.monotonic() - began >= 0.4
    assert last.attempts == 3
    assert await settle(consumer, [last], Action.COMMIT) == [Outcome.COMMITTED]
    assert await on_nats.stored(on_nats.names.stream) == 0


async def test_work_that_is_given_back_again_and_again_is_not_charged(on_nats: NatsSite) -> None:
    await on_nats.publish(b"1", b"2")
    consumer = on_nats.nats().consumer("q", WorkerIdentity("r1", "w1"), max_tries=2)
    for _ in range(5):
        deliveries = (await receive(consumer)).deliveries
        assert [(one.payload, one.attempts) for one in deliveries] == [(b"1", 0), (b"2", 0)]
        assert await settle(consumer, deliveries, Action.RELEASE) == [Outcome.RELEASED] * 2
    deliveries = (await receive(consumer)).deliveries
    assert await settle(consumer, deliveries, Action.RETRY, Action.COMMIT) == [
        Outcome.REJECTED,
        Outcome.COMMITTED,
    ]
    [again] = (await receive(consumer)).deliveries
    assert again.attempts == 1
    await settle(consumer, [again], Action.COMMIT)
    await consumer.close()
    # Nothing of it is left behind.
    assert await on_nats.stored(on_nats.names.books) == 0


async def test_a_message_that_nobody_survives_is_a_dead_letter_before_it_runs(on_nats: NatsSite) -> None:
    await on_nats.provision(ack_wait=BRIEF, update=True)
    [pid] = await on_nats.publish(b'{"kills":1}')

    def consumer(worker: str) -> Consumer:
        return on_nats.nats().consumer("q", WorkerIdentity("r1", worker), max_tries=3)

    for number in range(3):
        # Each takes it and is never heard of again.
        victim = consumer(f"w{number}")
        [delivery] = (await receive(victim, 1)).deliveries
        assert (delivery.pid, delivery.attempts) == (pid, number)
        await victim.close()
    survivor = consumer("survivor")
    crash_loops, payloads = 0, set[bytes]()

    async def is_given_up() -> bool:
        nonlocal crash_loops
        received = await survivor.receive(10)
        payloads.update(one.payload for one in received.deliveries)
        crash_loops += received.crash_loops
        return crash_loops > 0

    await eventually(is_given_up)
    await survivor.close()
    assert crash_loops == 1
    assert b'{"kills":1}' not in payloads
    [dead] = await on_nats.maintenance().retained("q")
    assert (dead.pid, dead.payload, dead.why, dead.attempts) == (pid, b'{"kills":1}', "crash-loop", 3)


async def test_what_cannot_be_decoded_is_put_aside_with_its_bytes_and_the_rest_runs(
    on_nats: NatsSite,
) -> None:
    bodies = [b"\xff\x00 no json", b"", b"[]", b'{"pid":"p"}']
    for body in bodies:
        await on_nats.put(body)
    await on_nats.publish(b"1")
    consumer = on_nats.consumer()
    poisoned = 0
    deliveries: list[Delivery] = []
    while not deliveries:
        received = await receive(consumer)
        poisoned += received.poisoned
        deliveries += received.deliveries
    assert poisoned == 4
    assert [one.payload for one in deliveries] == [b"1"]
    held = await on_nats.maintenance().retained("q")
    assert sorted(one.payload for one in held if one.payload is not None) == sorted(bodies)
    assert {one.why for one in held} == {"json", "not-an-object", "payload"}
    assert await on_nats.stored(on_nats.names.stream) == 1


async def test_a_dead_letter_is_the_very_message_that_was_published(on_nats: NatsSite) -> None:
    body = b'{"queue":"q","pid":"p.1" ,"timestamp":"12.5","payload":[ ],"extra":{"x" : 1}}'
    await on_nats.put(body)
    consumer = on_nats.consumer()
    [delivery] = (await receive(consumer)).deliveries
    assert await settle(consumer, [delivery], Action.DEAD) == [Outcome.REJECTED]
    maintenance = on_nats.maintenance()
    [held] = await maintenance.retained("q")
    assert (held.pid, held.payload, held.timestamp) == ("p.1", b"[ ]", 12.5)
    assert (await maintenance.retry("q", dead=True)).retried == 1
    [again] = (await receive(consumer)).deliveries
    assert (again.payload, again.attempts) == (b"[ ]", 1)


async def test_commits_of_many_deliveries_while_others_fail(on_nats: NatsSite) -> None:
    await on_nats.publish(*(b"%d" % n for n in range(300)))
    consumer = on_nats.consumer()
    deliveries = await receive_all(consumer, 300)
    actions = [(Action.COMMIT, Action.DEAD, Action.RETRY)[n % 3] for n in range(300)]
    outcomes = await settle(consumer, deliveries, *actions)
    assert [outcomes.count(one) for one in (Outcome.COMMITTED, Outcome.REJECTED)] == [100, 200]
    assert await on_nats.stored(on_nats.names.dead_stream) == 100
    assert sorted(int(one.payload) for one in await receive_all(consumer, 100)) == list(range(2, 300, 3))
