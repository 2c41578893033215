"""How long the broker takes to confirm one settlement of 100 messages: `python -m benchmarks.settling`, told
by BENCH_* variables. Prints the times of all calls as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop

from benchmarks.payloads import payload
from worker_runtime import App
from worker_runtime.brokers.base import Action, Consumer, Delivery, Outcome, Settlement, WorkerIdentity

BATCH = 100


async def main() -> None:
    """A round publishes a batch, receives it, and settles it in one call; only that call is timed."""
    app = App(os.environ["BENCH_URL"], os.environ["QUEUEWORKER_NAMESPACE"])
    queue, size = os.environ["BENCH_HANDLER"], int(os.environ["BENCH_SIZE"])
    broker = app.make_broker()
    await broker.check(queue)
    consumer = broker.consumer(queue, WorkerIdentity("bench", "bench", "bench"))
    rounds = max(1, int(os.environ["BENCH_COUNT"]) // BATCH)
    seconds: list[float] = []
    for _ in range(rounds):
        await app.publish_many(queue, [payload(size) for _ in range(BATCH)])
        settlements = [Settlement(one, Action.COMMIT) for one in await _received(consumer)]
        outcomes: list[Outcome] = []
        began = time.perf_counter()
        await consumer.settle(settlements, lambda _, outcome, __: outcomes.append(outcome))  # noqa: B023
        seconds.append(time.perf_counter() - began)
        if outcomes != [Outcome.COMMITTED] * BATCH:
            sys.exit(f"not everything was committed: {outcomes}")
    await consumer.close()
    await app.close()
    spent = sum(seconds)
    print(
        json.dumps({"messages": rounds * BATCH, "seconds": spent, "milliseconds": [s * 1e3 for s in seconds]})
    )


async def _received(consumer: Consumer) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < BATCH:
        found.extend((await consumer.receive(BATCH - len(found))).deliveries)
    return found


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
