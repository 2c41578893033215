"""A fence stops a revision from receiving, inside the receive itself."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.brokers.fault_proxy import Fault, FaultProxy, Seen
from tests.brokers.site import CALM, PATIENCE, Site, eventually, receive, settle
from worker_runtime.brokers.base import Action, BrokerError, Fenced, Outcome

NEVER = dataclasses.replace(CALM, block=10_000)


@pytest.mark.parametrize("mark", ["r1", "*"])
async def test_a_fenced_revision_gets_nothing_and_does_not_wait(mark: str, standalone: Site) -> None:
    standalone.client.hset(standalone.keys.fence, mark, "rolled back")
    consumer = standalone.consumer(timing=NEVER)
    assert (await receive(consumer)).fenced == Fenced("rolled back")
    await standalone.publish(b"1")
    assert (await receive(consumer)).fenced == Fenced("rolled back")
    other = await receive(standalone.consumer("w2", "r2", dataclasses.replace(CALM, block=0.05)))
    assert (len(other.deliveries), other.fenced is not None) == ((0, True) if mark == "*" else (1, False))
    assert dict((await standalone.read()).fences) == {mark: "rolled back"}


async def test_a_fenced_revision_settles_renews_and_starts_again(standalone: Site) -> None:
    await standalone.publish(b"1", b"2")
    consumer = standalone.consumer(timing=NEVER)
    first = (await receive(consumer, 1)).deliveries
    standalone.client.hset(standalone.keys.fence, "r1", "stop")
    assert (await receive(consumer)).fenced == Fenced("stop")
    assert not await standalone.renewer().extend(first)
    assert await settle(consumer, first, Action.COMMIT) == [Outcome.COMMITTED]
    standalone.client.hdel(standalone.keys.fence, "r1")
    assert [one.payload for one in (await receive(consumer)).deliveries] == [b"2"]


async def test_what_arrives_during_the_wait_of_a_fenced_worker_stays_ready(standalone: Site) -> None:
    consumer = standalone.consumer(timing=NEVER)
    waiting = asyncio.create_task(consumer.receive(10))
    client = standalone.client
    await eventually(lambda: asyncio.to_thread(lambda: client.info("clients")["blocked_clients"] > 0))
    client.hset(standalone.keys.fence, "r1", "stop")
    await standalone.publish(b"1")
    received = await asyncio.wait_for(waiting, PATIENCE)
    assert (len(received.deliveries), received.fenced) == (0, Fenced("stop"))
    reading = await standalone.read()
    assert (reading.ready, reading.private) == (1, 0)


async def test_setting_and_lifting_may_be_repeated(standalone: Site) -> None:
    fences = standalone.fences()
    assert await fences.fence("q", "r1", "rolled back") is True
    assert await fences.fence("q", "r1", "rolled back") is False
    assert await fences.fence("q", "r1", "for another \u00e9 reason") is True
    assert await fences.fence("q", "*", "maintenance") is True
    assert await fences.fences("q") == {"r1": "for another \u00e9 reason", "*": "maintenance"}
    assert await fences.unfence("q", "r1") is True
    assert await fences.unfence("q", "r1") is False
    assert await fences.fences("q") == {"*": "maintenance"}
    assert await fences.fences("other") == {}


@pytest.mark.parametrize(("revision", "reason"), [("", "x"), ("two words", "x"), ("r1", " ")])
async def test_a_fence_that_nobody_could_read_is_refused(
    revision: str, reason: str, standalone: Site
) -> None:
    with pytest.raises(BrokerError):
        await standalone.fences().fence("q", revision, reason)
    assert not standalone.client.exists(standalone.keys.fence)


@pytest.mark.parametrize("lost", ["HGET", "HSET", "HDEL", "HGETALL"])
async def test_a_lost_answer_is_asked_for_again(lost: str, standalone: Site) -> None:
    cut = False

    def once(seen: Seen) -> Fault:
        nonlocal cut
        if seen.name != lost or cut:
            return Fault.PASS
        cut = True
        return Fault.CUT_AFTER

    async with FaultProxy(_port(standalone), after=once) as proxy:
        fences = standalone.fences(url=proxy.url)
        await fences.fence("q", "r1", "stop")
        assert await fences.fences("q") == {"r1": "stop"}
        await fences.unfence("q", "r1")
        assert await fences.fences("q") == {}
        assert cut
        await fences.close()


async def test_a_reserve_that_comes_after_the_fence_gets_nothing(standalone: Site) -> None:
    """It was sent before the fence was set and is late: the server decides by its own order."""
    await standalone.publish(b"1")
    hold = _Once("reserve", Fault.HOLD_COMMAND)
    async with FaultProxy(_port(standalone), before=hold) as proxy:
        consumer = standalone.consumer(timing=NEVER, url=proxy.url)
        receiving = asyncio.create_task(consumer.receive(10))
        await asyncio.wait_for(proxy.event.wait(), PATIENCE)
        await standalone.fences().fence("q", "r1", "stop")
        proxy.let_go.set()
        received = await asyncio.wait_for(receiving, PATIENCE)
        assert (len(received.deliveries), received.fenced) == (0, Fenced("stop"))
        reading = await standalone.read()
        assert (reading.ready, reading.private) == (1, 0)
        await consumer.close()


async def test_a_reserve_that_came_before_the_fence_is_finished(standalone: Site) -> None:
    """Its work is out already: it is claimed, counted against the revision, and settled."""
    await standalone.publish(b"1", b"2")
    hold = _Once("reserve", Fault.HOLD_REPLY)
    async with FaultProxy(_port(standalone), after=hold) as proxy:
        consumer = standalone.consumer(timing=NEVER, url=proxy.url)
        receiving = asyncio.create_task(consumer.receive(1))
        await asyncio.wait_for(proxy.event.wait(), PATIENCE)
        await standalone.fences().fence("q", "r1", "stop")
        assert (await standalone.read()).private == 1
        proxy.let_go.set()
        received = await asyncio.wait_for(receiving, PATIENCE)
        assert [one.payload for one in received.deliveries] == [b"1"]
        assert (await receive(consumer)).fenced == Fenced("stop")
        assert await settle(consumer, received.deliveries, Action.COMMIT) == [Outcome.COMMITTED]
        reading = await standalone.read()
        assert (reading.ready, reading.private, reading.ledger["r1"].claimed) == (1, 0, 1)
        await consumer.close()


class _Once:
    """A rule that strikes the first command of a name."""

    def __init__(self, name: str, fault: Fault) -> None:
        self._name = name
        self._fault: Fault = fault
        self._struck = False

    def __call__(self, seen: Seen) -> Fault:
        if seen.name != self._name or self._struck:
            return Fault.PASS
        self._struck = True
        return self._fault


def _port(site: Site) -> int:
    return int(site.client.connection_pool.connection_kwargs["port"])


async def test_what_a_dead_worker_of_a_fenced_revision_staged_is_returned(standalone: Site) -> None:
    """Nobody else would take it: all others are fenced too, or speak another protocol."""
    await standalone.fences().fence("q", "*", "stop")
    await standalone.publish(b"1", b"2", b"3")
    before = standalone.ready()
    for _ in range(2):
        standalone.client.blmove(standalone.keys.ready, standalone.keys.staging, 1, "RIGHT", "LEFT")
    maintenance = standalone.maintenance()
    assert await maintenance.unstage("q") == 2
    assert await maintenance.unstage("q") == 0
    assert standalone.ready() == before
    assert (await standalone.read()).private == 0
