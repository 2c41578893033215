"""saq on Redis: the settings of its worker, and as a program the producer."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import uvloop
from saq import Queue

from benchmarks.payloads import IO_SECONDS, batches, burn, sent_of

# Its command makes a plain loop; it is faster on this one.
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
queue = Queue.from_url(os.environ["BENCH_URL"])
KIND = os.environ["BENCH_HANDLER"]
_started = None


async def job(ctx: dict[str, Any], *, payload: dict[str, Any]) -> None:
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


settings = {
    "queue": queue,
    "functions": [job],
    "concurrency": int(os.environ.get("BENCH_CONCURRENCY", "100")),
}


async def publish() -> None:
    count, size, rate = (os.environ[f"BENCH_{name}"] for name in ("COUNT", "SIZE", "RATE"))
    await queue.connect()
    async for payloads in batches(int(count), int(size), float(rate), batch=50):
        # ttl=-1 keeps no result, which is saq's fastest setting.
        await asyncio.gather(*(queue.enqueue("job", payload=payload, ttl=-1) for payload in payloads))
    await queue.disconnect()


if __name__ == "__main__":
    asyncio.run(publish())
