"""A worker of the older protocol in a pod: it handles usage events one at a time, and counts them where the
worked example counts its own. `older.older_worker` puts this file and `legacy_worker.py` into its pod."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import redis

from examples.usage.totals import BY_VERSION, HANDLED
from tests.brokers.legacy_worker import LegacyWorker


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    store = redis.Redis.from_url(os.environ["QUEUEWORKER_BROKER_URL"])

    def handle(pid: str, event: Any, attempts: int) -> bool:
        store.hincrby(HANDLED, event["id"], 1)
        store.hincrby(BY_VERSION, "older", 1)
        return True

    worker = LegacyWorker(store, os.environ["QUEUEWORKER_NAMESPACE"], os.environ["QUEUEWORKER_QUEUE"])
    worker.work(handle, stop.is_set)


if __name__ == "__main__":
    main()
