"""Every loop of the runtime that must not end, in turn: it fails once, and it fails always.

Once: work goes on in the same process. Always: the process ends with the exit code of a fault and says which
loop it was, and another one takes its place; it never looks alive and does nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import RunningWorker, wait_until
from tests.services import EmbeddedRedis, free_port
from worker_runtime.admin import start_admin
from worker_runtime.channel import WorkerConfig
from worker_runtime.child import Child
from worker_runtime.fleet import Fleet
from worker_runtime.settings import Settings

#: What a loop is made of: the class and method that fail, as a worker process can import them.
LOOPS = {
    "receive": "worker_runtime.brokers.redis.consumer:RedisConsumer.receive",
    "settle": "worker_runtime.brokers.redis.consumer:RedisConsumer.settle",
    "renew": "worker_runtime.state:QueueState.held",
    "recover": "worker_runtime.brokers.redis.renewer:RedisRenewer.recover",
    "promote": "worker_runtime.brokers.redis.renewer:RedisRenewer.promote",
    "announce": "worker_runtime.brokers.redis.renewer:RedisRenewer.announce",
    "roster": "worker_runtime.state:QueueState.presence",
    "report": "worker_runtime.state:QueueState.report",
    "watch": "worker_runtime.renewal:Heartbeat.watch",
    "silence": "worker_runtime.silence:Silence.look",
}

SOURCE = """
    import functools, importlib, inspect, os, pathlib
    from worker_runtime import App
    app = App.from_env()

    def sabotage(place):
        module, _, name = place.partition(":")
        owner, method = name.split(".")
        owner = getattr(importlib.import_module(module), owner)
        sound = getattr(owner, method)

        def fail():
            once = pathlib.Path(f"failed-{name}")
            if os.environ["FAILS"] == "always" or not once.exists():
                once.touch()
                raise RuntimeError(f"sabotage of {name}")

        @functools.wraps(sound)
        def broken(*arguments, **names):
            fail()
            return sound(*arguments, **names)

        @functools.wraps(sound)
        async def broken_coroutine(*arguments, **names):
            fail()
            return await sound(*arguments, **names)

        setattr(owner, method, broken_coroutine if inspect.iscoroutinefunction(sound) else broken)

    if not pathlib.Path("mended").exists():
        for place in os.environ["PLACES"].split():
            sabotage(place)

    @app.job("q", prefetch=5)
    async def brief(payload: int) -> None:
        with open("ran", "a") as file:
            file.write(f"{os.getpid()}\\n")
"""


def start(bench: Bench, fails: str, *places: str) -> RunningWorker:
    env = bench.env | {"PLACES": " ".join(places), "FAILS": fails}
    # What a failed settlement leaves is taken over while the test waits.
    flags = ("--expiry-seconds", "3", "--shutdown-seconds", "5")
    worker = RunningWorker(bench.directory, SOURCE, env, *flags)
    bench.workers.append(worker)
    return worker


def test_loops_that_fail_once_go_on_in_the_same_process(bench: Bench) -> None:
    bench.publish("q", *["0"] * 50)
    worker = start(bench, "once", *LOOPS.values())
    wait_until(lambda: bench.succeeded() == 50, "all commits")
    for place in LOOPS.values():
        worker.wait_for(f"sabotage of {place.partition(':')[2]}")
    worker.consuming()
    wait_until(bench.nothing_left, "empty places")
    assert worker.stop() == 0
    assert len(set(worker.wrote())) == 1, "one process ran them all"
    assert not worker.said("ended unexpectedly")


def test_a_loop_that_always_fails_ends_its_process(
    make_bench: Callable[..., Bench], server: EmbeddedRedis, tmp_path: Path
) -> None:
    """All kinds at once, each in a worker of its own: most of this is waiting."""
    benches: dict[str, Bench] = {}
    for loop, place in LOOPS.items():
        bench = benches[loop] = make_bench(server.url)
        bench.directory = tmp_path / loop
        bench.directory.mkdir()
        bench.publish("q", *["0"] * 40)
        start(bench, "always", place)
    for loop, bench in benches.items():
        (worker,) = bench.workers
        ended = worker.wait_for("ended unexpectedly")
        assert "with exit code 1;" in ended["msg"], (loop, worker.transcript())
        assert worker.said(f"sabotage of {LOOPS[loop].partition(':')[2]}"), loop
        (bench.directory / "mended").touch()
    for loop, bench in benches.items():
        (worker,) = bench.workers
        wait_until(lambda bench=bench: bench.succeeded() == 40, f"the work after {loop}")  # type: ignore[misc]
        worker.consuming()
        wait_until(bench.nothing_left, "empty places")
        worker.signal()
    assert {loop: bench.workers[0].ended() for loop, bench in benches.items()} == dict.fromkeys(LOOPS, 0)


@dataclasses.dataclass
class Reports:
    """What a supervisor does with reports, and fails with the second one."""

    seen: int = 0

    def __call__(self, report: dict[str, Any]) -> None:
        self.seen += 1
        if self.seen == 2:
            raise RuntimeError("sabotage")


async def test_a_process_that_cannot_be_heard_any_more_is_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor's side of the line: it could neither ask for a stop nor see whether there is life."""
    source = "from worker_runtime import App\napp = App.from_env()\n\n@app.job('q')\ndef job(): ...\n"
    (Path(bench.directory) / "jobs.py").write_text(source)
    monkeypatch.chdir(bench.directory)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    settings = Settings(broker_url=bench.url, namespace=bench.namespace)
    given = ("broker_url", "namespace")
    child = await Child.start(WorkerConfig("jobs:app", 0, settings, given), Reports())
    assert await asyncio.wait_for(child.wait(), 120) in (0, -15)


def test_a_process_that_cannot_be_started_is_tried_again(bench: Bench) -> None:
    """Here its program is not there for a while; a machine without memory says the same."""
    python = bench.directory / "python"
    python.symlink_to(Path(sys.executable).resolve())
    bench.publish("q", "0", "0")
    env = bench.env | {"PLACES": "", "FAILS": "once"}
    worker = RunningWorker(bench.directory, SOURCE, env, "--processes", "2", python=str(python))
    bench.workers.append(worker)
    worker.consuming()
    wait_until(lambda: bench.succeeded() == 2, "commits")
    python.unlink()
    first, second = (process["pid"] for process in worker.status()["processes"])
    os.kill(first, signal.SIGKILL)
    worker.wait_for("worker process 0 cannot be started")
    bench.publish("q", "0")
    wait_until(lambda: bench.succeeded() == 3, "the work of the other")
    assert worker.get("/readyz")[0] == 503
    python.symlink_to(Path(sys.executable).resolve())
    worker.consuming()
    assert worker.status()["processes"][1]["pid"] == second
    assert worker.stop() == 0


async def test_a_page_of_the_admin_port_that_fails_takes_nothing_with_it() -> None:
    class Fragile(Fleet):
        broken = True

        def queues(self) -> dict[str, dict[str, Any]]:
            if self.broken:
                raise RuntimeError("sabotage")
            return super().queues()

    async def refresh() -> None: ...

    fleet, port = Fragile("r1", 0, 60.0), free_port()
    runner = await start_admin(fleet, refresh, "127.0.0.1", port)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for path, code in (("/metrics", 500), ("/status", 500), ("/livez", 200), ("/readyz", 200)):
                for _ in range(3):
                    assert (await session.get(path)).status == code, path
            fleet.broken = False
            for path in ("/metrics", "/status"):
                assert (await session.get(path)).status == 200, path
    finally:
        await runner.cleanup()
