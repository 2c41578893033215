"""Far more than a worker may hold: delayed for later, left behind by the dead, taken down with a culprit."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import RunningWorker, wait_until

BRIEF = """
    import asyncio
    from worker_runtime import App, Message
    app = App.from_env()

    @app.job("q", coroutines=10, prefetch=50)
    async def brief(payload: dict, message: Message) -> None:
        await asyncio.sleep(0.005)
"""


def resident(worker: RunningWorker) -> int:
    """Megabytes of memory that the worker process has in use."""
    (process,) = worker.status()["processes"]
    status = Path(f"/proc/{process['pid']}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) // 1024


def envelope(pid: str, size: int = 100) -> str:
    payload = {"filler": "x" * size}
    return json.dumps({"pid": pid, "queue": "q", "timestamp": 1, "payload": payload})


def fill(bench: Bench, count: int, size: int = 100) -> None:
    """Retries that are due in an hour."""
    due = int(time.time() + 3600) * 1000
    for start in range(0, count, 5000):
        some = {envelope(f"d{n}", size): due for n in range(start, min(start + 5000, count))}
        bench.client.zadd(bench.key("delayed"), some)


@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=pytest.mark.soak)])
def test_delayed_work_waits_in_the_broker(count: int, bench: Bench) -> None:
    """It takes no room in a worker, whose memory and hold are bounded by its prefetch."""
    fill(bench, count)
    worker = bench.run(BRIEF).consuming()
    before = resident(worker)
    over = threading.Event()
    held: list[int] = []

    def sample() -> None:
        while not over.is_set():
            held.append(bench.client.hlen(bench.key("owners")))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        bench.publish("q", *["{}"] * 1000)
        wait_until(lambda: bench.succeeded() == 1000, "all commits")
    finally:
        over.set()
        sampler.join()
    after = resident(worker)
    print(f"{count} delayed: {before} MB before, {after} MB after 1,000 messages, {max(held)} held at most")
    assert max(held) <= 50
    assert bench.count("delayed") == count
    worker.wait_for_counts(received=1000)
    assert after - before < 20
    assert worker.stop() == 0


@pytest.mark.soak
def test_what_twenty_thousand_dead_deliveries_left_does_not_hold_work_up(bench: Bench) -> None:
    client = bench.client
    stranded = [f"s{n:05}" for n in range(20_000)]
    for start in range(0, len(stranded), 1000):
        some = stranded[start : start + 1000]
        client.mset({bench.key("jobs") + f".{pid}": envelope(pid) for pid in some})
        client.hset(bench.key("owners"), mapping=dict.fromkeys(some, "r0 dead 1"))
        client.zadd(bench.key("liveness"), dict.fromkeys(some, 1))
        client.lpush(bench.key("processing"), *some)
        client.lpush(bench.key("dead"), *[f"dead-{pid}" for pid in some[:600]])
    client.incrby(f"{bench.namespace}.stats.q.total", len(stranded))
    client.incrby(f"{bench.namespace}.stats.q.processing", len(stranded))
    client.hset(bench.key("ledger"), "r0:claimed", len(stranded))
    client.config_set("slowlog-log-slower-than", 1000)
    client.slowlog_reset()
    bench.publish("q", "{}")
    began = time.monotonic()
    worker = bench.run(BRIEF)
    wait_until(lambda: bench.succeeded() >= 1, "the first commit")
    first = time.monotonic() - began
    wait_until(lambda: bench.succeeded() == 20_001, "all commits", timeout=280)
    whole = time.monotonic() - began
    slow = [entry for entry in client.slowlog_get(128) if entry["command"].startswith(b"EVAL")]
    longest = max((entry["duration"] for entry in slow), default=0) / 1000
    print(f"first commit {first:.1f} s after the start, all {whole:.1f} s, longest script {longest:.1f} ms")
    assert bench.count("dead") == 12_000
    assert int(client.hget(bench.key("ledger"), "r0:taken_over")) == 20_000
    wait_until(bench.nothing_left, "empty places")
    assert worker.stop() == 0
    assert not worker.said("fails:")


@pytest.mark.soak
def test_twenty_innocents_beside_a_message_that_kills_its_worker(bench: Bench) -> None:
    worker = bench.run(
        """
        import os
        from worker_runtime import App
        app = App.from_env()

        @app.job("q", prefetch=21)
        async def killer(payload: str) -> None:
            with open("ran", "a") as file:
                file.write(payload + "\\n")
            if payload == "bomb":
                os._exit(139)
        """,
        *("--max-takeovers", "5", "--expiry-seconds", "1"),
    )
    innocents = [f"i{n}" for n in range(20)]
    bench.publish("q", '"bomb"', *[f'"{name}"' for name in innocents])
    wait_until(lambda: bench.count("dead") == 1 and bench.succeeded() == 20, "the end of all", timeout=280)
    ran = Counter(worker.wrote())
    print(f"the culprit started {ran['bomb']} times, the others {sum(ran[name] for name in innocents)} times")
    assert ran["bomb"] == 5
    (pid,) = bench.client.lrange(bench.key("dead"), 0, -1)
    assert json.loads(bench.client.get(bench.key("reason") + f".{pid}"))["why"] == "crash-loop"
    assert worker.stop() == 0
