"""A run on NATS JetStream: the streams of one queue, and servers that lose their lead or their life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from worker_runtime.brokers.base import BrokerError, BrokerRefusedError, QueueReading
from worker_runtime.brokers.nats import api, topology
from worker_runtime.brokers.nats.address import parse_address
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import DURABLE, names_of
from worker_runtime.brokers.nats.server import EmbeddedNats
from worker_runtime.chaos.patience import patiently
from worker_runtime.chaos.plan import TIMING, Plan
from worker_runtime.chaos.record import Account
from worker_runtime.chaos.verdict import Published, Streams, Verdict, judge_streams

#: Seconds for one question, and for a server or a leader to be there again.
_QUESTION = 5.0
_BACK = 30.0
#: Seconds between two faults.
_INTERVAL = 3.0


class NatsGround:
    """Implements `Ground`. `server` is one that may be killed; others can only change their leaders."""

    forgets = ""

    def __init__(self, plan: Plan, link: Link, server: EmbeddedNats | None) -> None:
        self.faults = "leaders changed" if server is None else "servers killed and restarted"
        self._names = names_of(plan.namespace, plan.queue)
        self._link = link
        self._server = server
        self._faults = 0

    async def occupied(self) -> str:
        await self._link.opened()  # an absent server is said at once
        for stream in self._streams:
            if await self._info(stream) is not None:
                return f"the stream {stream}"
        return ""

    async def prepare(self) -> None:
        wire = await self._link.opened()
        plan = topology.Plan(replicas=3 if wire.info.get("cluster") else 1, ack_wait=TIMING.expiry)
        await patiently(lambda: topology.provision(self._link, self._names, plan), _BACK)

    async def forget(self) -> None:
        """Nothing: the server keeps nothing for a client that it could forget alone."""

    async def fault_interval(self) -> float:
        wire = await self._link.opened()
        if self._server is None and not wire.info.get("cluster"):
            raise BrokerRefusedError(
                f"NATS at {wire.name} is one server, and nobody could take its lead; use a cluster of"
                " three, or --broker embedded-nats, whose server is killed and started again, or leave"
                " --server-faults out"
            )
        return _INTERVAL

    async def fault(self) -> bool:
        self._faults += 1
        if self._server is not None:
            # From this thread: the server ends with the thread that started it.
            self._server.kill()
            self._server.restart()
            return True
        stream, consumer = self._names.stream, f"{self._names.stream}.{DURABLE}"
        for subject in (f"CONSUMER.LEADER.STEPDOWN.{consumer}", f"STREAM.LEADER.STEPDOWN.{stream}"):
            await api.call(self._link, subject, None, f"change the leader of {stream}")
        try:
            async with asyncio.timeout(_BACK):
                while not await self._is_led():  # noqa: ASYNC110 - nobody tells us
                    await asyncio.sleep(0.05)
        except TimeoutError:
            return False
        return True

    async def _is_led(self) -> bool:
        try:
            info = await api.consumer_info(self._link, self._names.stream, DURABLE)
        except BrokerError:
            return False
        return info is not None and bool((info.get("cluster") or {}).get("leader"))

    async def judge(self, account: Account, published: Published, reading: QueueReading) -> Verdict:
        infos = [await self._info(one) for one in self._streams[:2]]
        states = [{} if info is None else info["state"] for info in infos]
        streams = Streams(
            stored=int(states[0].get("last_seq", 0)),
            left=int(states[0].get("messages", 0)),
            buried=int(states[1].get("last_seq", 0)),
            handed_out=reading.total,
            harmed=bool(self._faults),
        )
        return judge_streams(account, published, reading, streams)

    async def remove(self) -> None:
        for stream in self._streams:
            await self._delete(stream)

    async def _info(self, stream: str) -> dict[str, Any] | None:
        return await patiently(lambda: api.stream_info(self._link, stream), _BACK)

    async def _delete(self, stream: str) -> None:
        subject, doing = f"STREAM.DELETE.{stream}", f"delete {stream}"
        await patiently(lambda: api.find(self._link, subject, None, doing), _BACK)

    @property
    def _streams(self) -> tuple[str, str, str, str]:
        names = self._names
        return names.stream, names.dead_stream, names.books, names.exhausted


@asynccontextmanager
async def nats_ground(plan: Plan, server: EmbeddedNats | None) -> AsyncIterator[NatsGround]:
    """Raises BrokerError for a URL that cannot be used."""
    link = Link(parse_address(plan.url), _QUESTION, "queueworker chaos")
    try:
        yield NatsGround(plan, link, server)
    finally:
        await link.close()
