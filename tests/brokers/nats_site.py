"""What a test needs of JetStream: the parts of `Site`, and a look and a hand from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.brokers.site import CALM, Site
from worker_runtime.brokers.base import QueueReading, Timing
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.address import parse_address
from worker_runtime.brokers.nats.broker import NatsBroker
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import DURABLE, QueueNames
from worker_runtime.brokers.nats.topology import Plan

#: Nothing comes back by itself while a test runs.
PLAN = Plan(ack_wait=600)


class NatsSite(Site):
    """One queue on one server. `link` is for looking and for meddling from outside."""

    can = frozenset()

    def __init__(self, url: str, namespace: str = "utopia-queue", timeout: float = 30.0) -> None:
        """`timeout` in seconds: how long one question from outside may take."""
        super().__init__(url, None, namespace)
        self.names = QueueNames(namespace, "q")
        self.link = Link(parse_address(url), timeout, "test")

    def nats(self, timing: Timing = CALM, url: str | None = None) -> NatsBroker:
        return NatsBroker(parse_address(url or self.url), self.namespace, timing)

    async def provision(self, plan: Plan = PLAN, *, update: bool = False, **changes: Any) -> Sequence[str]:
        broker = self.nats(replace(CALM, command_timeout=self.link.timeout))
        return await broker.provision("q", replace(plan, **changes), update=update)

    async def clear(self) -> None:
        streams = (self.names.stream, self.names.dead_stream, self.names.books, self.names.exhausted)
        for stream in streams:
            await api.find(self.link, f"STREAM.DELETE.{stream}", None, "delete a stream")

    async def consumer_info(self) -> dict[str, Any]:
        info = await api.consumer_info(self.link, self.names.stream, DURABLE)
        assert info is not None
        return info

    async def stored(self, stream: str) -> int:
        info = await api.stream_info(self.link, stream)
        assert info is not None
        return int(info["state"]["messages"])

    async def put(self, body: bytes) -> None:
        """Publish these very bytes, as another producer would."""
        reply = await self.link.request(self.names.normal, body)
        assert "seq" in json.loads(reply.payload), reply

    async def somebody_waits(self) -> bool:
        return bool((await self.consumer_info())["num_waiting"])

    def free(self, reading: QueueReading) -> int:
        # The server counts what was given back as handed out until it is taken again.
        return reading.ready + reading.owned

    def failed(self, reading: QueueReading) -> int:
        # One stream holds what was rejected and what was given up.
        return reading.dead

    async def close(self) -> None:
        for part in self._open:
            await part.close()
        await self.link.close()


async def fresh_site(url: str, plan: Plan = PLAN) -> NatsSite:
    """With nothing of an earlier test."""
    site = NatsSite(url)
    await site.clear()
    await site.provision(plan)
    return site
