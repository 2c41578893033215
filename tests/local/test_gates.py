"""A canary that is measured beside the stable revision on a real broker, and what its gates make of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.local.running import EXPIRES_SOON, Jobs, Up
from tests.local.test_canary import arm, changing, name, numbers
from tests.local.test_plugin import plugin

#: A machine that is busy with other things slows one process more than another for a while.
GATES = [
    {"type": "QueueProgress", "minPercentOfStable": 20, "minSamples": 10},
    {"type": "CPUEfficiency", "maxPercentOfStable": 300, "minSamples": 10},
    {"type": "Latency", "maxPercentOfStable": 300, "minSamples": 10},
    {"type": "UsageAccounting", "minSamples": 10},
]
ALL = ("QueueProgress", "CPUEfficiency", "Latency", "UsageAccounting")


@asynccontextmanager
async def kept_full(jobs: Jobs) -> AsyncIterator[list[str]]:
    """Work always waits. Gives the ids of what was published."""
    ids: list[str] = []

    async def publish_on(enough: asyncio.Event) -> None:
        while not enough.is_set():
            if (await jobs.read()).ready < 400:
                some = [f"job-{len(ids) + n}" for n in range(200)]
                await jobs.publish(some, seconds=0.01)
                ids.extend(some)
            await asyncio.sleep(0.1)

    enough = asyncio.Event()
    publishing = asyncio.create_task(publish_on(enough))
    try:
        yield ids
    finally:
        enough.set()
        await publishing


def measure(**more: Any) -> dict[str, Any]:
    return {"analysis": {"durationSeconds": 5} | more}


def measured(version: str, *steps: dict[str, Any], **spec: Any) -> dict[str, Any]:
    document = changing(version, *steps, **spec)
    document["spec"]["rollout"]["gates"] = GATES
    return document


def verdicts(up: Up) -> list[tuple[str, int, str, str]]:
    found = up.of().get("status", {}).get("gates", [])
    return [(one["step"], one["arm"], one["type"], one["verdict"]) for one in found]


async def test_a_good_canary_passes_over_two_arms_one_of_which_loses_a_worker(up: Up, jobs: Jobs) -> None:
    # Who is killed on purpose is missing for a part of the window: a small one, on a busy machine too.
    steps = (arm(2), measure(forceFailure=True, durationSeconds=12), arm(8), measure())
    up.write(measured("v1", *steps))
    await up.start()
    stable = await up.ready(replicas=2)
    second = measured("v2", *steps)
    first_arm, last_arm = name(second, 2), name(second, 8)
    async with kept_full(jobs) as ids:
        up.write(second)
        assert await up.ready(generation=2, replicas=2) == last_arm

    assert verdicts(up) == [
        (step, prefetch, gate, "Passed") for step, prefetch in (("3/5", 2), ("5/5", 8)) for gate in ALL
    ]
    assert up.condition("GatesPassed")["reason"] == "AllPassed"
    events = up.events()
    assert events.count("WorkerKilled") == 1
    assert up.output.count("ended with signal SIGKILL") == 1
    assert events.count("GatePassed") == 8
    _, shown, _ = await plugin("get", "--local", str(up.state_dir))
    assert f"gates at step 5/5, {last_arm}" in shown
    assert "QueueProgress  Passed" in shown

    reading = await jobs.finished(len(ids))
    for revision, row in reading.ledger.items():
        ended = row.committed + row.rejected + row.released + row.taken_over
        assert row.claimed == ended, f"the books of {revision}"
    assert sum(row.committed for row in reading.ledger.values()) == len(ids)
    assert {stable, first_arm, last_arm} <= set(reading.ledger)
    assert numbers(up) == {last_arm: 2}
    assert await up.stop() == 0


async def test_a_canary_that_burns_and_rejects_is_taken_back(up: Up, jobs: Jobs) -> None:
    up.write(measured("v1", measure()))
    await up.start()
    stable = await up.ready(replicas=2)
    second = measured("v2", measure(durationSeconds=12), env={"WASTES": "1", **EXPIRES_SOON})
    async with kept_full(jobs):
        up.write(second)
        await up.until("the abort", lambda: up.condition("Ready")["reason"] == "RolloutAborted")
    await up.until("the stable revision at its number", lambda: numbers(up) == {stable: 2})

    for gate in ("CPUEfficiency", "UsageAccounting"):
        assert ("2/2", 8, gate, "Failed") in verdicts(up), up.of()["status"]["gates"]
        assert f"{gate} Failed" in up.condition("Ready")["message"]
    assert up.condition("GatesPassed")["reason"] == "GateFailed"
    assert {"GateFailed", "RollbackStarted", "RolledBack"} <= set(up.events())
    code, told, _ = await plugin("why", "work", "--local", str(up.state_dir))
    assert code == 4
    assert "gate CPUEfficiency of step 2/2: Failed" in told
    reading = await jobs.read()
    assert name(second, 8) in reading.fences, "it left by the guarded way"
    assert await up.stop() == 0
