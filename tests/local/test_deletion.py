"""A document that leaves the file: its workers are drained by the guarded way, or live on."""

from __future__ import annotations

import os
import signal

from tests.local.running import EXPIRES_SOON, Jobs, Up, resource, running
from tests.local.test_plugin import plugin
from worker_runtime.brokers.redis.server import EmbeddedRedis

QUICK = {"quietSeconds": 3}


async def test_what_workers_hold_is_finished_and_the_fences_go(up: Up, jobs: Jobs) -> None:
    up.write(resource(rollback=QUICK, prefetch=30))
    await up.start()
    stable = await up.ready()
    await jobs.publish((f"job-{n}" for n in range(20)), seconds=-1)
    await jobs.begun(2)
    pids = up.pids()

    up.write_nothing()
    await up.until("the drain", lambda: up.of()["status"]["rollout"].get("reason") == "WorkOutstanding")
    assert up.condition("Ready")["reason"] == "Deleting"
    reading = await jobs.read()
    assert "its QueueWorker is deleted" in reading.fences[stable]
    assert all(map(running, pids)), "nobody is stopped before the proof"
    await jobs.let_go()
    await up.until("the end", lambda: "work" not in up.state["resources"])
    assert not any(map(running, pids))

    reading = await jobs.read()
    assert reading.private == 0
    assert reading.ready + len(await jobs.done()) == 20
    assert reading.fences == {}
    told = up.output
    steps = ("DrainStarted", "RollbackStarted", "ReceivingStopped", "RegistryEmpty", "DrainCompleted")
    assert [told.count(f"{one}:") for one in steps] == [1] * 5

    up.write(resource(rollback=QUICK, prefetch=30))
    assert await up.ready() == stable, "the same spec works at once"
    reading = await jobs.finished(20)
    assert reading.private == reading.failed == reading.dead == 0
    assert await up.stop() == 0


async def test_workers_live_on_as_orphans_and_are_taken_over_again(up: Up, jobs: Jobs) -> None:
    up.write(resource(deletion={"policy": "Orphan"}))
    await up.start()
    stable = await up.ready()
    pids = up.pids()
    up.write_nothing()
    await up.until("the end", lambda: "work" not in up.state["resources"])
    await jobs.publish(["nobody's"])
    await jobs.finished(1)
    assert all(map(running, pids))
    assert {one["pid"] for one in up.state["orphans"]["work"]} == pids

    up.write(resource())
    assert await up.ready() == stable
    assert up.pids() == pids, "they are the same workers"
    assert up.state["orphans"] == {}
    up.write_nothing()
    await up.until("the drain", lambda: "work" not in up.state["resources"])
    assert not any(map(running, pids))
    assert await up.stop() == 0


async def test_a_deletion_that_waits_for_a_lost_broker_may_become_an_orphan(own_up: Up) -> None:
    with EmbeddedRedis() as server:
        at = {"redis": {"url": server.url}}
        own_up.write(resource(broker=at))
        await own_up.start()
        await own_up.ready()
        pids = own_up.pids()
        server.kill()
        own_up.write_nothing()
        await own_up.until(
            "the way out",
            lambda: "set spec.deletion.policy to Orphan" in own_up.condition("Ready")["message"],
        )
        assert all(map(running, pids))
        own_up.write(resource(broker=at, deletion={"policy": "Orphan"}))
        await own_up.until("the new one", lambda: "WorkersOrphaned" in own_up.output)
        assert all(map(running, pids))
        server.restart()
        await own_up.ready()
        assert own_up.pids() == pids
        assert await own_up.stop() == 0


async def test_what_a_killed_worker_reserved_is_returned_before_the_resource_goes(up: Up, jobs: Jobs) -> None:
    up.write(resource(env=EXPIRES_SOON, rollback=QUICK))
    await up.start()
    await up.ready()
    await jobs.publish((f"job-{n}" for n in range(10)), seconds=-1)
    await jobs.begun(2)
    (pid,) = up.pids()
    os.killpg(pid, signal.SIGKILL)
    up.write_nothing()
    await up.until("the end", lambda: "work" not in up.state["resources"])
    reading = await jobs.read()
    assert (reading.ready, reading.private, reading.fences) == (10, 0, {})
    assert await up.stop() == 0


async def test_a_broker_that_takes_no_fence_is_named_by_the_deletion(up: Up, jobs: Jobs) -> None:
    up.write(resource(rollback=QUICK))
    await up.start()
    await up.ready()
    pids = up.pids()
    await jobs.store.config_set("maxmemory", "500kb")
    await up.until("the look", lambda: up.condition("BrokerReachable")["reason"] == "WritesRefused")
    up.write_nothing()
    await up.until("the deletion", lambda: up.condition("Ready")["reason"] == "Deleting")
    code, told, _ = await plugin("why", "work", "--local", str(up.state_dir))
    assert code == 3, told
    assert "raise maxmemory" in told
    assert "pass failed" not in up.output
    assert all(map(running, pids)), "nobody is stopped before the proof"
    await jobs.store.config_set("maxmemory", "0")
    await up.until("the end", lambda: "work" not in up.state["resources"])
    assert await up.stop() == 0
