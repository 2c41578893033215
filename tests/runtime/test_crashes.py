"""Processes that die: nothing is lost, and others finish what they held."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

from tests.runtime.conftest import Bench
from tests.runtime.running import EXPIRES_SOON, gone, queueworker, wait_until

#: Three handlers at once, each 10 ms; one that is told to wait does so until a file called "go" appears.
SLOW = """
    import asyncio, pathlib
    from worker_runtime import App, Message
    app = App.from_env()

    @app.job("q", coroutines=3, prefetch=40)
    async def slow(payload: dict, message: Message) -> None:
        await asyncio.sleep(0.01)
        while "waits" in payload and not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
        with open("ran", "a") as file:
            file.write(message.pid + "\\n")
"""
#: Behind other work: however late a kill comes, it finds a running handler.
LAST = '{"waits": true}'


def test_nothing_is_lost_when_everything_of_a_worker_is_killed_half_way(bench: Bench) -> None:
    pids = bench.publish("q", *["{}"] * 299, LAST)
    first = bench.run(SLOW, "--processes", "2", *EXPIRES_SOON)
    wait_until(lambda: len(first.wrote()) > 60, "some work")
    first.kill_group()
    done_before = bench.succeeded()
    assert done_before < 300
    held = bench.count("owners")
    assert 0 < held <= 80
    (first.directory / "go").touch()

    second = bench.run(SLOW, *EXPIRES_SOON)
    wait_until(lambda: bench.succeeded() == 300, "all work to be done by another worker")
    wait_until(bench.nothing_left, "empty places")
    ran = Counter(second.wrote())
    assert set(ran) == set(pids), "every message ran"
    assert sum(ran.values()) <= 300 + held, "only what the killed worker held may have run twice"
    assert second.wait_for("returned to the queue what others left")
    assert second.stop() == 0


def test_a_killed_worker_process_is_replaced(bench: Bench) -> None:
    worker = bench.run(SLOW, "--processes", "2").consuming()
    victim = worker.status()["processes"][1]
    os.kill(victim["pid"], signal.SIGKILL)
    line = worker.wait_for("ended unexpectedly")
    assert "SIGKILL" in line["msg"]
    assert str(victim["pid"]) in line["msg"]
    assert line["level"] == "error"
    wait_until(
        lambda: (now := worker.status()["processes"][1])["alive"] and now["pid"] != victim["pid"],
        "another process in its place",
    )
    worker.consuming()

    def ends() -> set[tuple[str, int, str]]:
        listed = json.loads(queueworker("inspect", "q", "--json", env=bench.env).stdout)["workers"]
        return {(one["place"].partition("/")[2], one["restarts"], one["last_end"]) for one in listed}

    told = {("0", 0, ""), ("1", 1, "signal SIGKILL")}
    wait_until(lambda: told <= ends() <= told | {("1", 0, "")}, "how it ended to be told, in its place")
    bench.publish("q", *["{}"] * 20)
    wait_until(lambda: bench.succeeded() == 20, "work to be done")
    worker.wait_for_counts(committed=20)
    assert worker.stop() == 0


def test_worker_processes_end_gracefully_when_their_supervisor_is_killed(bench: Bench) -> None:
    worker = bench.run(
        """
        import asyncio, pathlib
        from worker_runtime import App
        app = App.from_env()

        @app.job("q", prefetch=10)
        async def gated(payload: dict) -> None:
            pathlib.Path("began").touch()
            while not pathlib.Path("go").exists():
                await asyncio.sleep(0.01)
        """
    ).consuming()
    bench.publish("q", *["{}"] * 10)
    wait_until(lambda: bench.count("owners") == 10 and (worker.directory / "began").exists(), "held work")
    orphan = worker.status()["processes"][0]["pid"]
    worker.signal(signal.SIGKILL)
    wait_until(lambda: bench.count("queue") == 9, "the release of what never started")
    (worker.directory / "go").touch()
    wait_until(lambda: gone(orphan), "the end of the orphan")
    assert bench.succeeded() == 1
    assert bench.count("owners") == 0


def test_a_broker_that_refuses_a_replacement_does_not_end_the_others(bench: Bench) -> None:
    worker = bench.run(SLOW, "--processes", "2").consuming()
    counter = bench.key("stats") + ".total"
    bench.client.set(counter, "banana")
    os.kill(worker.status()["processes"][1]["pid"], signal.SIGKILL)
    worker.wait_for("ended unexpectedly", count=2)
    assert worker.status()["processes"][0]["alive"]

    bench.client.set(counter, 0)
    worker.consuming()
    bench.publish("q", *["{}"] * 20)
    wait_until(lambda: bench.succeeded() == 20, "work to be done")
    assert worker.stop() == 0


def test_the_end_of_its_terminal_is_a_graceful_stop(bench: Bench) -> None:
    worker = bench.run(SLOW, "--processes", "2").consuming()
    bench.publish("q", *["{}"] * 100)
    wait_until(lambda: worker.wrote(), "some work")
    os.killpg(worker.process.pid, signal.SIGHUP)
    assert worker.ended() == 0
    assert bench.succeeded() + bench.count("queue") == 100
    assert bench.count("owners") == 0
