"""taskiq on a Redis stream: the task, and as a program the producer."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from taskiq_redis import RedisStreamBroker

from benchmarks.payloads import IO_SECONDS, batches, burn, sent_of

# From the stream's start: by default a new group sees only what comes after it.
broker = RedisStreamBroker(os.environ["BENCH_URL"], consumer_id="0")
KIND = os.environ["BENCH_HANDLER"]
_started = None


@broker.task(task_name="job")  # type: ignore[untyped-decorator]
async def job(payload: dict[str, Any]) -> None:
    global _started
    if _started is None:
        from benchmarks.recorder import recorder

        _started = recorder()
    sent = sent_of(payload)
    _started(sent)
    if KIND == "cpu" or (KIND == "mixed" and sent % 10 == 0):
        burn()
    if KIND == "io" or (KIND == "mixed" and sent % 10 == 0):
        await asyncio.sleep(IO_SECONDS)


async def publish() -> None:
    count, size, rate = (os.environ[f"BENCH_{name}"] for name in ("COUNT", "SIZE", "RATE"))
    await broker.startup()
    async for payloads in batches(int(count), int(size), float(rate), batch=50):
        await asyncio.gather(*(job.kiq(payload) for payload in payloads))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(publish())
