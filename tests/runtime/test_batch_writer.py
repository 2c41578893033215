"""The batch writer of the examples on a real engine: what is committed is on disk, whatever is killed."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.runtime.conftest import Bench
from tests.runtime.running import EXPIRES_SOON, RunningWorker, queueworker, wait_until

QUEUE = "usage-rows"


def events(count: int) -> list[dict[str, Any]]:
    chance = random.Random(1)
    return [
        {"id": f"e{n}", "project": f"p{n % 7}", "metric": "bytes", "value": chance.randint(1, 1000)}
        for n in range(count)
    ]


def totals(of: list[dict[str, Any]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for event in of:
        result[event["project"]] = result.get(event["project"], 0) + event["value"]
    return result


class Store:
    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, question: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as database:
            return database.execute(question).fetchall()

    def totals(self) -> dict[str, int]:
        return dict(self.ask("SELECT project, SUM(value) FROM usage GROUP BY project"))

    def rows(self) -> int:
        """0 as long as the worker has not made its tables."""
        if not self.ask("SELECT 1 FROM sqlite_master WHERE name = 'batches'"):
            return 0
        return sum(count for (count,) in self.ask("SELECT COUNT(*) FROM usage"))


def worker_of(bench: Bench, *flags: str, **extra: str) -> RunningWorker:
    env = bench.env | {"USAGE_DATABASE": str(bench.directory / "usage.db"), **extra}
    source = "from examples.batch_writer.jobs import app\n"
    worker = RunningWorker(bench.directory, source, env, *flags)
    bench.workers.append(worker)
    return worker


def test_totals_are_right_under_kills(bench: Bench) -> None:
    every = events(4000)
    bench.publish(QUEUE, *[json.dumps(event) for event in every])
    store = Store(bench.directory / "usage.db")
    for part in range(1, 6):
        worker = worker_of(bench, *EXPIRES_SOON, USAGE_BATCH_ROWS="150", USAGE_BATCH_SECONDS="0.05")
        wait_until(lambda part=part: store.rows() >= part * 500, "some rows")  # type: ignore[misc]
        worker.kill_group()
        committed, stored = bench.succeeded(QUEUE), store.rows()
        assert committed <= stored, "nothing is committed that is not on disk"
    last = worker_of(bench, *EXPIRES_SOON)
    wait_until(lambda: bench.succeeded(QUEUE) == len(every), "all commits")
    assert store.totals() == totals(every)
    assert store.rows() == len(every)
    [(sent, batches)] = store.ask("SELECT SUM(rows), COUNT(*) FROM batches")
    assert sent >= len(every)
    assert sent / batches > 5, "it wrote in batches"
    wait_until(lambda: bench.nothing_left(QUEUE), "empty places")
    last.wait_for_counts(QUEUE, unconfirmed=0, deferred=0, handler_errors=0)
    assert last.stop() == 0


def test_a_stop_waits_for_the_buffer(bench: Bench) -> None:
    store = Store(bench.directory / "usage.db")
    worker = worker_of(bench, USAGE_BATCH_ROWS="10000", USAGE_BATCH_SECONDS="1").consuming()
    # Whoever writes, the buffer's rows cannot be: so it stays full for as long as the test looks.
    with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        bench.publish(QUEUE, *[json.dumps(event) for event in events(30)])
        worker.wait_for_counts(QUEUE, deferred=30, unconfirmed=30, running=0, committed=0)
        worker.signal()
        worker.wait_for("stops: receives nothing more")
        assert (bench.succeeded(QUEUE), store.rows()) == (0, 0)
        database.execute("COMMIT")
    assert worker.ended() == 0
    assert (bench.succeeded(QUEUE), store.rows()) == (30, 30)


def test_a_stop_does_not_wait_for_ever(bench: Bench) -> None:
    endless = {"USAGE_BATCH_ROWS": "10000", "USAGE_BATCH_SECONDS": "3600"}
    worker = worker_of(bench, "--shutdown-seconds", "1", *EXPIRES_SOON, **endless).consuming()
    bench.publish(QUEUE, *[json.dumps(event) for event in events(3)])
    wait_until(lambda: worker.status()["queues"][QUEUE]["deferred"] == 3, "a full buffer")
    worker.signal()
    assert worker.wait_for("handled and not confirmed by the job: 3")
    assert worker.ended() == 4
    assert bench.count("owners", QUEUE) == 3, "left to be recovered"
    second = worker_of(bench, *EXPIRES_SOON)
    wait_until(lambda: bench.succeeded(QUEUE) == 3, "the recovery")
    assert second.stop() == 0


def test_a_store_that_refuses_fails_the_batch_and_the_retries_succeed(bench: Bench) -> None:
    path = bench.directory / "usage.db"
    worker = worker_of(bench, USAGE_BATCH_SECONDS="0.05").consuming()
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON usage BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    every = events(20)
    bench.publish(QUEUE, *[json.dumps(event) for event in every])
    wait_until(lambda: worker.status()["queues"][QUEUE]["retried"] >= 20, "retries")
    assert bench.succeeded(QUEUE) == 0
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TRIGGER refuse")
    wait_until(lambda: bench.succeeded(QUEUE) == 20, "the retries")
    assert Store(path).totals() == totals(every)
    assert worker.stop() == 0


def test_the_example_takes_the_events_of_the_usage_example(bench: Bench) -> None:
    lines = (Path(__file__).parents[2] / "examples" / "usage" / "events.jsonl").read_text()
    done = queueworker("publish", QUEUE, "--file", "-", env=bench.env, text=lines)
    assert done.returncode == 0, done.stderr
    worker = worker_of(bench)
    wait_until(lambda: bench.succeeded(QUEUE) == len(lines.splitlines()), "all commits")
    assert worker.stop() == 0
