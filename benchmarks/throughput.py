"""How many messages one worker process consumes a second: `python -m benchmarks.throughput`.

Starts its own redis-server, publishes a backlog of 100-byte payloads, starts `queueworker run` on it with the
default logging, metrics and renewal, and times from the first commit to the last. Prints lines for people on
standard error and JSON on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import redis

from worker_runtime import App
from worker_runtime.brokers.redis.server import EmbeddedRedis

NAMESPACE = "bench"
QUEUE = "null"
#: Ends a run that is stuck, in seconds.
WATCHDOG = 300.0


def payload(number: int) -> bytes:
    text = b'{"n":%d,"text":"' % number
    return text + b"x" * (98 - len(text)) + b'"}'


async def fill(url: str, count: int) -> float:
    """Publish the backlog; messages a second."""
    app = App(url, NAMESPACE)
    began = time.perf_counter()
    for start in range(0, count, 1000):
        await app.publish_many(QUEUE, [payload(n) for n in range(start, min(start + 1000, count))])
    seconds = time.perf_counter() - began
    await app.close()
    return count / seconds


def cpu_of(client: redis.Redis) -> float:
    info: dict[str, Any] = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def requests_of(client: redis.Redis) -> int:
    info: dict[str, Any] = client.info("commandstats")
    return sum(stats["calls"] for name, stats in info.items() if name.startswith("cmdstat_evalsha"))


def measure(server: EmbeddedRedis, count: int, coroutines: int, prefetch: int) -> dict[str, Any]:
    client = redis.Redis.from_url(server.url)
    client.flushall()
    published = asyncio.run(fill(server.url, count))
    success = f"{NAMESPACE}.stats.{QUEUE}.success"
    root = Path(__file__).parents[1]
    env = {key: value for key, value in os.environ.items() if not key.startswith("QUEUEWORKER_")}
    env |= {
        "QUEUEWORKER_BROKER_URL": server.url,
        "QUEUEWORKER_NAMESPACE": NAMESPACE,
        "QUEUEWORKER_COROUTINES": str(coroutines),
        "QUEUEWORKER_PREFETCH": str(prefetch),
        "QUEUEWORKER_LOG_LEVEL": "warning",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    worker = subprocess.Popen(
        [sys.executable, "-m", "worker_runtime.cli.main", "run", "benchmarks.null_job:app"],
        cwd=root,
        env=env,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + WATCHDOG
        while not int(client.get(success) or 0):
            assert worker.poll() is None, "the worker ended early"
            assert time.monotonic() < deadline, "no first commit"
            time.sleep(0.001)
        first, server_first = time.perf_counter(), cpu_of(client)
        already, requests = int(client.get(success) or 0), requests_of(client)
        while int(client.get(success) or 0) < count:
            assert time.monotonic() < deadline, "the run is stuck"
            time.sleep(0.005)
        seconds = time.perf_counter() - first
        server_cpu = cpu_of(client) - server_first
        requests = requests_of(client) - requests
    finally:
        os.killpg(worker.pid, signal.SIGTERM)
        worker.wait(60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    client_cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    done = count - already
    return {
        "coroutines": coroutines,
        "prefetch": prefetch,
        "messages": done,
        "seconds": round(seconds, 3),
        "per_second": round(done / seconds),
        # The whole life of supervisor and worker, start included.
        "client_cpu_us_per_message": round(client_cpu / count * 1e6, 1),
        "server_cpu_us_per_message": round(server_cpu / done * 1e6, 1),
        "requests_per_message": round(requests / done, 3),
        "published_per_second": round(published),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--coroutines", type=int, default=1)
    parser.add_argument("--prefetch", type=int, nargs="*", default=[1, 100])
    parser.add_argument("--repeat", type=int, default=1)
    arguments = parser.parse_args()
    rows = []
    with EmbeddedRedis() as server:
        for prefetch in arguments.prefetch:
            for _ in range(arguments.repeat):
                row = measure(server, arguments.messages, arguments.coroutines, prefetch)
                rows.append(row)
                print(
                    f"prefetch {prefetch:>4}: {row['per_second']:>7,} messages/s, "
                    f"client {row['client_cpu_us_per_message']} us and server "
                    f"{row['server_cpu_us_per_message']} us CPU a message, "
                    f"{row['requests_per_message']} requests a message "
                    f"(publishing: {row['published_per_second']:,}/s)",
                    file=sys.stderr,
                )
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps({"machine": machine, "runs": rows}, indent=2))


if __name__ == "__main__":
    main()
