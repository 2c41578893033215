"""A real worker process between producers and workers of utopia-php/queue 4."""

from __future__ import annotations

import redis

from tests.brokers.legacy_worker import LegacyWorker
from tests.runtime.conftest import Bench
from tests.runtime.running import queueworker, wait_until

SOURCE = """
    import asyncio
    from pathlib import Path
    from worker_runtime import App

    app = App.from_env()

    @app.job("q", coroutines=2, prefetch=8)
    async def job(payload: dict) -> None:
        if payload["n"] >= 3:
            while not Path("go").exists():
                await asyncio.sleep(0.02)
        # Two handlers run at once, so which of the last two writes first has to be said.
        while payload["n"] == 4 and "3" not in Path("ran").read_text().split():
            await asyncio.sleep(0.02)
        with open("ran", "a") as file:
            file.write(f"{payload['n']}\\n")
        if payload["n"] == 1:
            raise ValueError("not this one")
"""


def test_it_takes_a_queue_over_and_leaves_it_to_the_others_again(bench: Bench) -> None:
    with redis.Redis.from_url(bench.url) as client:
        legacy = LegacyWorker(client, bench.namespace)
        # Old enough for the sweep of the other protocol, which counts whole seconds.
        pids = [legacy.enqueue({"n": n, "e": [], "s": "é/"}, timestamp=1_700_000_000) for n in range(20)]
        before = bench.ready()
        worker = bench.run(SOURCE).consuming()
        wait_until(lambda: len(worker.wrote()) == 3 and bench.count("failed") == 1, "the first three")
        # Two run, six wait; a stop finishes those that run and gives the others back.
        wait_until(lambda: bench.count("owners") == 8, "a full prefetch")
        worker.signal()
        worker.wait_for("gives back")
        (worker.directory / "go").touch()
        assert worker.ended() == 0
        assert worker.wrote() == ["0", "1", "2", "3", "4"]

        proof = queueworker("verify-empty", "q", "--quiet-seconds", "1", env=bench.env)
        assert proof.returncode == 0, proof.stderr
        assert bench.ready() == before[5:]
        assert bench.client.get(f"{bench.namespace}.jobs.q.{pids[1]}") == before[1]
        assert legacy.retry() == 1
        seen = []
        while (message := legacy.receive()) is not None:
            seen.append((message["payload"]["n"], message["attempts"]))
            legacy.commit(message)
        assert seen == [*((n, 0) for n in range(5, 20)), (1, 1)]
        assert bench.count("processing") == 0
        assert bench.succeeded() == 4 + 16
