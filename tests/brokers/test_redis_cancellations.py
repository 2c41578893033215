"""Operations that are given up at any moment: every later answer belongs to its own question."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
from collections import Counter

import pytest

from tests.brokers.fault_proxy import FaultProxy
from tests.brokers.site import CALM, PATIENCE, Site, receive, settle
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, BrokerError, Delivery, Outcome, Settlement

_TIMES = 1000
_OPERATIONS = ("receive", "receive", "settle", "settle", "extend", "recover", "publish")


class Chance:
    """Random operations on one consumer, renewer and publisher, each cancelled after a random time."""

    def __init__(self, site: Site, url: str, seed: str) -> None:
        self._random = random.Random(seed)
        self.consumer = site.consumer(timing=dataclasses.replace(CALM, block=0.003), url=url)
        self._renewer = site.renewer(url=url)
        self._publisher = site.broker(url=url).publisher()
        self.held: list[Delivery] = []
        self.published = 0
        self.committed: Counter[int] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()

    async def step(self) -> None:
        name = self._random.choice(_OPERATIONS)
        operation = getattr(self, name)()
        # One in eight may finish, however slow the machine is.
        seconds = PATIENCE if self._random.randrange(8) == 0 else self._random.uniform(0, 0.004)
        try:
            await asyncio.wait_for(operation, seconds)
        except TimeoutError:
            self.cancelled[name] += 1
        else:
            self.finished[name] += 1

    def has_tried_enough(self) -> bool:
        """How many of which are cancelled depends on the machine; a good many of each are wanted."""
        return (
            sum(self.cancelled.values()) >= _TIMES
            and all(self.cancelled[name] > 20 for name in _OPERATIONS)
            and all(self.finished[name] > 10 for name in _OPERATIONS)
        )

    async def receive(self) -> None:
        self.held += (await self.consumer.receive(self._random.randint(1, 5))).deliveries

    async def settle(self) -> None:
        some, self.held = self.held[:3], self.held[3:]
        wanted = {Action.COMMIT: Outcome.COMMITTED, Action.RELEASE: Outcome.RELEASED}
        settlements = [Settlement(one, self._random.choice(list(wanted))) for one in some]
        answered: list[Delivery] = []

        def note(settlement: Settlement, outcome: Outcome, text: str) -> None:
            assert outcome is wanted[settlement.action], (outcome, text)
            answered.append(settlement.delivery)
            if outcome is Outcome.COMMITTED:
                self.committed[int(settlement.delivery.payload)] += 1

        await self.consumer.settle(settlements, note)
        assert answered == some

    async def extend(self) -> None:
        assert list(await self._renewer.extend(self.held)) == [], "what is held is ours"

    async def recover(self) -> None:
        recovered = await self._renewer.recover()
        assert (recovered.deliveries, recovered.reservations) == (0, 0), "nothing is overdue"
        promoted = await self._renewer.promote()
        assert (promoted.moved, promoted.next_due) == (0, None)

    async def publish(self) -> None:
        numbers = range(self.published, self.published + 3)
        self.published = numbers.stop
        pids = await self._publisher.publish_many("q", [b"%d" % number for number in numbers])
        assert len(set(pids)) == 3

    async def close(self) -> None:
        await self._publisher.close()


@pytest.mark.any_server
async def test_a_thousand_cancelled_operations(standalone: Site, redis_server: EmbeddedRedis) -> None:
    delays = random.Random("delays")
    async with FaultProxy(redis_server.port, late=lambda _: delays.uniform(0, 0.0025)) as proxy:
        chance = Chance(standalone, proxy.url, "cancellations")
        while not chance.has_tried_enough():
            await chance.step()
        await chance.close()
        with contextlib.suppress(BrokerError):
            await chance.consumer.close()

    # What cancelled receives and settlements left with their owner is overdue; all the rest is in the queue.
    client, keys = standalone.client, standalone.keys
    for key in (keys.liveness, keys.reservations):
        for name in client.zrange(key, 0, -1):
            client.zadd(key, {name: 1}, xx=True)
    await standalone.renewer(max_takeovers=0).recover()
    last = standalone.consumer("last", timing=dataclasses.replace(CALM, block=0.01))
    pushed = {json.loads(raw)["payload"] for raw in standalone.ready()}
    async with asyncio.timeout(PATIENCE):
        while deliveries := (await receive(last)).deliveries:
            assert set(await settle(last, deliveries, Action.COMMIT)) == {Outcome.COMMITTED}
            chance.committed.update(int(one.payload) for one in deliveries)
    assert pushed <= set(chance.committed)
    assert set(chance.committed.values()) == {1}, "no acknowledgement landed on another message"
    reading = await standalone.read()
    assert (reading.ready, reading.private, reading.processing) == (0, 0, 0)
    assert reading.success == reading.total
    row = reading.ledger["r1"]
    assert row.claimed == row.committed + row.rejected + row.released + row.taken_over
