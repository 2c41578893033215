"""What a test needs of one broker: its parts by role, outcomes in a list, and a look from outside."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis

from worker_runtime.brokers.base import (
    Action,
    Broker,
    Consumer,
    Delivery,
    Fences,
    Inspector,
    Maintenance,
    Outcome,
    QueueReading,
    Received,
    Renewer,
    Settlement,
    Timing,
    WorkerIdentity,
)
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.redis.keys import QueueKeys

#: An upper bound for everything that is awaited: long enough for a busy machine.
PATIENCE = 120.0
#: Long expiries: nothing expires by itself while a test runs.
CALM = Timing(expiry=600, reservation=600, block=30, command_timeout=60)
#: Everything that is not renewed expires at once.
HASTY = dataclasses.replace(CALM, expiry=0.001, reservation=0.001)


class Site:
    """`client` is an ordinary redis-py client for looking and for meddling from outside."""

    def __init__(self, url: str, client: Any, namespace: str) -> None:
        self.url = url
        self.client: redis.Redis = client
        self.namespace = namespace
        self.keys = QueueKeys(namespace, "q")
        self._open: list[Any] = []

    def broker(self, timing: Timing = CALM, url: str | None = None) -> Broker:
        return broker_from_url(url or self.url, self.namespace, timing)

    def consumer(
        self, worker: str = "w1", revision: str = "r1", timing: Timing = CALM, url: str | None = None
    ) -> Consumer:
        return self._keep(self.broker(timing, url).consumer("q", WorkerIdentity(revision, worker)))

    def renewer(
        self,
        worker: str = "w1",
        revision: str = "r1",
        timing: Timing = CALM,
        url: str | None = None,
        max_takeovers: int = 10,
        host: str = "",
    ) -> Renewer:
        identity = WorkerIdentity(revision, worker, host)
        return self._keep(self.broker(timing, url).renewer("q", identity, max_takeovers=max_takeovers))

    def maintenance(self, timing: Timing = CALM, url: str | None = None) -> Maintenance:
        return self._keep(self.broker(timing, url).maintenance())

    def fences(self, url: str | None = None) -> Fences:
        return self._keep(self.broker(url=url).fences())

    def inspector(self, url: str | None = None) -> Inspector:
        return self._keep(self.broker(url=url).inspector())

    async def publish(self, *payloads: bytes) -> Sequence[str]:
        publisher = self.broker().publisher()
        try:
            return await publisher.publish_many("q", payloads)
        finally:
            await publisher.close()

    async def read(self) -> QueueReading:
        inspector = self.broker().inspector()
        try:
            return await inspector.read("q")
        finally:
            await inspector.close()

    def ready(self) -> list[bytes]:
        """Raw bytes in the order in which they will be taken."""
        return list(reversed(self.client.lrange(self.keys.ready, 0, -1)))

    def _keep(self, part: Any) -> Any:
        self._open.append(part)
        return part

    async def close(self) -> None:
        for part in self._open:
            await part.close()
        self.client.close()


async def settle(consumer: Consumer, deliveries: Sequence[Delivery], *actions: Action) -> list[Outcome]:
    """Outcomes in the order of the deliveries; one action may stand for all."""
    chosen = actions if len(actions) > 1 else actions * len(deliveries)
    settlements = [Settlement(one, action) for one, action in zip(deliveries, chosen, strict=True)]
    outcomes: dict[int, Outcome] = {}

    def note(settlement: Settlement, outcome: Outcome, _: str) -> None:
        index = next(i for i, one in enumerate(settlements) if one is settlement)
        assert index not in outcomes, "two outcomes for one settlement"
        outcomes[index] = outcome

    await asyncio.wait_for(consumer.settle(settlements, note), PATIENCE)
    assert len(outcomes) == len(settlements), "a settlement without an outcome"
    return [outcomes[index] for index in range(len(settlements))]


async def receive(consumer: Consumer, limit: int = 100) -> Received:
    return await asyncio.wait_for(consumer.receive(limit), PATIENCE)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds; for what only another process decides."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(0.02)
