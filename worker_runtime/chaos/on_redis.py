"""A run on Redis: one namespace of keys, scripts that are flushed, and a Cluster that replaces a primary."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from worker_runtime.brokers.base import QueueReading
from worker_runtime.chaos.failovers import Failovers
from worker_runtime.chaos.footprint import Footprint, footprint
from worker_runtime.chaos.plan import Plan
from worker_runtime.chaos.record import Account
from worker_runtime.chaos.verdict import Published, Verdict, judge


class RedisGround:
    """Implements `Ground`."""

    forgets = "scripts"
    faults = "primaries replaced"

    def __init__(self, plan: Plan, keys: Footprint) -> None:
        self._keys = keys
        self._failovers = Failovers(plan.url, plan.namespace, plan.queue)

    async def occupied(self) -> str:
        there = await self._keys.keys(at_most=1)
        return f"the key {there[0]}" if there else ""

    async def prepare(self) -> None:
        """A queue is made by its first message."""

    async def forget(self) -> None:
        await self._keys.flush_scripts()

    async def fault_interval(self) -> float:
        return await self._failovers.interval()

    async def fault(self) -> bool:
        return await self._failovers.fail_over()

    async def judge(self, account: Account, published: Published, reading: QueueReading) -> Verdict:
        return judge(account, published, reading, await self._keys.keys())

    async def remove(self) -> None:
        await self._keys.remove()


@asynccontextmanager
async def redis_ground(plan: Plan) -> AsyncIterator[RedisGround]:
    """Raises BrokerError for a URL that cannot be used."""
    async with footprint(plan.url, plan.namespace) as keys:
        yield RedisGround(plan, keys)
