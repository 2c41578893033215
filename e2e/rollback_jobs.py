"""The app of the workers that `python -m e2e rollbacks` starts: it notes what it starts and finishes."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

from worker_runtime import App
from worker_runtime.chaos.plan import TIMING
from worker_runtime.chaos.record import Record

#: In the environment: the file of the record.
RECORD = "ROLLBACKS_RECORD"
QUEUE = "work"
#: Seconds that a handler takes at most.
_LONGEST = 0.02

_place = App.from_env()
#: What a killed worker held comes back soon.
app = App(_place.broker_url, _place.namespace, TIMING)


@app.on_worker_start
async def begin() -> None:
    app.resources["record"] = Record(Path(os.environ[RECORD]))


@app.job(QUEUE, coroutines=4, prefetch=20, max_takeovers=0)
async def handle(payload: dict[str, Any], record: Record) -> None:
    number, name = int(payload["n"]), str(os.getpid())
    record.started(number, name)
    await asyncio.sleep(random.random() * _LONGEST)
    record.finished(number, name)
