"""A worker process that a test can kill: receives by the public classes, commits what it got, for ever."""

from __future__ import annotations

import asyncio
import sys

from tests.brokers.site import HASTY
from worker_runtime.brokers.base import Action, Settlement, WorkerIdentity
from worker_runtime.brokers.connect import broker_from_url


async def main(url: str, namespace: str) -> None:
    # Nobody renews for it: what it leaves may be recovered as soon as it is dead.
    broker = broker_from_url(url, namespace, HASTY)
    consumer = broker.consumer("q", WorkerIdentity("r1", "child"))
    while True:
        received = await consumer.receive(100)
        await consumer.settle(
            [Settlement(one, Action.COMMIT) for one in received.deliveries], lambda *_: None
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
