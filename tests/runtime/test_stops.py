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
        for _ in range(_STOPS):
            state = QueueState("q", job.name, job.coroutines, job.prefetch, CALM.expiry)
            consumer = broker.consumer("q", WorkerIdentity("r1", secrets.token_hex(4)))
            worker = Worker(job, state, consumer, confirmed, [], {})
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(chance.uniform(0, 0.014))
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


def test_what_runs_for_several_expiries_after_a_sigterm_is_nobody_else_s(bench: Bench) -> None:
    """Renewal ends last: what still runs, and what is done and not confirmed by its job, stays ours."""
    source = """
        import asyncio, pathlib
        from worker_runtime import App, Commit
        app = App.from_env()

        def note(word):
            with open("ran", "a") as file:
                file.write(word + "\\n")

        @app.job("q", coroutines=2, prefetch=4)
        async def long(payload: str, commit: Commit) -> None:
            note("began-" + payload)
            if payload == "deferred":
                asyncio.get_running_loop().call_later(3.5, commit.confirm)
                return
            await asyncio.sleep(3.0)
            note("ended-" + payload)
            commit.confirm()
    """
    expiry = ("--expiry-seconds", "1")
    first = bench.run(source, *expiry).consuming()
    bench.publish("q", '"long"', '"deferred"')
    wait_until(lambda: len(first.wrote()) == 2, "both to begin")
    second = bench.run(source, *expiry).consuming()
    assert first.stop() == 0
    assert sorted(first.wrote()) == ["began-deferred", "began-long", "ended-long"]
    assert bench.succeeded() == 2
    assert second.status()["queues"]["q"]["received"] == 0
    assert second.stop() == 0
