"""The bound of prefetch, fences, outages, and the admin port, seen from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tests.runtime.conftest import Bench
from tests.runtime.running import wait_until
from tests.services import EmbeddedRedis

BRIEF = """
    import asyncio
    from worker_runtime import App
    app = App.from_env()

    @app.job("q", prefetch=100)
    async def brief(payload: dict) -> None:
        await asyncio.sleep(0.001)
"""


#: The handlers begin when a file called "go" appears.
BRIEF_LATER = """
    import asyncio, pathlib
    from worker_runtime import App
    app = App.from_env()

    @app.job("q", prefetch=100)
    async def brief(payload: dict) -> None:
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.001)
"""


def test_prefetch_bounds_everything_unacknowledged(bench: Bench) -> None:
    bench.publish("q", *["{}"] * 2000)
    over = threading.Event()
    owned: list[int] = []

    def sample() -> None:
        while not over.is_set():
            owned.append(bench.client.hlen(bench.key("owners")))

    sampler = threading.Thread(target=sample)
    sampler.start()
    sums: list[int] = []
    try:
        worker = bench.run(BRIEF_LATER).consuming()
        # A sampler that gets no turn, or a worker that is quick, must not hide that it is used up.
        wait_until(lambda: 100 in owned, "the prefetch to be used up")
        while not sums or bench.succeeded() < 2000:
            queue = worker.status()["queues"]["q"]
            gauges = (queue["waiting"], queue["running"], queue["unconfirmed"])
            assert min(gauges) >= 0
            assert queue["running"] <= 1
            sums.append(sum(gauges))
            (worker.directory / "go").touch()
    finally:
        over.set()
        sampler.join()
    assert max(owned) == 100, "the broker saw the prefetch used up, and never exceeded"
    assert max(sums) <= 100
    wait_until(bench.nothing_left, "empty places")
    assert worker.stop() == 0


def test_a_fence_stops_receiving_until_it_is_lifted(bench: Bench) -> None:
    worker = bench.run(BRIEF, "--revision", "r2").consuming()
    bench.client.hset(bench.key("fence"), "r2", "being rolled back")
    worker.wait_for("fenced, receives nothing: being rolled back")
    bench.publish("q", *["{}"] * 3)
    wait_until(lambda: worker.status()["fences"] == {"q": "being rolled back"}, "the fence in /status")
    assert worker.status()["receiving"] is False
    assert worker.get("/readyz")[0] == 200, "fenced but connected is ready"
    assert bench.succeeded() == 0
    bench.client.hdel(bench.key("fence"), "r2")
    wait_until(lambda: bench.succeeded() == 3, "consuming after the fence")
    wait_until(lambda: worker.status()["receiving"], "receiving in /status")
    assert worker.stop() == 0
    assert len(worker.said("fenced, receives nothing")) == 1
    assert len(worker.said("fence lifted")) == 1


def test_an_outage_is_told_once_and_survived(bench: Bench, make_bench: Callable[..., Bench]) -> None:
    with EmbeddedRedis(appendonly=True, args=("--appendfsync", "always")) as broker:
        outer = make_bench(broker.url)
        worker = outer.run(BRIEF).consuming()
        outer.publish("q", *["{}"] * 50)
        wait_until(lambda: outer.succeeded() == 50, "work before the outage")
        broker.kill()
        worker.wait_for("broker lost")
        wait_until(lambda: worker.get("/readyz")[0] == 503, "unreadiness")
        assert worker.get("/livez")[0] == 200, "an outage is no reason to restart the worker"
        broker.restart()
        worker.wait_for("broker back after")
        outer.publish("q", *["{}"] * 50)
        wait_until(lambda: outer.succeeded() == 100, "work after the outage")
        worker.consuming()
        assert worker.stop() == 0
        assert len(worker.said("broker lost")) == 1, "one line, not one an attempt"
        assert len(worker.warned()) <= 3, (
            "one by the loop that receives, one by those that renew, one of settlements"
        )


BURN = """
    import time
    from worker_runtime import App
    app = App.from_env()

    @app.job("q")
    async def burn(payload: dict) -> None:
        until = time.process_time() + 0.5
        while time.process_time() < until:
            pass
