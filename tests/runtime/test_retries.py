"""Failed work of real workers: later tries, dead letters, crash loops, and the commands for what is left."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import queueworker, wait_until
from worker_runtime.brokers.base import Retained

POLICY = """
    from pydantic import BaseModel
    from worker_runtime import App, Message, Retry
    app = App.from_env()

    class Work(BaseModel):
        name: str
        fails: int = 0

    @app.on_error
    def failed(error: Exception) -> None:
        with open("failed", "a") as file:
            file.write(type(error).__name__ + "\\n")

    @app.job("q", prefetch=10, retry=Retry(
        max_attempts=3, backoff=0.05, jitter=0, retry_on=(ValueError,), dead_on=(FileNotFoundError,)))
    async def work(work: Work, message: Message) -> None:
        with open("ran", "a") as file:
            file.write(f"{work.name}:{message.attempts}\\n")
        if work.name == "dead": raise FileNotFoundError("never")
        if work.name == "odd": raise KeyError("not of the policy")
        if message.attempts < work.fails: raise ValueError(f"try {message.attempts}")
"""


def test_a_policy_from_the_first_failure_to_the_end(bench: Bench) -> None:
    worker = bench.run(POLICY)
    works = ['{"name": "fine", "fails": 2}', '{"name": "never", "fails": 9}']
    bench.publish("q", *works, '{"name": "dead"}', '{"name": "odd"}', '{"name": []}')
    wait_until(
        lambda: bench.succeeded() == 1 and bench.count("dead") == 3 and bench.count("failed") == 1,
        "every end",
    )
    ran = worker.wrote()
    assert sorted(ran) == sorted(
        ["fine:0", "fine:1", "fine:2", "never:0", "never:1", "never:2", "dead:0", "odd:0"]
    )
    assert bench.count("delayed") == bench.count("owners") == bench.count("queue") == 0
    worker.wait_for_counts(committed=1, rejected=8, retried=4, dead_lettered=3)
    wait_until(
        lambda: 'queueworker_retried_total{queue="q",revision="local"} 4.0' in worker.get("/metrics")[1],
        "the retries in /metrics",
    )
    assert worker.stop() == 0
    assert len(worker.wrote("failed")) == 8
    assert worker.said("given up after 3 tries (exhausted): ValueError: try 2")
    assert len(worker.said("comes again in")) == 4


def test_a_retry_is_taken_soon_after_its_time_by_any_worker(bench: Bench) -> None:
    """The worker that scheduled it is gone; another one, which never saw it, runs it."""
    source = POLICY.replace("backoff=0.05", "backoff=3")
    first = bench.run(source)
    bench.publish("q", '{"name": "fine", "fails": 1}')
    wait_until(lambda: bench.count("delayed") == 1, "the retry to be scheduled")
    first.kill_group()
    assert bench.succeeded() == 0
    bench.run(source).consuming()
    wait_until(lambda: bench.succeeded() == 1, "the retry")
    assert first.wrote() == ["fine:0", "fine:1"]


def test_a_message_that_kills_its_worker_again_and_again_is_a_dead_letter(bench: Bench) -> None:
    worker = bench.run(
        """
        import os, signal
        from worker_runtime import App
        app = App.from_env()

        @app.job("q", max_takeovers=5)
        async def killer(payload: str) -> None:
            with open("ran", "a") as file:
                file.write(payload + "\\n")
            if payload == "bomb":
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        "--max-takeovers",
        "2",
        "--expiry-seconds",
        "1",
    )
    bench.publish("q", '"bomb"', '"fine"')
    wait_until(lambda: bench.count("dead") == 1 and bench.succeeded() == 1, "the end of both")
    assert worker.wrote().count("bomb") == 2
    assert worker.wait_for("dead letters now (crash-loop)")["level"] == "error"
    pid = bench.client.lrange(bench.key("dead"), 0, -1)[0]
    reason = json.loads(bench.client.get(bench.key("reason") + f".{pid}"))
    assert reason["why"] == "crash-loop"
    assert "2 times" in reason["detail"]
    assert bench.count("takeovers") == bench.count("owners") == 0
    assert worker.stop() == 0


def fail(bench: Bench, count: int) -> None:
    for number in range(count):
        pid = f"p{number}"
        envelope = {"pid": pid, "queue": "q", "timestamp": 1000 + number, "payload": number}
        bench.client.set(bench.key("jobs") + f".{pid}", json.dumps(envelope))
        bench.client.lpush(bench.key("failed"), pid)


