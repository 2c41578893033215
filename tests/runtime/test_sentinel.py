"""Whole workers and commands while Sentinels replace the primary."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.sentinel import Sentinel as SentinelClient

from tests.brokers.scripted_sentinel import ScriptedSentinel
from tests.runtime.conftest import Bench
from tests.runtime.running import EXPIRES_SOON, environment, queueworker, wait_until
from tests.runtime.test_crashes import LAST, SLOW
from tests.sentinels import NAME, WatchedRedis

QUICK = """
    from worker_runtime import App, Message
    app = App.from_env()

    @app.job("q", coroutines=2, prefetch=4)
    async def quick(payload: dict, message: Message) -> None:
        with open("ran", "a") as file:
            file.write(message.pid + "\\n")
"""


@pytest.fixture(scope="module")
def watched() -> Iterator[WatchedRedis]:
    with WatchedRedis() as running:
        yield running


@pytest.fixture
def bench(watched: WatchedRedis, tmp_path: Path) -> Iterator[Bench]:
    """Its client asks the Sentinels, too."""
    watched.settle()
    sentinels = SentinelClient([("127.0.0.1", one.port) for one in watched.sentinels])  # type: ignore[no-untyped-call]
    client: redis.Redis = sentinels.master_for(NAME, decode_responses=True)  # type: ignore[no-untyped-call]
    made = Bench(watched.url, f"t{secrets.token_hex(4)}", tmp_path, client)
    yield made
    for worker in made.workers:
        if worker.process.poll() is None:
            worker.kill_group()
    client.close()


def replicated(watched: WatchedRedis) -> None:
    """Wait until the replica has all that was acknowledged: only that can be asked of it."""
    with redis.Redis(port=watched.primary().port, socket_timeout=60) as client:
        client.set("marker", 1)
        assert client.wait(1, 0) == 1


def test_a_waiting_worker_follows_three_failovers_and_says_each_once(
    bench: Bench, watched: WatchedRedis
) -> None:
    worker = bench.run(QUICK, "--block-seconds", "60").consuming()
    for number in range(1, 4):
        watched.fail_over()
        (pid,) = bench.publish("q", "{}")

        def handled(pid: str = pid) -> bool:
            return pid in worker.wrote()

        wait_until(handled, "the message to be handled")
        worker.wait_for("broker back after", number)
    # Of the two threads of a worker, each says it once.
    assert len(worker.warned()) <= 6, worker.transcript()
    assert len(worker.said("broker lost")) == 3, worker.transcript()
    assert worker.stop() == 0


def test_nothing_that_was_replicated_is_lost_when_the_primary_is_killed_under_load(
    bench: Bench, watched: WatchedRedis
) -> None:
    pids = bench.publish("q", *["{}"] * 599, LAST)
    replicated(watched)
    worker = bench.run(SLOW, "--processes", "2", *EXPIRES_SOON)
    wait_until(lambda: len(worker.wrote()) > 60, "some work")
    old = watched.primary()
    old.kill()
    assert len(set(worker.wrote())) < 600
    (worker.directory / "go").touch()
    watched.promoted_without(old)
    old.restart()
    wait_until(lambda: set(worker.wrote()) == set(pids), "every message to run")
    wait_until(bench.nothing_left, "empty places")
    # What was committed and not replicated ran again, and counts once: the books are those of one server.
    assert bench.succeeded() == 600
    assert max(Counter(worker.wrote()).values()) <= 2
    assert worker.stop() == 0


def test_a_worker_that_starts_without_a_primary_waits_for_one(bench: Bench, watched: WatchedRedis) -> None:
    old = watched.primary()
    old.kill()
    worker = bench.run(QUICK)
    line = worker.wait_for("waits for the broker")
    assert f"the primary {NAME} cannot be used" in line["msg"]
    assert f"127.0.0.1:{old.port}" in line["msg"]
    new = watched.promoted_without(old)
    worker.consuming()
    assert f"127.0.0.1:{new.port}" not in worker.transcript()
    old.restart()
    (pid,) = bench.publish("q", "{}")
    wait_until(lambda: pid in worker.wrote(), "the message to be handled")
    assert worker.stop() == 0


def test_commands_read_the_primary_and_refuse_a_replica(bench: Bench, watched: WatchedRedis) -> None:
    primary = watched.primary()
    assert queueworker("publish", "q", "{}", env=bench.env).returncode == 0
    inspected = queueworker("inspect", "q", "--json", env=bench.env)
    assert json.loads(inspected.stdout)["server"] == f"127.0.0.1:{primary.port}"
    asyncio.run(_verify_by_one_that_is_behind(bench, watched))


async def _verify_by_one_that_is_behind(bench: Bench, watched: WatchedRedis) -> None:
    primary = watched.primary()
    replica = watched.other(primary)
    async with ScriptedSentinel(replica.port, epoch=0) as stale:
        alone = environment(WatchedRedis.url_of(stale.port), bench.namespace)
        refused = await asyncio.to_thread(queueworker, "verify-empty", "q", env=alone)
        assert refused.returncode == 3, refused.stderr
        assert f"Redis at 127.0.0.1:{replica.port}" in refused.stderr
        assert "says that it is a slave" in refused.stderr
        both = WatchedRedis.url_of(stale.port, watched.sentinels[0].port)
        answered = await asyncio.to_thread(
            queueworker, "verify-empty", "q", "--json", env=environment(both, bench.namespace)
        )
        assert answered.returncode == 0, answered.stderr
        assert json.loads(answered.stdout)["reading"]["server"] == f"127.0.0.1:{primary.port}"


def test_chaos_by_way_of_sentinels(watched: WatchedRedis) -> None:
    watched.settle()
    done = queueworker("chaos", "--broker", watched.url, "--kills", "3", env=environment(watched.url, "n"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost" in done.stdout
