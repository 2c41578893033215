"""Fences on real worker processes: set and lifted by the command, whatever the worker is doing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import EXPIRES_SOON, RunningWorker, queueworker, wait_until
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.keys import QueueKeys

SOURCE = """
    from pathlib import Path
    import asyncio
    from worker_runtime import App

    app = App.from_env()

    @app.job("q", coroutines=2, prefetch=10)
    async def job(payload: dict) -> None:
        while "wait" in payload and not Path(payload["wait"]).exists():
            await asyncio.sleep(0.02)
        with open("ran", "a") as file:
            file.write(f"{payload['n']}\\n")
"""


def command(bench: Bench, *arguments: str) -> str:
    done = queueworker(*arguments, env=bench.env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed_workers(bench: Bench) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(command(bench, "inspect", "q", "--json"))["workers"]
    return listed


def fenced(worker: RunningWorker) -> bool:
    status = worker.status()
    return not status["receiving"] and bool(status["fences"])


def test_a_fenced_worker_receives_nothing_stays_ready_and_begins_again(bench: Bench) -> None:
    worker = bench.run(SOURCE, "--revision", "r1").consuming()
    told = json.loads(command(bench, "fence", "q", "--revision", "r1", "--reason", "rolled back", "--json"))
    assert (told["fenced"], told["changed"]) == (True, True)
    assert "already" in command(bench, "fence", "q", "--revision", "r1", "--reason", "rolled back")
    wait_until(lambda: fenced(worker), "the fence in /status")
    assert worker.status()["fences"] == {"q": "rolled back"}
    assert worker.get("/readyz") == (200, "ok, fenced: q (rolled back)\n")
    bench.publish("q", '{"n": 1}', '{"n": 2}')
    # Long enough for several blocking times; the reading says that it is alive and why it takes nothing.
    # Before it has begun to receive it says that it does not, too, and for another reason.
    listed = wait_until(
        lambda: [each for each in listed_workers(bench) if each["reason"] == "fenced: rolled back"],
        "the fenced worker on the list",
    )
    assert [(each["revision"], each["receiving"]) for each in listed] == [("r1", False)]
    assert len(bench.ready()) == 2
    assert command(bench, "verify-empty", "q", "--quiet-seconds", "1.5")
    assert worker.wrote() == []

    told = json.loads(command(bench, "unfence", "q", "--revision", "r1", "--json"))
    assert told == {"queue": "q", "revision": "r1", "fenced": False, "changed": True, "fences": {}}
    wait_until(lambda: len(worker.wrote()) == 2, "both messages after the fence")
    wait_until(lambda: worker.status()["receiving"], "receiving in /status")
    wait_until(lambda: worker.get("/readyz") == (200, "ok\n"), "no fence in /readyz")
    nothing = command(bench, "unfence", "q", "--revision", "r1")
    assert nothing.strip() == "Nothing was lifted: q had no fence on revision r1."
    assert worker.stop() == 0


def test_a_fence_on_every_revision_and_what_stays_of_it(bench: Bench) -> None:
    worker = bench.run(SOURCE, "--revision", "r1").consuming()
    command(bench, "fence", "q", "--reason", "maintenance")
    wait_until(lambda: fenced(worker), "the fence in /status")
    assert "Still fenced: Every revision: maintenance" in command(bench, "unfence", "q", "--revision", "r1")
    assert fenced(worker)
    assert command(bench, "unfence", "q").strip() == "The fence on every revision of q is lifted."
    wait_until(lambda: worker.status()["receiving"], "receiving again")


def test_a_fenced_worker_settles_renews_and_recovers(bench: Bench) -> None:
    worker = bench.run(SOURCE, "--revision", "r1", *EXPIRES_SOON).consuming()
    gate = worker.directory / "go"
    bench.publish("q", f'{{"n": 1, "wait": "{gate}"}}')
    wait_until(lambda: worker.status()["queues"]["q"]["running"] == 1, "a running handler")
    command(bench, "fence", "q", "--revision", "r1", "--reason", "stop")
    wait_until(lambda: fenced(worker), "the fence in /status")
    # Recovers: what another worker reserved and never claimed is due and comes back to ready.
    bench.publish("q", '{"n": 2}')
    keys = QueueKeys(bench.namespace, "q")
    took = bench.client.execute_command(*transitions.reserve(keys, "dead", "r0", 5, 0).by_source())
    assert took[0] == "taken"
    wait_until(lambda: len(bench.ready()) == 1, "the recovery by a fenced worker")
    # Renews: its own work is still its own after more than the expiry of four seconds.
    (expiry,) = bench.client.zrange(keys.liveness, 0, -1, withscores=True)
    wait_until(
        lambda: bench.client.zrange(keys.liveness, 0, -1, withscores=True)[0][1] > expiry[1] + 4_000,
        "the renewal by a fenced worker",
    )
    gate.touch()
    wait_until(lambda: bench.succeeded() == 1, "the settlement by a fenced worker")
    assert worker.wrote() == ["1"]
    assert bench.count("owners") == 0
    assert worker.stop() == 0


@pytest.mark.parametrize(
    "hangs",
    ["await asyncio.Event().wait()", "time.sleep(3600)"],
    ids=["handlers wait", "the loop stands still"],
)
def test_a_worker_that_is_full_of_what_never_ends_says_that_it_is_fenced(bench: Bench, hangs: str) -> None:
    bench.publish("q", "{}", "{}")
    worker = bench.run(
        f"""
        import asyncio, time
        from worker_runtime import App

        app = App.from_env()

        @app.job("q", coroutines=2, prefetch=2)
        async def job(payload: dict) -> None:
            {hangs}
        """,
        "--revision",
        "r1",
    )
    wait_until(lambda: bench.count("owners") == 2, "a full worker")
    command(bench, "fence", "q", "--revision", "r1", "--reason", "it leaves")
    wait_until(lambda: fenced(worker), "the fence in /status")

    def told() -> list[tuple[Any, ...]]:
        return [(each["receiving"], each["reason"], each["outstanding"]) for each in listed_workers(bench)]

    wait_until(lambda: told() == [(False, "fenced: it leaves", 2)], "its word to the broker")
    command(bench, "unfence", "q", "--revision", "r1")
    wait_until(lambda: worker.status()["receiving"], "the end of the fence, still full")
    worker.kill_group()


@contextmanager
def stopped_in_its_wait(bench: Bench, worker: RunningWorker) -> Iterator[None]:
    """Its blocking move is on the server while the process stands still."""
    wait_until(lambda: bench.client.info("clients")["blocked_clients"], "a blocked wait")
    pid = worker.status()["processes"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_worker_that_was_stopped_in_its_wait_wakes_up_after_the_fence(bench: Bench) -> None:
    """Its blocking move is on the server and brings a message into staging while nobody reads the answer."""
    worker = bench.run(SOURCE, "--revision", "r1", "--block-seconds", "30").consuming()
    with stopped_in_its_wait(bench, worker):
        command(bench, "fence", "q", "--revision", "r1", "--reason", "stop")
        bench.publish("q", '{"n": 1}')
        wait_until(lambda: bench.count("staging") == 1, "the move into staging")
        # Private to the protocol: a proof of emptiness must not be given.
        proof = queueworker("verify-empty", "q", env=bench.env)
        assert proof.returncode == 6
        assert "1 in staging" in proof.stderr
    wait_until(lambda: bench.count("staging") == 0 and len(bench.ready()) == 1, "the return to ready")
    wait_until(lambda: fenced(worker), "the fence in /status")
    assert command(bench, "verify-empty", "q", "--quiet-seconds", "1")
    assert worker.wrote() == []
    command(bench, "unfence", "q", "--revision", "r1")
    wait_until(lambda: worker.wrote() == ["1"], "the message after the fence")
    assert worker.stop() == 0


def test_what_a_stopped_worker_is_waiting_for_is_not_its_own_when_the_fence_comes_behind(
    bench: Bench,
) -> None:
    """Moved before the fence and asked for after it: the fence counts."""
    worker = bench.run(SOURCE, "--revision", "r1", "--block-seconds", "30").consuming()
    with stopped_in_its_wait(bench, worker):
        bench.publish("q", '{"n": 1}')
        command(bench, "fence", "q", "--revision", "r1", "--reason", "stop")
        bench.publish("q", '{"n": 2}')
        wait_until(lambda: bench.count("staging") == 1, "the move into staging")
        proof = queueworker("verify-empty", "q", env=bench.env)
        assert proof.returncode == 6
        assert "1 in staging" in proof.stderr
    wait_until(lambda: len(bench.ready()) == 2, "the return to ready")
    wait_until(lambda: fenced(worker), "the fence in /status")
    assert command(bench, "verify-empty", "q", "--quiet-seconds", "1")
    command(bench, "unfence", "q", "--revision", "r1")
    wait_until(lambda: worker.wrote() == ["1", "2"], "both messages after the fence, in order")
    assert worker.stop() == 0


def test_the_list_of_live_workers_follows_starts_stops_and_kills(bench: Bench) -> None:
    # Long enough for a busy machine; the test waits for the end of the one that is killed.
    expiry = ("--expiry-seconds", "8")
    one = bench.run(SOURCE, "--revision", "r1", *expiry).consuming()
    two = bench.run(SOURCE, "--revision", "r2", "--processes", "2", *expiry).consuming()

    def all_receiving() -> list[dict[str, Any]] | None:
        """A worker is on the list before it receives, and says so by its next look."""
        listed = listed_workers(bench)
        return listed if len(listed) == 3 and all(each["receiving"] for each in listed) else None

    listed = wait_until(all_receiving, "three workers on the list that receive")
    assert sorted(each["revision"] for each in listed) == ["r1", "r2", "r2"]
    assert {each["protocol"] for each in listed} == {"Reservation"}
    assert all(each["host"] for each in listed)
    assert two.stop() == 0
    assert len(listed_workers(bench)) == 1
    one.kill_group()
    wait_until(lambda: not listed_workers(bench), "the killed worker off the list")


def test_a_worker_whose_handler_blocks_its_loop_stays_on_the_list(bench: Bench) -> None:
    worker = bench.run(
        """
        import time
        from pathlib import Path
        from worker_runtime import App

        app = App.from_env()

        @app.job("q")
        async def job(payload: dict) -> None:
            while not Path("go").exists():
                time.sleep(0.02)
        """,
        "--expiry-seconds",
        "4",
    ).consuming()
    (name,) = wait_until(lambda: bench.client.zrange(bench.key("workers"), 0, -1), "its announcement")
    (first,) = bench.client.zrange(bench.key("workers"), 0, -1, withscores=True)
    bench.publish("q", "{}")
    worker.wait_for("jobs.job handles message")
    # More than twice the expiry of four seconds by the server's own clock, without a gap.
    wait_until(
        lambda: bench.client.zscore(bench.key("workers"), name) > first[1] + 9_000,
        "beats while it stands still",
    )
    seconds, micros = bench.client.time()
    assert bench.client.zscore(bench.key("workers"), name) > seconds * 1000 + micros / 1000
    (worker.directory / "go").touch()
    assert worker.stop() == 0
    assert not bench.client.exists(bench.key("workers"))


@pytest.mark.parametrize(
    "arguments",
    [("fence", "q"), ("fence", "q", "--reason", " "), ("fence", "q", "--revision", "a b", "--reason", "x")],
)
def test_a_fence_without_a_use_ends_with_2(arguments: tuple[str, ...], bench: Bench) -> None:
    done = queueworker(*arguments, env=bench.env)
    assert done.returncode == 2
    assert bench.count("fence") == 0
