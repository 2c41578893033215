"""Readings, whereabouts, fences and the sweep for stuck messages on JetStream."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest

from tests.brokers.nats_site import NatsSite
from tests.brokers.site import CALM, eventually, receive, receive_all, settle
from worker_runtime.brokers.base import (
    Action,
    BrokerError,
    BrokerRefusedError,
    Outcome,
    Place,
    Presence,
    Recovered,
    Role,
    Settlement,
    WorkerIdentity,
)
from worker_runtime.brokers.emptiness import verify_empty
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.names import DURABLE

#: The version of the Redis server makes no difference.
pytestmark = pytest.mark.any_server


def numbered(count: int) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(count)]


async def test_the_reading_says_what_jetstream_can_say(on_nats: NatsSite) -> None:
    await on_nats.publish(*numbered(6))
    one, two = on_nats.consumer("wa", "ra"), on_nats.consumer("wb", "rb")
    first = (await receive(one, 3)).deliveries
    await receive(two, 1)
    await settle(one, first[:2], Action.COMMIT, Action.DEAD)
    fell = WorkerIdentity("ra", "wa", "h", 1, "signal SIGKILL" + "L" * 100, "ab/0")
    again = on_nats.nats().renewer("q", fell)
    await again.announce(Presence(True, 1, 4, 10))
    await again.close()
    await on_nats.renewer("wb", "rb").announce(Presence(False, 1, 1, 1, "stopping"))
    reading = await on_nats.read()
    assert (reading.ready, reading.owned, reading.processing, reading.dead) == (2, 2, 2, 1)
    assert (reading.total, reading.success) == (4, 1)
    assert reading.oldest_ready_age is not None
    assert 0 <= reading.oldest_ready_age < 600
    assert dict(reading.owners) == {"wa": 1, "wb": 1}
    wa, wb = reading.workers
    assert (wa.worker, wa.revision, wa.host, wa.receiving, wa.prefetch) == ("wa", "ra", "h", True, 10)
    assert (wa.restarts, wa.last_end, wa.place) == (1, "signal SIGKILL" + "L" * 86, "ab/0")
    assert (wb.receiving, wb.reason) == (False, "stopping")
    assert 0 < wa.expires_in <= 600
    assert reading.role is Role.PRIMARY


async def test_a_worker_that_fell_silent_leaves_the_list(on_nats: NatsSite) -> None:
    brief = on_nats.renewer("brief", timing=dataclasses.replace(CALM, expiry=0.3))
    other = on_nats.renewer("other")
    await brief.announce(Presence(True, 0, 1, 1))
    await other.announce(Presence(True, 0, 1, 1))

    async def is_alone() -> bool:
        return [one.worker for one in (await on_nats.read()).workers] == ["other"]

    await eventually(is_alone)
    await other.recover()
    assert await on_nats.stored(on_nats.names.books) == 1
    await other.sign_off()
    assert not (await on_nats.read()).workers


async def test_where_a_message_is(on_nats: NatsSite) -> None:
    pids = await on_nats.publish(*numbered(5))
    consumer, inspector = on_nats.consumer("w7", "r9"), on_nats.inspector()
    taken = (await receive(consumer, 3)).deliveries
    ready = await inspector.find("q", pids[4])
    assert (ready.place, ready.position, ready.attempts) == (Place.READY, 4, 0)
    assert (await inspector.find("q", pids[0])).place is Place.OWNED
    outcomes: list[Outcome] = []
    await consumer.settle(
        [
            Settlement(taken[0], Action.DEAD, "ValueError: \u00e9", why="exhausted"),
            Settlement(taken[1], Action.REJECT, "KeyError"),
            Settlement(taken[2], Action.COMMIT),
        ],
        lambda _, outcome, __: outcomes.append(outcome),
    )
    dead = await inspector.find("q", pids[0])
    assert (dead.place, dead.reason) == (Place.DEAD, "exhausted: ValueError: \u00e9")
    assert (await inspector.find("q", pids[1])).place is Place.FAILED
    assert (await inspector.find("q", pids[2])).place is Place.NOWHERE
    partly = await inspector.find("q", pids[4], scan=1)
    assert (partly.place, partly.complete) == (Place.NOWHERE, False)


async def test_a_queue_that_is_not_there_cannot_be_read(on_nats: NatsSite) -> None:
    await on_nats.clear()
    with pytest.raises(BrokerRefusedError, match=r"has no queue q .*queueworker provision q"):
        await on_nats.read()
    with pytest.raises(BrokerRefusedError, match="no bucket QW_Q for fences"):
        await on_nats.fences().fence("q", "r1", "why")


async def test_emptiness_is_proven(on_nats: NatsSite) -> None:
    await on_nats.publish(b"1")
    inspector, consumer = on_nats.inspector(), on_nats.consumer()
    assert (await verify_empty(inspector, "q", 0.3)).empty
    [delivery] = (await receive(consumer)).deliveries
    assert not (await verify_empty(inspector, "q")).empty
    await settle(consumer, [delivery], Action.COMMIT)
    assert (await verify_empty(inspector, "q")).empty


async def test_a_fence_stops_its_revision_and_nobody_else(on_nats: NatsSite) -> None:
    await on_nats.publish(*numbered(4))
    fences = on_nats.fences()
    brief = dataclasses.replace(CALM, block=0.2)
    old, new = on_nats.consumer("w1", "r1", brief), on_nats.consumer("w2", "r2", brief)
    held = (await receive(old, 1)).deliveries
    assert await fences.fence("q", "r1", "rolled back") is True
    assert await fences.fence("q", "r1", "rolled back") is False
    assert await fences.fence("q", "r1", "another reason") is True
    assert dict(await fences.fences("q")) == {"r1": "another reason"}

    async def is_fenced() -> bool:
        received = await receive(old, 1)
        held.extend(received.deliveries)  # type: ignore[attr-defined]
        return received.fenced is not None

    await eventually(is_fenced)
    fenced = (await receive(old)).fenced
    assert fenced is not None
    assert fenced.reason == "another reason"
    # It goes on with what it has.
    assert set(await settle(old, held, Action.COMMIT)) == {Outcome.COMMITTED}
    assert len(await receive_all(new, 4 - len(held))) == 4 - len(held)
    assert await fences.unfence("q", "r1") is True
    assert await fences.unfence("q", "r1") is False
    await on_nats.publish(b"9")
    assert [one.payload for one in await receive_all(old, 1)] == [b"9"]


async def test_a_fence_on_everybody(on_nats: NatsSite) -> None:
    await on_nats.publish(b"1")
    fences = on_nats.fences()
    await fences.fence("q", "*", "maintenance")
    await fences.fence("q", "r.1/x", "and this one")
    assert dict(await fences.fences("q")) == {"*": "maintenance", "r.1/x": "and this one"}
    for revision in ("r1", "all"):
        fenced = (await receive(on_nats.consumer("w", revision))).fenced
        assert fenced is not None
        assert fenced.reason == "maintenance"
    await fences.unfence("q", "*")
    assert (await receive(on_nats.consumer("w", "r.1/x"))).fenced is not None
    assert (await receive(on_nats.consumer("w", "r1"))).deliveries
    with pytest.raises(BrokerError, match="one word"):
        await fences.fence("q", "two words", "why")
    with pytest.raises(BrokerError, match="needs a reason"):
        await fences.fence("q", "r1", " ")


async def test_a_fence_reaches_a_consumer_that_waits(on_nats: NatsSite) -> None:
    consumer = on_nats.consumer("w1", "r1")  # It would block for 30 s.
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(on_nats.somebody_waits)
    began = time.monotonic()
    await on_nats.fences().fence("q", "r1", "stop")
    received = await waiting
    assert received.fenced is not None
    assert time.monotonic() - began < 20


async def exhaust(site: NatsSite, *payloads: bytes, kept: bool = True) -> None:
    """Publish these and let the server give them up: handed out twice, never settled. Without `kept` its
    word is lost."""
    await site.provision(ack_wait=0.3, max_deliver=2, update=True)
    if not kept:
        await api.call(site.link, f"STREAM.DELETE.{site.names.exhausted}", None, "delete")
    await site.publish(*payloads)
    consumer = site.consumer("victim", timing=dataclasses.replace(CALM, block=0.2))

    async def nobody_has_it() -> bool:
        await receive(consumer)  # The server notices when it is asked.
        info = await site.consumer_info()
        return not info["num_pending"] + info["num_ack_pending"]

    await eventually(nobody_has_it)
    await consumer.close()


async def test_what_the_server_gave_up_is_found_and_buried(on_nats: NatsSite) -> None:
    await exhaust(on_nats, b'{"lost":1}', b'{"lost":2}')
    await on_nats.provision(ack_wait=600, max_deliver=2, update=True)
    await on_nats.publish(b"3", b"4")
    # Somebody is at work all the time, and the server's word was heard by nobody.
    holder = on_nats.consumer("holder")
    held = (await receive(holder, 1)).deliveries
    sweepers = [on_nats.renewer("w1"), on_nats.renewer("w2")]
    moved = await asyncio.gather(*(one.recover() for one in sweepers))
    assert sum(one.crash_loops for one in moved) == 2
    kept = await on_nats.maintenance().retained("q")
    assert sorted(one.payload for one in kept if one.payload) == [b'{"lost":1}', b'{"lost":2}']
    assert {one.why for one in kept} == {"exhausted"}
    reading = await on_nats.read()
    assert (reading.ready, reading.owned, reading.dead) == (1, 1, 2)
    assert await on_nats.stored(on_nats.names.exhausted) == 0
    assert [await one.recover() for one in sweepers] == [Recovered()] * 2
    assert await settle(holder, held, Action.COMMIT) == [Outcome.COMMITTED]


async def test_what_a_consumer_that_is_gone_gave_up_is_handed_out_again(on_nats: NatsSite) -> None:
    await exhaust(on_nats, b"1")
    await api.call(on_nats.link, f"CONSUMER.DELETE.{on_nats.names.stream}.{DURABLE}", None, "delete")
    await on_nats.provision()
    renewer = on_nats.renewer()
    assert await renewer.recover() == Recovered()
    [delivery] = (await receive(on_nats.consumer())).deliveries
    assert delivery.payload == b"1"
    assert await on_nats.stored(on_nats.names.exhausted) == 0


async def test_what_the_server_gave_up_unheard_is_found_when_nothing_is_in_work(on_nats: NatsSite) -> None:
    # A queue of before there was a stream for what the server says of it.
    await exhaust(on_nats, b'{"lost":1}', b'{"lost":2}', kept=False)
    await on_nats.publish(b"3")
    reading = await on_nats.read()
    assert (reading.ready, reading.processing, reading.owned) == (1, 0, 2)
    assert not (await verify_empty(on_nats.inspector(), "q")).empty
    sweepers = [on_nats.renewer("w1"), on_nats.renewer("w2")]
    # The first look only suspects.
    assert [await one.recover() for one in sweepers] == [Recovered()] * 2
    moved = await asyncio.gather(*(one.recover() for one in sweepers))
    assert sum(one.crash_loops for one in moved) == 2
    held = await on_nats.maintenance().retained("q")
    assert sorted(one.payload for one in held if one.payload) == [b'{"lost":1}', b'{"lost":2}']
    assert {one.why for one in held} == {"exhausted"}
    reading = await on_nats.read()
    assert (reading.ready, reading.owned, reading.dead) == (1, 0, 2)


async def test_the_command_finds_it_too(on_nats: NatsSite) -> None:
    await exhaust(on_nats, b"1")
    recovered = await on_nats.maintenance().recover("q")
    assert recovered.crash_loops == 1
    assert (await on_nats.read()).owned == 0


async def test_the_last_delivery_is_never_given_back_into_nothing(on_nats: NatsSite) -> None:
    await on_nats.provision(max_deliver=2, update=True)
    await on_nats.publish(b'{"a": 1}', b'{"b": 2}')
    consumer = on_nats.consumer()
    for _ in range(4):
        deliveries = (await receive(consumer)).deliveries
        assert sorted(one.payload for one in deliveries) == [b'{"a": 1}', b'{"b": 2}']
        assert {one.attempts for one in deliveries} == {0}
        assert await settle(consumer, deliveries, Action.RELEASE) == [Outcome.RELEASED] * 2
    deliveries = (await receive(consumer)).deliveries
    assert await settle(consumer, deliveries, Action.RETRY) == [Outcome.REJECTED] * 2
    deliveries = (await receive(consumer)).deliveries
    assert {one.attempts for one in deliveries} == {1}
    assert await settle(consumer, deliveries, Action.RETRY) == [Outcome.REJECTED] * 2
    held = await on_nats.maintenance().retained("q")
    assert {(one.why, one.attempts) for one in held} == {("exhausted", 1)}
    assert await on_nats.stored(on_nats.names.stream) == 0
