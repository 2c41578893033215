"""A seeded walk of several workers; after every step nothing is lost and the books balance."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from tests.brokers.site import CALM, HASTY, Site, receive, settle
from worker_runtime.brokers.base import Action, Consumer, Delivery, Outcome

QUICK = dataclasses.replace(CALM, block=0.001)
WORKERS = {"w1": "r1", "w2": "r1", "w3": "r2"}


@pytest.mark.parametrize("seed", range(3))
async def test_the_books_balance_after_every_step(seed: int, standalone: Site) -> None:
    chance = random.Random(seed)
    walk = Walk(standalone, chance)
    for _ in range(80):
        await chance.choice(
            [
                walk.publish,
                walk.receive,
                walk.receive,
                walk.settle,
                walk.settle,
                walk.expire,
                walk.junk,
                walk.promote,
                walk.sweep,
            ]
        )()
        await walk.check()
    for consumer, held in walk.workers.values():
        await settle(consumer, held, Action.COMMIT)
    await walk.check()


class Walk:
    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site = site
        self.chance = chance
        self.published = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.workers: dict[str, tuple[Consumer, list[Delivery]]] = {
            name: (site.consumer(name, revision, QUICK), []) for name, revision in WORKERS.items()
        }
        self.renewer = site.renewer(timing=HASTY, max_takeovers=3)
        self.maintenance = site.maintenance()

    async def publish(self) -> None:
        count = self.chance.randint(1, 8)
        await self.site.publish(*[b"%d" % n for n in range(count)])
        self.published += count

    async def junk(self) -> None:
        self.site.client.lpush(self.site.keys.ready, bytes([self.chance.randrange(256)]))
        self.published += 1

    async def receive(self) -> None:
        consumer, held = self.chance.choice(list(self.workers.values()))
        held += (await receive(consumer, self.chance.randint(1, 6))).deliveries

    async def settle(self) -> None:
        consumer, held = self.chance.choice(list(self.workers.values()))
        self.chance.shuffle(held)
        count = self.chance.randint(0, len(held))
        some, held[:] = held[:count], held[count:]
        actions = [self.chance.choice(list(Action)) for _ in some]
        self.outcomes.update(await settle(consumer, some, *actions))

    async def expire(self) -> None:
        """Some deliveries stop being renewed, and everybody's expired ones are taken over."""
        client, liveness = self.site.client, self.site.keys.liveness
        pids = client.zrange(liveness, 0, -1)
        for pid in self.chance.sample(pids, len(pids) // 3):
            client.zadd(liveness, {pid: 1}) if self.chance.random() < 0.5 else client.zrem(liveness, pid)
        await self.renewer.recover()

    async def promote(self) -> None:
        await self.maintenance.promote("q", everything=self.chance.random() < 0.5)

    async def sweep(self) -> None:
        limit = self.chance.choice([None, 1, 3])
        if self.chance.random() < 0.7:
            most = self.chance.choice([None, 1, 2])
            dead = self.chance.random() < 0.3
            await self.maintenance.retry("q", limit=limit, max_attempts=most, dead=dead)
        else:
            await self.maintenance.park("q", limit=limit, max_attempts=1)

    async def check(self) -> None:
        reading = await self.site.read()
        committed, rejected = self.outcomes[Outcome.COMMITTED], self.outcomes[Outcome.REJECTED]
        kept = reading.failed + reading.dead
        places = reading.ready + reading.private + kept + reading.poison + reading.success
        assert places == self.published
        owned: Counter[str] = Counter()
        for worker, count in reading.owners.items():
            owned[WORKERS[worker]] += count
            assert reading.owned_by[WORKERS[worker]][worker] == count
        assert sum(sum(each.values()) for each in reading.owned_by.values()) == reading.owned
        assert reading.failures == self._counter("failed")
        for revision, row in reading.ledger.items():
            left = row.committed + row.rejected + row.released + row.taken_over + owned[revision]
            assert row.claimed == left, (revision, row, owned)
        assert sum(row.committed for row in reading.ledger.values()) >= committed
        crash_loops = self._counter("failed") - sum(row.rejected for row in reading.ledger.values())
        assert 0 <= crash_loops <= sum(row.taken_over for row in reading.ledger.values())
        assert rejected <= self._counter("failed")
        assert self._records() == kept + reading.owned, "a record for each message that has left the lists"
        assert reading.processing == reading.owned == self._counter("processing")
        gone_back = sum(row.released + row.taken_over for row in reading.ledger.values())
        claimed = sum(row.claimed for row in reading.ledger.values())
        assert reading.total == claimed - gone_back + crash_loops, "a crash loop ends as failed"
        assert sum(row.poisoned for row in reading.ledger.values()) == reading.poison

    def _records(self) -> int:
        return len(self.site.client.keys(f"{self.site.namespace}.jobs.q.*"))

    def _counter(self, name: str) -> int:
        return int(self.site.client.get(f"{self.site.namespace}.stats.q.{name}") or 0)