"""


def test_the_cpu_time_of_every_worker_process_is_told(bench: Bench) -> None:
    def cpu_seconds() -> float:
        """Without the supervisor's own, which answering this test costs."""
        samples = {
            sample.name: sample
            for family in text_string_to_metric_families(worker.get("/metrics")[1])
            for sample in family.samples
        }
        assert samples["queueworker_cpu_seconds_total"].labels == {"revision": "r1"}
        return samples["queueworker_cpu_seconds_total"].value - samples["process_cpu_seconds_total"].value

    worker = bench.run(BURN, "--processes", "2", "--revision", "r1").consuming()
    wait_until(lambda: cpu_seconds() > 0.05, "what starting the worker processes cost")
    before = cpu_seconds()
    bench.publish("q", *["{}"] * 4)
    wait_until(lambda: worker.status()["queues"]["q"]["committed"] == 4, "the commits in /status")
    wait_until(lambda: cpu_seconds() - before >= 2.0, "what the handlers burned, in processes of their own")


def test_the_admin_port_tells_the_truth(bench: Bench) -> None:
    worker = bench.run(BRIEF, "--processes", "2", "--revision", "r1").consuming()
    bench.publish("q", *["{}"] * 40)
    wait_until(lambda: worker.status()["queues"]["q"]["committed"] == 40, "the commits in /status")
    status = worker.status()
    assert status["revision"] == "r1"
    assert status["state"] == "receiving"
    assert status["receiving"] is True
    assert status["broker"].startswith("redis://127.0.0.1")
    assert [process["alive"] for process in status["processes"]] == [True, True]
    assert status["queues"]["q"]["prefetch"] == 200, "summed over processes"
    assert status["queues"]["q"]["coroutines"] == 2
    assert worker.get("/livez") == (200, "ok\n")
    assert worker.get("/readyz") == (200, "ok\n")
    assert worker.get("/nothing")[0] == 404

    code, text = worker.get("/metrics")
    assert code == 200
    samples = {
        (sample.name, sample.labels.get("le")): (sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    value, labels = samples["queueworker_committed_total", None]
    assert value == 40
    assert labels == {"queue": "q", "revision": "r1"}
    assert samples["queueworker_handler_duration_seconds_count", None][0] == 40
    assert samples["queueworker_handler_duration_seconds_bucket", "+Inf"][0] == 40
    assert samples["queueworker_handler_duration_seconds_bucket", "330.0"][0] == 40
    assert samples["queueworker_publish_to_start_seconds_count", None][0] == 40
    assert samples["queueworker_processes", None][0] == 2
    assert samples["queueworker_receiving", None][0] == 1
    assert worker.stop() == 0


def test_a_stop_during_an_outage_says_that_work_is_left(
    bench: Bench, make_bench: Callable[..., Bench]
) -> None:
    with EmbeddedRedis() as broker:
        outer = make_bench(broker.url)
        worker = outer.run(
            """
            import asyncio, os, pathlib
            from worker_runtime import App, Timing
            app = App(os.environ["QUEUEWORKER_BROKER_URL"], timing=Timing(command_timeout=0.5))

            @app.job("q", prefetch=5)
            async def gated(payload: dict) -> None:
                pathlib.Path("began").touch()
                while not pathlib.Path("go").exists():
                    await asyncio.sleep(0.01)
            """
        ).consuming()
        pids = outer.publish("q", "{}", "{}")
        wait_until(lambda: (worker.directory / "began").exists(), "a running handler")
        wait_until(lambda: worker.status()["queues"]["q"]["waiting"] == 1, "the second message")
        broker.kill()
        worker.signal()
        (worker.directory / "go").touch()
        assert worker.ended() == 4
        assert worker.said("did not confirm every settlement")
        queue_lines = worker.said("the broker's answer was lost")
        assert queue_lines
        assert all(line["queue"] == "q" for line in queue_lines)
        assert all(any(pid in line["msg"] for line in queue_lines) for pid in pids), "their ids are told"
