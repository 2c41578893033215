"""What a test needs of one broker: its parts by role, outcomes in a list, and a look from outside."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

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

T = TypeVar("T")

#: An upper bound for everything that is awaited: long enough for a busy machine.
PATIENCE = 120.0
#: Long expiries: nothing expires by itself while a test runs.
CALM = Timing(expiry=600, reservation=600, block=30, command_timeout=60)
#: Everything that is not renewed expires at once.
HASTY = dataclasses.replace(CALM, expiry=0.001, reservation=0.001)


#: What some brokers can do and others cannot; `needs` chooses the cases of the suite by it.
CAN_TAKE_OVER = "take over"  # expired work is given back by `recover`; until then its late owner may settle
CAN_COUNT_PLACES = "count places"  # what is free, failed, delayed or in work is counted apart
CAN_KEEP_A_LEDGER = "keep a ledger"
CAN_RENAME_RETRIES = "rename retries"  # a retry is a new message; `promote` makes it ready


class Site:
    """`client` is an ordinary redis-py client for looking and for meddling from outside."""

    can: frozenset[str] = frozenset({CAN_TAKE_OVER, CAN_COUNT_PLACES, CAN_KEEP_A_LEDGER, CAN_RENAME_RETRIES})

    def __init__(self, url: str, client: Any, namespace: str) -> None:
        self.url = url
        # redis-py types an answer as all that any settings would make of it.
        self.client: Any = client
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

    async def somebody_waits(self) -> bool:
        """Whether a consumer waits for work at this moment."""
        return await asyncio.to_thread(self._somebody_blocks)

    def _somebody_blocks(self) -> bool:
        where = {"target_nodes": "all"} if "cluster" in self.url else {}
        nodes: Any = self.client.info("clients", **where)
        sections = nodes.values() if "blocked_clients" not in nodes else [nodes]
        return any(section["blocked_clients"] for section in sections)

    def free(self, reading: QueueReading) -> int:
        """Messages that nobody has, where the broker can tell; all that are not settled where it cannot."""
        assert not reading.private
        assert not reading.reservations
        return reading.ready

    def failed(self, reading: QueueReading) -> int:
        """Messages that a handler rejected."""
        return reading.failed

    def ready(self) -> list[bytes]:
        """Raw bytes in the order in which they will be taken."""
        return list(reversed(self.client.lrange(self.keys.ready, 0, -1)))

    def _keep(self, part: T) -> T:
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


async def receive_all(consumer: Consumer, count: int) -> list[Delivery]:
    """So many, in as many calls as it takes: a pull of JetStream may bring a part of what is there."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(deliveries) < count:
            deliveries += (await consumer.receive(count - len(deliveries))).deliveries
    return deliveries


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds; for what only another process decides."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(0.02)
