"""The app of the supervised workers of a run: `queueworker run worker_runtime.chaos.jobs:app`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from worker_runtime import App
from worker_runtime.chaos.nursery import PLAN, SUPERVISED
from worker_runtime.chaos.plan import TIMING, Plan
from worker_runtime.chaos.record import Record

_plan = Plan.decode(os.environ[PLAN])
_record = Record(_plan.record_path)
_name = os.environ[SUPERVISED]

app = App(_plan.url, _plan.namespace, TIMING)


@app.job(_plan.queue, coroutines=4, prefetch=40, max_takeovers=0)
async def handle(payload: dict[str, Any]) -> None:
    number = int(payload["n"])
    _record.started(number, _name)
    await asyncio.sleep(0.002)
    _record.finished(number, _name)
