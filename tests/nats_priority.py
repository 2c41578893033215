"""The priority subject as a worker of utopia-php/queue 4 uses it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.address import parse_address
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import PRIORITY_DURABLE, QueueNames

_PATIENCE = 60.0


class PriorityQueue:
    """`url` is that of somebody who may do everything."""

    def __init__(self, url: str, names: QueueNames) -> None:
        self.link = Link(parse_address(url), 30.0, "older worker")
        self._names = names
        self._url = url
        self._held = ""

    async def provision(self, *, ack_wait: float = 30.0, max_deliver: int = 5) -> None:
        """Make the consumer, or write these settings into it, as each older process does at its start."""
        config = {
            "durable_name": PRIORITY_DURABLE,
            "ack_policy": "explicit",
            "filter_subject": self._names.priority,
            "ack_wait": int(ack_wait * 1_000_000_000),
            "max_deliver": max_deliver,
        }
        body = {"stream_name": self._names.stream, "config": config}
        subject = f"CONSUMER.DURABLE.CREATE.{self._names.stream}.{PRIORITY_DURABLE}"
        await api.call(self.link, subject, body, "make the consumer")

    async def publish(self, *bodies: bytes) -> None:
        for body in bodies:
            reply = await self.link.request(self._names.priority, body)
            assert "seq" in json.loads(reply.payload), reply

    async def take(self) -> None:
        """Take one message and keep it."""
        assert await self._pull(5.0), "nothing was handed out"

    async def take_one(self) -> bool:
        """Take one message and keep it, if there is one."""
        return await self._pull(0.1)

    async def settle(self) -> None:
        """Acknowledge the message that was taken last."""
        reply = await self.link.request(self._held, b"+ACK")
        assert not reply.status, reply

    async def exhaust(self) -> None:
        """Take everything as often as it is handed out, and settle nothing."""
        await self.provision(ack_wait=0.2, max_deliver=1)
        until = asyncio.get_running_loop().time() + _PATIENCE
        while (info := await self._info())["num_pending"] or info["num_ack_pending"]:
            assert asyncio.get_running_loop().time() < until, info
            await self._pull(0.1)

    async def _pull(self, seconds: float) -> bool:
        """Ask for one message, in the server's own language; whether one came."""
        address = parse_address(self._url)
        [server] = address.servers
        reader, writer = await asyncio.open_connection(server.host, server.port)
        who = {"user": address.username, "pass": address.password, "headers": True, "verbose": False}
        question = json.dumps({"batch": 1, "no_wait": True, "expires": int(seconds * 1_000_000_000)})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._names.stream}.{PRIORITY_DURABLE}"
        lines = (f"CONNECT {json.dumps(who)}", "SUB mine 1", f"PUB {subject} mine {len(question)}", question)
        writer.write("".join(f"{line}\r\n" for line in lines).encode())
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    words = (await reader.readline()).decode().split()
                    if words[:1] in (["MSG"], ["HMSG"]):
                        break
                    assert words[:1] != ["-ERR"], words
        finally:
            writer.close()
        # MSG subject sid reply size: a status comes with headers, and with no subject to answer.
        if words[0] == "HMSG":
            return False
        self._held = words[3]
        return True

    async def _info(self) -> dict[str, Any]:
        info = await api.consumer_info(self.link, self._names.stream, PRIORITY_DURABLE)
        assert info is not None
        return info

    async def close(self) -> None:
        await self.link.close()
