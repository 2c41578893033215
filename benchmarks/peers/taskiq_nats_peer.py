"""taskiq on a JetStream pull consumer: the task, and as a program the producer."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from taskiq_nats import PullBasedJetStreamBroker

from benchmarks.payloads import batches, sent_of

broker = PullBasedJetStreamBroker(
    os.environ["BENCH_URL"], stream_name="bench", pull_consume_batch=int(os.environ["BENCH_BATCH"])
)
_started = None


@broker.task(task_name="job")  # type: ignore[untyped-decorator]
async def job(payload: dict[str, Any]) -> None:
    global _started
    if _started is None:
        from benchmarks.recorder import recorder

        _started = recorder()
    _started(sent_of(payload))


async def publish() -> None:
    count, size, rate = (os.environ[f"BENCH_{name}"] for name in ("COUNT", "SIZE", "RATE"))
    await broker.startup()
    async for payloads in batches(int(count), int(size), float(rate), batch=50):
        await asyncio.gather(*(job.kiq(payload) for payload in payloads))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(publish())
