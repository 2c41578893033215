"""The app that the tests of local mode run: each job says how long it takes, and is counted at its end."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TypedDict

from redis.asyncio import Redis

from worker_runtime import App

if os.environ.get("BROKEN"):
    raise RuntimeError("this version cannot even be imported")

app = App.from_env()

#: id -> how often it was finished.
DONE = "test:done"
#: version -> how many it finished.
BY_VERSION = "test:by-version"
#: ids whose handler has begun.
BEGUN = "test:begun"


class Work(TypedDict):
    id: str
    #: How long the handler takes; below zero: until the key `test:go` exists.
    seconds: float


@app.on_worker_start
async def connect() -> None:
    app.resources["store"] = Redis.from_url(app.broker_url)


@app.on_worker_start
async def live_for_a_while() -> None:
    if seconds := os.environ.get("DIES_AFTER"):
        asyncio.get_running_loop().call_later(float(seconds), os._exit, 1)


@app.on_worker_stop
async def disconnect() -> None:
    await app.resources["store"].aclose()


@app.job("work", coroutines=1)
async def work(job: Work, store: Redis) -> None:
    if os.environ.get("WASTES"):
        until = time.process_time() + 0.06
        while time.process_time() < until:
            pass
        raise ValueError("this version takes its time, and then nothing")
    await store.sadd(BEGUN, job["id"])
    if job["seconds"] < 0:
        while not await store.exists("test:go"):  # noqa: ASYNC110 - set by another process
            await asyncio.sleep(0.05)
    else:
        await asyncio.sleep(job["seconds"])
    if os.environ.get("LOSES") and job["id"].endswith("7"):
        return  # and the broker is told that all is well
    async with store.pipeline(transaction=True) as write:
        write.hincrby(DONE, job["id"], 1)
        write.hincrby(BY_VERSION, os.environ.get("VERSION", ""), 1)
        await write.execute()
