"""Our producer: `python -m benchmarks.publishing`, told by BENCH_* variables. Prints its rate as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import time

from benchmarks.payloads import batches
from worker_runtime import App


async def main() -> None:
    count, size = int(os.environ["BENCH_COUNT"]), int(os.environ["BENCH_SIZE"])
    app = App(os.environ["BENCH_URL"], os.environ["QUEUEWORKER_NAMESPACE"])
    queue = os.environ["BENCH_HANDLER"]
    inside = 0.0
    async for payloads in batches(count, size, float(os.environ["BENCH_RATE"])):
        began = time.perf_counter()
        await app.publish_many(queue, payloads)
        inside += time.perf_counter() - began
    await app.close()
    print(json.dumps({"messages": count, "seconds": inside}))


asyncio.run(main())
