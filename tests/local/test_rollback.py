"""The guarded way back: to a revision that served before, to a Legacy one, to no worker at all."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.local.jobs import DONE
from tests.local.running import EXPIRES_SOON, Jobs, Up, resource, running, until
from worker_runtime.brokers.redis.server import EmbeddedRedis


def legacy(**spec: Any) -> dict[str, Any]:
    """A worker of the older protocol."""
    return resource(
        version="old",
        protocol="Legacy",
        rollback={"quietSeconds": 3},
        container={"command": ["python", "-m", "tests.local.legacy_app"], "args": []},
        **spec,
    )


def new(**spec: Any) -> dict[str, Any]:
    return resource(version="new", env=EXPIRES_SOON, **spec)


def stage(up: Up) -> str:
    found: str = up.of().get("status", {}).get("rollout", {}).get("stage", "")
    return found


@asynccontextmanager
async def load(jobs: Jobs) -> AsyncIterator[list[str]]:
    """Jobs come in all the time. Gives the ids of those that were published."""
    ids: list[str] = []
    enough = asyncio.Event()

    async def publish_on() -> None:
        while not enough.is_set():
            some = [f"load-{len(ids) + n}" for n in range(5)]
            await jobs.publish(some, seconds=0.02)
            ids.extend(some)
            await asyncio.sleep(0.1)

    publishing = asyncio.create_task(publish_on())
    try:
        yield ids
    finally:
        enough.set()
        await publishing


async def test_to_no_worker_while_a_killed_one_is_still_on_the_list(up: Up, jobs: Jobs) -> None:
    up.write(resource(version="v1", env=EXPIRES_SOON))
    await up.start()
    first = await up.ready()
    await jobs.publish(["held"], seconds=-1)
    await jobs.begun(1)
    up.write(resource(version="v2", env=EXPIRES_SOON))
    await up.until(
        "the old worker is told to stop",
        lambda: any(row["stopping"] for row in up.of().get("processes", []) if row["revision"] == first),
    )
    (pid,) = up.pids(revision=first)
    os.killpg(pid, signal.SIGKILL)
    second = await up.until("the new one alone", lambda: (up.stable() != first) and up.stable())
    up.write(resource(version="v2", replicas=0, env=EXPIRES_SOON))
    await up.until("no worker", lambda: "RegistryEmpty" in up.events() and not up.pids(revision=second))

    reading = await jobs.read()
    assert reading.private == 0, "what the killed worker held is back in the queue before the last one goes"
    assert reading.ready == 1


async def test_back_to_the_revision_before_under_load(up: Up, jobs: Jobs) -> None:
    up.write(resource(version="v1", replicas=2))
    await up.start()
    first = await up.ready(replicas=2)
    async with load(jobs) as ids:
        up.write(resource(version="v2", replicas=2))
        second = await up.ready(generation=2, replicas=2)
        up.write(resource(version="v1", replicas=2))
        assert await up.ready(generation=3, replicas=2) == first
        claimed = (await jobs.read()).ledger[second].claimed
        await jobs.begun(len(ids) + 10)
    reading = await jobs.finished(len(ids))

    assert set(await jobs.done()) == set(ids)
    assert "leaves for" in reading.fences[second]
    assert reading.ledger[second].claimed == claimed, "a fenced revision takes nothing"
    assert reading.private == reading.failed == reading.dead == 0
    told = up.events()
    steps = ["RollbackStarted", "ReceivingStopped", "RolledBack"]
    assert [reason for reason in told if reason in steps] == steps
    assert not up.pids(revision=second)

    up.write(resource(version="v2", replicas=2))
    assert await up.ready(generation=4, replicas=2) == second
    await jobs.publish(["once more"])
    reading = await jobs.finished(len(ids) + 1)
    assert second not in reading.fences, "it is wanted again"
    assert reading.ledger[second].claimed == claimed + 1
    assert await up.stop() == 0


async def test_back_to_a_legacy_revision_leaves_nothing_that_it_cannot_read(up: Up, jobs: Jobs) -> None:
    """Under load, with one worker of the leaving revision standing still from before the fence on."""
    up.write(legacy())
    await up.start()
    old = await up.ready()
    up.write(new(replicas=2))
    target = await up.ready(generation=2, replicas=2)
    await jobs.publish(["warm"])
    await jobs.finished(1)
    still = min(up.pids(revision=target))
    os.killpg(still, signal.SIGSTOP)
    try:
        up.write(legacy(replicas=2))
        claimed = await fenced(jobs, target)
        async with load(jobs) as ids:
            # Not by its stage: it was Idle before, and may be shown so for a moment after the fence.
            await up.until("the proof", lambda: "RegistryEmpty" in up.events())
            assert up.condition("RegistryEmpty")["reason"] in ("EmptyAndQuiet", "")
            reading = await jobs.read()
            assert reading.reserved == reading.owned == reading.delayed == 0
            os.killpg(still, signal.SIGCONT)
            assert await up.ready(generation=3) == old
    finally:
        if running(still):
            os.killpg(still, signal.SIGCONT)
    reading = await jobs.finished(len(ids) + 1)

    assert set(await jobs.done()) == {"warm", *ids}
    assert reading.ledger[target].claimed == claimed, "it reserved after the fence"
    assert reading.private == reading.failed == reading.dead == 0
    told = up.events()
    for reason in ("RollbackStarted", "ReceivingStopped", "RegistryEmpty", "RolledBack"):
        assert told.count(reason) == 1, told
    assert await up.stop() == 0


async def test_a_request_aborts_a_change_to_an_image_that_cannot_start(up: Up, jobs: Jobs) -> None:
    up.write(resource())
    await up.start()
    stable = await up.ready()
    broken: dict[str, Any] = {"version": "v2", "env": {"BROKEN": "yes"}}
    up.write(resource(**broken))
    await up.until("the report", lambda: "CrashLoopBackOff" in up.condition("Ready")["message"])
    target = up.of()["status"]["rollout"]["target"]

    up.write(resource(**broken, request={"id": "1", "action": "Abort"}))
    await up.until("the abort", lambda: up.condition("Ready")["reason"] == "RolloutAborted")
    assert {row["revision"] for row in up.of()["processes"]} == {stable}
    assert "RolledBack" in up.events()
    assert target in (await jobs.read()).fences
    await jobs.publish(["still served"])
    await jobs.finished(1)
    assert await up.stop() == 0


async def fenced(jobs: Jobs, revision: str) -> int:
    """Wait for the fence. Returns what the revision had claimed then."""
    while revision not in (reading := await jobs.read()).fences:  # noqa: ASYNC110 - set by another process
        await asyncio.sleep(0.05)
    return reading.ledger[revision].claimed


@pytest.mark.parametrize(
    "at", [pytest.param("DrainOutstanding", marks=pytest.mark.soak), "VerifyRegistryEmpty"]
)
async def test_up_killed_on_the_way_back_resumes(up: Up, jobs: Jobs, at: str) -> None:
    up.write(legacy())
    await up.start()
    old = await up.ready()
    up.write(new())
    target = await up.ready(generation=2)
    await jobs.publish((f"job-{n}" for n in range(6)), seconds=-1 if at == "DrainOutstanding" else 0)
    await jobs.begun(2)
    up.write(legacy())
    await up.until(f"stage {at}", lambda: stage(up) == at)
    everybody = up.pids()

    up.signal(signal.SIGKILL)
    await up.wait()
    await jobs.let_go()
    await until("the workers to end by themselves", lambda: not any(map(running, everybody)))
    await up.start()
    assert await up.ready() == old
    reading = await jobs.finished(6)

    assert await jobs.store.hlen(DONE) == 6
    assert target in reading.fences
    assert reading.private == reading.failed == reading.dead == 0
    assert await up.stop() == 0


@pytest.mark.soak
async def test_a_broker_that_is_away_freezes_the_way_back(own_up: Up) -> None:
    with EmbeddedRedis() as server:
        at = {"redis": {"url": server.url}}
        own_up.write(legacy(broker=at))
        await own_up.start()
        old = await own_up.ready()
        own_up.write(new(broker=at))
        target = await own_up.ready(generation=2)
        jobs = Jobs(server.url)
        await jobs.publish(["held"], seconds=-1)
        await jobs.begun(1)
        own_up.write(legacy(broker=at))
        await own_up.until("the drain", lambda: stage(own_up) == "DrainOutstanding")
        workers = own_up.pids(revision=target)

        server.kill()
        await own_up.until("the word", lambda: own_up.condition("BrokerReachable")["status"] == "False")
        assert stage(own_up) == "DrainOutstanding"
        assert own_up.pids(revision=target) == workers

        server.restart()
        await jobs.close()
        jobs = Jobs(server.url)
        await jobs.let_go()
        assert await own_up.ready(generation=3) == old
        assert own_up.pids(revision=target) == set()
        await jobs.close()
        assert await own_up.stop() == 0


async def test_a_drain_that_does_not_end_is_told_and_ends_when_the_work_does(up: Up, jobs: Jobs) -> None:
    rollback = {"drainDeadlineSeconds": 1, "quietSeconds": 3}
    up.write(resource(version="v1"))
    await up.start()
    first = await up.ready()
    up.write(resource(version="v2"))
    second = await up.ready(generation=2)
    # As many as it may hold: it asks for no more, which would tell it of the fence.
    await jobs.publish((f"held-{n}" for n in range(10)), seconds=-1)
    await jobs.claimed(second, 10)
    up.write(resource(version="v1", rollback=rollback))
    await up.until("the alarm", lambda: up.condition("Stalled").get("reason") == "DrainOverdue")
    assert f"{second} (10)" in up.condition("Stalled")["message"]
    assert up.pids(revision=second), "it is told, not forced"

    await jobs.let_go()
    assert await up.ready(generation=3) == first
    reading = await jobs.finished(10)
    assert reading.private == reading.failed == reading.dead == 0
    assert up.condition("Stalled").get("status", "") == ""
    assert up.events().count("DrainOverdue") == 1
    assert await up.stop() == 0
