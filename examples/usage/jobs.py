"""The worked example: usage events of a hosting company are added to totals per project and metric.

queueworker run examples.usage.jobs:app

The totals are kept where USAGE_TOTALS_URL says, else on the broker if that is a Redis, else in a file of this
machine or pod (see totals.py).
"""

from __future__ import annotations

import asyncio
import os
import random
from datetime import datetime

from pydantic import BaseModel, Field

from examples.usage.totals import Totals, default_totals, open_totals
from worker_runtime import App, Message

app = App.from_env()


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
    app.resources["totals"] = open_totals(
        os.environ.get("USAGE_TOTALS_URL") or default_totals(app.broker_url)
    )


@app.on_worker_stop
async def disconnect() -> None:
    await app.resources["totals"].close()


@app.job("stats-usage", coroutines=4, prefetch=100)
async def stats_usage(usage: Usage, message: Message, totals: Totals) -> None:
    """Store one event. Rows are keyed by the event's id, so handling it twice changes no total."""
    await asyncio.sleep(random.uniform(0.01, 0.05))  # the time that a remote store would take
    row = f"{usage.project}/{usage.metric} {usage.value}"
    version, revision = os.environ.get("USAGE_VERSION", "v1"), os.environ.get("QUEUEWORKER_REVISION", "")
    await totals.store(usage.id, row, version, revision)
