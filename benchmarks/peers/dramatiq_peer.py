"""dramatiq on Redis: the actor, and as a program the producer."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.payloads import IO_SECONDS, batches, burn, sent_of

broker = RedisBroker(url=os.environ["BENCH_URL"])
dramatiq.set_broker(broker)
KIND = os.environ["BENCH_HANDLER"]
_lock = threading.Lock()
_started = None


def started(sent: int) -> None:
    global _started
    with _lock:
        if _started is None:  # after the fork: each worker process has its own record
            from benchmarks.recorder import recorder

            _started = recorder()
        _started(sent)


@dramatiq.actor(queue_name="bench")  # type: ignore[untyped-decorator]
def job(payload: dict[str, Any]) -> None:
    sent = sent_of(payload)
    started(sent)
    if KIND == "cpu" or (KIND == "mixed" and sent % 10 == 0):
        burn()
    if KIND == "io" or (KIND == "mixed" and sent % 10 == 0):
        time.sleep(IO_SECONDS)


async def publish() -> None:
    count, size, rate = (os.environ[f"BENCH_{name}"] for name in ("COUNT", "SIZE", "RATE"))
    async for payloads in batches(int(count), int(size), float(rate)):
        for payload in payloads:
            job.send(payload)


if __name__ == "__main__":
    asyncio.run(publish())
