"""The worked example: usage events of a hosting company are added to totals per project and metric.

queueworker run examples.usage.jobs:app
"""

from __future__ import annotations

import asyncio
import os
import random
from datetime import datetime

from pydantic import BaseModel, Field
from redis.asyncio import Redis

from worker_runtime import App, Message

app = App.from_env()

#: The durable store of this example: one row an event, so that a second delivery changes nothing.
EVENTS = "usage:events"
#: How often each event was handled. At-least-once delivery may run a job twice; this makes it visible.
HANDLED = "usage:handled"
#: How many events each version of the worker handled.
BY_VERSION = "usage:by-version"


class Usage(BaseModel):
    """One usage event, as a producer publishes it."""

    id: str = Field(max_length=64)
    project: str
    metric: str
    unit: str
    value: int
    at: datetime
    region: str


@app.on_worker_start
async def connect() -> None:
    app.resources["totals"] = Redis.from_url(os.environ.get("USAGE_TOTALS_URL") or app.broker_url)


@app.on_worker_stop
async def disconnect() -> None:
    await app.resources["totals"].aclose()


@app.job("stats-usage", coroutines=4, prefetch=100)
async def stats_usage(usage: Usage, message: Message, totals: Redis) -> None:
    """Store one event. Rows are keyed by the event's id, and the three writes happen together or not at
    all, so a worker that is killed anywhere in here leaves totals that are right."""
    await asyncio.sleep(random.uniform(0.01, 0.05))  # the time that a remote store would take
    async with totals.pipeline(transaction=True) as write:
        write.hset(EVENTS, usage.id, f"{usage.project}/{usage.metric} {usage.value}")
        write.hincrby(HANDLED, usage.id, 1)
        write.hincrby(BY_VERSION, os.environ.get("USAGE_VERSION", "v1"), 1)
        await write.execute()
