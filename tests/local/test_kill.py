"""SIGKILL of a worker, of `up` itself, and of its broker."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from tests.local.running import EXPIRES_SOON, Jobs, Up, is_directory, resource, running, until
from worker_runtime.brokers.redis.server import EmbeddedRedis


async def test_work_of_a_killed_worker_is_finished_by_others(up: Up, jobs: Jobs) -> None:
    up.write(resource(replicas=2, prefetch=4, env=EXPIRES_SOON))
    await up.start()
    await up.ready(replicas=2)
    await jobs.publish((f"job-{n}" for n in range(8)), seconds=-1)
    await jobs.begun(4)
    before = up.pids()
    victim = min(before)

    os.kill(victim, signal.SIGKILL)
    await up.until("another worker in its place", lambda: len(up.pids() - before) == 1)
    await up.ready(replicas=2)
    await jobs.let_go()
    reading = await jobs.finished(8)

    assert len(await jobs.done()) == 8
    assert sum(row.committed for row in reading.ledger.values()) == 8
    assert reading.private == reading.failed == reading.dead == 0
    assert "signal SIGKILL" in up.output
    assert await up.stop() == 0


async def test_up_killed_in_the_middle_of_a_change(up: Up, jobs: Jobs) -> None:
    up.write(resource(version="v1", replicas=2, env=EXPIRES_SOON))
    await up.start()
    old = await up.ready(replicas=2)
    await jobs.publish((f"job-{n}" for n in range(60)), seconds=0.1)
    up.write(resource(version="v2", replicas=2, env=EXPIRES_SOON))
    await up.until("workers of both revisions", lambda: up.pids() - up.pids(revision=old))
    both = up.pids()

    up.signal(signal.SIGKILL)
    await up.wait()
    await until("the workers to end by themselves", lambda: not any(map(running, both)))

    await up.start()
    new = await up.ready(replicas=2)
    reading = await jobs.finished(60)
    assert new != old
    assert len(await jobs.done()) == 60
    assert reading.private == reading.failed == reading.dead == 0
    assert {row["revision"] for row in up.of()["processes"]} == {new}
    assert await up.stop() == 0


async def test_a_state_directory_that_vanishes_costs_no_work(up: Up, jobs: Jobs) -> None:
    up.write(resource(prefetch=4))
    await up.start()
    await up.ready()
    await jobs.publish(["one"], seconds=-1)
    await jobs.begun(1)

    def take_away() -> None:
        """All at once: `up` may be writing there."""
        away = up.state_dir.with_name("away")
        up.state_dir.rename(away)
        shutil.rmtree(away)

    take_away()
    await up.until("a new up.json", lambda: up.pids())
    in_the_way = False
    while not in_the_way:
        take_away()
        with suppress(IsADirectoryError):  # it was quicker, and has made another one
            up.state_dir.write_text("in the way")
            in_the_way = True
    up.signal(signal.SIGINT)
    await up.until("the word that it cannot be written", lambda: "up.json cannot be written" in up.output)
    await jobs.let_go()
    assert await up.wait() == 0, up.output
    assert await jobs.done() == {"one": 1}
    assert "Traceback" not in up.output
    up.state_dir.unlink()


async def test_the_embedded_broker_ends_with_up(own_up: Up) -> None:
    own_up.write(resource())
    await own_up.start()
    await own_up.ready()
    url, pids = own_up.state["broker_url"], own_up.pids()
    jobs = Jobs(url)
    await jobs.publish(["one"])
    await jobs.finished(1)
    server = (await jobs.store.info("server"))["process_id"]
    await jobs.close()

    own_up.signal(signal.SIGKILL)
    await own_up.wait()
    await until("the broker to end", lambda: not running(server))
    await until("the worker to end", lambda: not any(map(running, pids)))

    directory = own_up.state["embedded_directories"][0]
    assert is_directory(directory)
    await own_up.start()
    await own_up.ready()
    assert not is_directory(directory), "the next one removes its data"
    assert await own_up.stop() == 0
    assert own_up.state["embedded_directories"] == []


async def test_a_killed_embedded_broker_comes_back_with_its_jobs(own_up: Up) -> None:
    own_up.write(resource(replicas=0))
    await own_up.start()
    await own_up.ready()
    jobs = Jobs(own_up.state["broker_url"])
    await jobs.publish(f"job-{n}" for n in range(5))
    server = (await jobs.store.info("server"))["process_id"]
    await jobs.close()

    os.kill(server, signal.SIGKILL)
    await own_up.until("the restart", lambda: "it is started again" in own_up.output)
    own_up.write(resource(replicas=1))
    await own_up.ready(generation=2, replicas=1)
    jobs = Jobs(own_up.state["broker_url"])
    await jobs.finished(5)
    assert set((await jobs.done()).values()) == {1}
    await jobs.close()
    assert await own_up.stop() == 0


async def test_a_broker_that_is_away_for_a_while(own_up: Up, tmp_path: Path) -> None:
    with EmbeddedRedis() as server:
        own_up.write(resource(broker={"redis": {"url": server.url}}))
        server.kill()
        await own_up.start()
        await own_up.until(
            "the condition", lambda: own_up.condition("BrokerReachable")["reason"] == "ConnectionFailed"
        )
        assert f"127.0.0.1:{server.port}" in own_up.condition("BrokerReachable")["message"]
        assert own_up.condition("Ready")["status"] == "False"
        assert own_up.pids() == set()

        server.restart()
        await own_up.ready()
        pids = own_up.pids()
        server.kill()
        await own_up.until("the condition", lambda: own_up.condition("BrokerReachable")["status"] == "False")
        assert own_up.pids() == pids
        assert own_up.condition("Ready")["status"] == "False"

        server.restart()
        await own_up.ready()
        assert own_up.pids() == pids
        assert "BrokerRecovered" in own_up.events()
        assert await own_up.stop() == 0
