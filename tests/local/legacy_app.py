"""A program that speaks the older protocol, as `queueworker up` starts it: it takes one job at a time,
counts it as the other test app does, and serves /readyz."""

from __future__ import annotations

import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import redis

from tests.brokers.legacy_worker import LegacyWorker
from tests.local.jobs import BEGUN, BY_VERSION, DONE


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["QUEUEWORKER_ADMIN_PORT"])), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store = redis.Redis.from_url(os.environ["QUEUEWORKER_BROKER_URL"])

    def handle(pid: str, job: Any, attempts: int) -> bool:
        store.sadd(BEGUN, job["id"])
        if job["seconds"] < 0:
            while not store.exists("test:go"):
                time.sleep(0.05)
        else:
            time.sleep(job["seconds"])
        store.hincrby(DONE, job["id"], 1)
        store.hincrby(BY_VERSION, os.environ.get("VERSION", ""), 1)
        return True

    worker = LegacyWorker(store, os.environ["QUEUEWORKER_NAMESPACE"], os.environ["QUEUEWORKER_QUEUE"])
    worker.work(handle, stop.is_set)


if __name__ == "__main__":
    main()