def test_the_retry_command(bench: Bench) -> None:
    fail(bench, 5)
    done = queueworker("retry", "q", "--limit", "2", env=bench.env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Retried 2 failed messages of q, 3 left where they were.\n"
    done = queueworker("retry", "q", "--newer-than", "60", "--json", env=bench.env)
    counts = {"queue": "q", "retried": 0, "parked": 0, "dropped": 0, "kept": 3, "unreadable": 0}
    assert json.loads(done.stdout) == counts
    assert [json.loads(envelope)["payload"] for envelope in bench.ready()] == [0, 1]
    assert [json.loads(envelope)["attempts"] for envelope in bench.ready()] == [1, 1]
    bench.client.lpush(bench.key("dead"), "p0")
    bench.client.set(bench.key("jobs") + ".p0", "junk")
    done = queueworker("retry", "q", "--dead", env=bench.env)
    assert (done.returncode, bench.count("dead")) == (0, 1)
    assert "no envelope" in done.stderr
    for wrong in ("--limit=0", "--newer-than=-1", "--max-attempts=x"):
        done = queueworker("retry", "q", wrong, env=bench.env)
        assert (done.returncode, wrong.split("=")[0] in done.stderr) == (2, True)


def test_the_park_command(bench: Bench) -> None:
    fail(bench, 4)
    record = bench.client.get(bench.key("jobs") + ".p0")
    done = queueworker("park", "q", "--older-than", "60", "--limit", "1", env=bench.env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Parked 1 failed messages of q in the dead letters, 3 left where they were.\n"
    assert bench.client.lrange(bench.key("dead"), 0, -1) == ["p0"]
    assert bench.client.get(bench.key("jobs") + ".p0") == record
    done = queueworker("park", "q", "--max-attempts", "1", "--json", env=bench.env)
    counts = {"queue": "q", "retried": 0, "parked": 0, "dropped": 0, "kept": 3, "unreadable": 0}
    assert json.loads(done.stdout) == counts
    bench.client.set(bench.key("jobs") + ".p1", "junk")
    bench.client.delete(bench.key("jobs") + ".p2")
    done = queueworker("park", "q", "--older-than", "60", "--job-ttl-seconds", "600", env=bench.env)
    assert "Parked 1 failed messages" in done.stdout
    assert "1 cleared since their record is gone, 1 left where they were" in done.stdout
    assert "1 hold no envelope and cannot be judged" in done.stderr
    assert bench.client.lrange(bench.key("failed"), 0, -1) == ["p1"]
    assert 0 < bench.client.ttl(bench.key("jobs") + ".p3") <= 600
    done = queueworker("park", "q", env=bench.env)
    assert (done.returncode, "--max-attempts, --older-than or both" in done.stderr) == (2, True)


def test_inspect_lists_what_is_retained(bench: Bench) -> None:
    fail(bench, 3)
    bench.client.set(bench.key("jobs") + ".p1", '{"pid":"p1","timestamp":1,"payload":{"a":"\\u001b"}}')
    ttl = ("--job-ttl-seconds", "600")
    done = queueworker("park", "q", "--older-than", "60", "--limit", "1", *ttl, env=bench.env)
    assert done.returncode == 0, done.stderr
    bench.client.delete(bench.key("jobs") + ".p2")
    reading = json.loads(queueworker("inspect", "q", "--retained", "--json", env=bench.env).stdout)
    [dead] = reading["retained"]["dead"]
    assert (dead["pid"], dead["payload"], dead["attempts"], dead["recorded"]) == ("p0", "0", 0, True)
    assert (dead["why"], 0 < dead["expires_in"] <= 600) == ("parked", True)
    failed = reading["retained"]["failed"]
    assert [(each["pid"], each["recorded"], each["payload"]) for each in failed] == [
        ("p2", False, None),
        ("p1", True, '{"a":"\\u001b"}'),
    ]
    assert [each["expires_in"] for each in failed] == [None, None]
    bench.client.lpush(bench.key("failed"), "p\x1b]0;x\x07")
    people = queueworker("inspect", "q", "--retained", "2", env=bench.env).stdout
    when = r"2\d{3}-\d\d-\d\d [\d:]{8}Z"
    assert re.search(rf"^  p0 +0 +{when} +\d+ s left +parked: published \d+ s ago +0$", people, re.MULTILINE)
    assert re.search(r"^  p2 +\? +\? +gone +\?$", people, re.MULTILINE)
    assert "p1" not in people
    assert "\x1b" not in people
    assert "retained" not in json.loads(queueworker("inspect", "q", "--json", env=bench.env).stdout)


def test_the_page_names_every_field_of_a_retained_message() -> None:
    page = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text()
    rows = page.split("| field of a retained message |")[1].split("\n## ")[0].splitlines()
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")}
    assert named == {field.name for field in fields(Retained)}


def test_the_recover_command(bench: Bench) -> None:
    worker = bench.run(
        """
        import asyncio
        from worker_runtime import App
        app = App.from_env()

        @app.job("q", prefetch=10)
        async def never(payload: int) -> None:
            open("began", "w").close()
            await asyncio.sleep(3600)
        """,
        "--expiry-seconds",
        "30",
    )
    bench.publish("q", "1", "2")
    wait_until(lambda: (Path(worker.directory) / "began").exists() and bench.count("owners") == 2, "work")
    worker.kill_group()
    bench.client.zadd(bench.key("delayed"), {"an envelope": 1})
    done = queueworker("recover", "q", "--json", env=bench.env)
    counts = {"queue": "q", "reservations": 0, "deliveries": 0, "crash_loops": 0, "promoted": 1}
    assert json.loads(done.stdout) == counts, "what may be alive is left alone"
    for pid in bench.client.zrange(bench.key("liveness"), 0, -1):
        bench.client.zadd(bench.key("liveness"), {pid: 1})
    done = queueworker("recover", "q", env=bench.env)
    assert done.returncode == 0, done.stderr
    assert "2 deliveries" in done.stdout
    assert (bench.count("queue"), bench.count("owners")) == (3, 0)


@pytest.mark.parametrize("command", [["retry"], ["recover"], ["park", "--max-attempts", "1"]])
def test_a_broker_that_cannot_be_used_ends_with_3(command: list[str], bench: Bench) -> None:
    bench.client.set(bench.key("failed"), "x")
    done = queueworker(*command, "q", env=bench.env)
    assert done.returncode == 3
    assert bench.key("failed") in done.stderr
    assert len(done.stderr.splitlines()) == 1
