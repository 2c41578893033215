"""FastStream on a JetStream pull consumer: the handler, and as a program the producer."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import nats
from faststream import FastStream
from faststream.nats import JStream, NatsBroker, PullSub

from benchmarks.payloads import batches, sent_of

broker = NatsBroker(os.environ["BENCH_URL"], logger=None)
app = FastStream(broker, logger=None)
stream = JStream(name="bench")
_workers = {"max_workers": 100} if os.environ["BENCH_HOW"] == "workers" else {}
_started = None


@broker.subscriber("jobs", stream=stream, durable="bench", pull_sub=PullSub(batch_size=100), **_workers)  # type: ignore[untyped-decorator]
async def job(payload: dict[str, Any]) -> None:
    global _started
    if _started is None:
        from benchmarks.recorder import recorder

        _started = recorder()
    _started(sent_of(payload))


async def publish() -> None:
    count, size, rate = (os.environ[f"BENCH_{name}"] for name in ("COUNT", "SIZE", "RATE"))
    # A stream is made when a subscriber starts, and the producer must not consume.
    client = await nats.connect(os.environ["BENCH_URL"])
    await client.jetstream().add_stream(name="bench", subjects=["jobs"])
    await client.close()
    await broker.connect()
    async for payloads in batches(int(count), int(size), float(rate), batch=50):
        await asyncio.gather(*(broker.publish(payload, "jobs", stream="bench") for payload in payloads))
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(publish())
