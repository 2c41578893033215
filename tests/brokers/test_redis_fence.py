"""A fence stops a revision from receiving, inside the receive itself."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.brokers.site import CALM, PATIENCE, Site, eventually, receive, settle
from worker_runtime.brokers.base import Action, Fenced, Outcome

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
