"""Counts what the test app stored, for the gate UsageAccounting. AUDIT says how: well, or in another way."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from redis.asyncio import Redis

from tests.local.jobs import BY_VERSION
from worker_runtime.brokers.connect import broker_from_url

#: Who counted so far: process ids.
AUDITS = "test:audits"


async def count() -> dict[str, int]:
    url, revision = os.environ["QUEUEWORKER_BROKER_URL"], os.environ["QUEUEWORKER_AUDIT_CANARY"]
    store = Redis.from_url(url, decode_responses=True)
    await store.rpush(AUDITS, os.getpid())
    if os.environ["AUDIT"] == "fails":
        raise SystemExit("the store cannot be reached")
    waits = os.environ["AUDIT"] == "waits"
    while waits and not await store.exists("test:audit"):  # noqa: ASYNC110 - set by the test
        await asyncio.sleep(0.05)
    inspector = broker_from_url(url, os.environ["QUEUEWORKER_NAMESPACE"]).inspector()
    expected = (await inspector.read(os.environ["QUEUEWORKER_QUEUE"])).ledger[revision].committed
    counted = min(expected, int(await store.hget(BY_VERSION, os.environ["VERSION"]) or 0))
    await inspector.close()
    await store.aclose()
    return {"expected": expected, "counted": counted, "lost": expected - counted, "duplicates": 0}


if __name__ == "__main__":
    if os.environ["AUDIT"] == "pipe":
        os.mkfifo(os.environ["QUEUEWORKER_RESULT_FILE"])
        raise SystemExit
    Path(os.environ["QUEUEWORKER_RESULT_FILE"]).write_text(json.dumps(asyncio.run(count())))
