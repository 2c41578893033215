"""A stop at any moment: while an answer is on its way, while a handler runs for longer than the expiry."""

from __future__ import annotations

import asyncio
import random
import secrets

from tests.brokers.fault_proxy import FaultProxy
from tests.runtime.conftest import Bench
from tests.runtime.running import wait_until
from tests.services import EmbeddedRedis
from worker_runtime import App
from worker_runtime.brokers.base import Timing, WorkerIdentity
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.state import QueueState
from worker_runtime.worker import Worker

_STOPS = 200
CALM = Timing(expiry=600, reservation=600, block=30, command_timeout=60)


async def test_a_stop_while_a_receive_is_under_way(bench: Bench, server: EmbeddedRedis) -> None:
    """Two hundred times, each at another moment: what the broker had handed over is run or given back, the
    head of the queue, with the bytes and attempts that it had."""
    app = App()
    ran: list[int] = []
    found: list[bool] = []

    @app.job("q", prefetch=3)
    async def brief(payload: int) -> None:
        ran.append(payload)

    job = app.jobs["q"]
    chance = random.Random("stops")
    await asyncio.to_thread(bench.publish, "q", *[str(n) for n in range(300)])
    before = bench.ready()

    async def confirmed() -> bool:
        return True

    async with FaultProxy(server.port, late=lambda _: chance.uniform(0, 0.004)) as proxy:
        broker = broker_from_url(proxy.url, bench.namespace, CALM)
        # Seconds to a stop at most: more after one that came before anything was handed over, less after one
        # that came behind it. So they stay around the receive, however quick or busy the machine is.
        latest = 0.014
        for _ in range(_STOPS):
            state = QueueState("q", job.name, job.coroutines, job.prefetch, CALM.expiry)
            consumer = broker.consumer("q", WorkerIdentity("r1", secrets.token_hex(4)))
            worker = Worker(job, state, consumer, confirmed, [], {})
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(chance.uniform(0, latest))
            latest *= 0.9 if state.received else 1.1
            found.append(bool(state.outstanding))
            worker.stop()
            await asyncio.wait_for(running, 120)
            await consumer.close()
            assert (state.unknown, state.superseded, state.missing) == (0, 0, 0)
            places = ("staging", "reservations", "owners", "liveness", "processing")
            assert {place: bench.count(place) for place in places} == dict.fromkeys(places, 0)
            assert bench.ready() == before[len(ran) :], "in order, byte for byte"
    assert ran == list(range(len(ran)))
    assert bench.succeeded() == len(ran)
    assert {True, False} == set(found), "stops came too early or too late to meet a receive"


def test_what_runs_after_a_sigterm_is_renewed_until_it_is_settled(bench: Bench) -> None:
    """Renewal ends last: what still runs, and what is done and not confirmed by its job, stays ours."""
    worker = bench.run(
        """
        import asyncio, pathlib
        from worker_runtime import App, Commit
        app = App.from_env()

        async def there(name):
            while not pathlib.Path(name).exists():
                await asyncio.sleep(0.01)

        @app.job("q", coroutines=2, prefetch=4)
        async def long(payload: str, commit: Commit) -> None:
            with open("ran", "a") as file:
                file.write(payload + "\\n")
            if payload == "deferred":
                asyncio.get_running_loop().create_task(there("confirm")).add_done_callback(
                    lambda _: commit.confirm()
                )
                return
            await there("return")
            commit.confirm()
        """,
        *("--expiry-seconds", "2", "--shutdown-seconds", "300"),
    ).consuming()
    long, deferred = bench.publish("q", '"long"', '"deferred"')
    wait_until(lambda: len(worker.wrote()) == 2, "both to begin")
    worker.signal()
    worker.wait_for("stops: receives nothing more")

    def renewed(pid: str, times: int) -> None:
        for _ in range(times):
            before = bench.client.zscore(bench.key("liveness"), pid)
            wait_until(lambda before=before: bench.client.zscore(bench.key("liveness"), pid) > before, pid)  # type: ignore[misc]

    renewed(long, 3)
    (worker.directory / "return").touch()
    wait_until(lambda: bench.succeeded() == 1, "the commit of what ran")
    renewed(deferred, 2)
    (worker.directory / "confirm").touch()
    assert worker.ended() == 0
    assert bench.succeeded() == 2
    assert len(worker.wrote()) == 2
