"""A program that takes the priority subject of a queue on NATS, as a worker of utopia-php/queue 4 does, and
serves /readyz. It takes nothing before the file that MAY_TAKE names is there."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.local.legacy_app import Ready
from tests.nats_priority import PriorityQueue
from worker_runtime.brokers.nats.names import QueueNames

#: Short: what it held comes back soon, and that it is gone is known soon.
ACK_WAIT = 2.0


def there(path: str) -> bool:
    return Path(path).exists()


async def work(stop: asyncio.Event, may_take: str) -> None:
    names = QueueNames(os.environ["QUEUEWORKER_NAMESPACE"], os.environ["QUEUEWORKER_QUEUE"])
    queue = PriorityQueue(os.environ["QUEUEWORKER_BROKER_URL"], names)
    await queue.provision(ack_wait=ACK_WAIT)
    while not stop.is_set():
        if there(may_take) and await queue.take_one():
            await queue.settle()
        else:
            await asyncio.sleep(0.1)
    await queue.close()


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["QUEUEWORKER_ADMIN_PORT"])), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    await work(stop, os.environ["MAY_TAKE"])


if __name__ == "__main__":
    asyncio.run(main())
