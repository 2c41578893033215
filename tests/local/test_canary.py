"""A canary on this machine: edit the file, watch the arms, abort, kill."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from queueworker_operator.api.parse import parse
from queueworker_operator.api.revisions import revision_of
from queueworker_operator.api.types import QueueWorker
from tests.local.running import EXPIRES_SOON, Jobs, Up, resource, running, until
from tests.local.test_plugin import plugin
from tests.local.test_rollback import load, stage

ONE: dict[str, Any] = {"setCanaryScale": {"replicas": 1}}
PAUSE: dict[str, Any] = {"pause": {}}


def short(seconds: int = 2) -> dict[str, Any]:
    return {"pause": {"durationSeconds": seconds}}


def arm(prefetch: int) -> dict[str, Any]:
    return {"setPrefetch": prefetch}


def changing(version: str, *steps: dict[str, Any], **spec: Any) -> dict[str, Any]:
    rollout = {"strategy": "Canary", "steps": [ONE, *steps]}
    content: dict[str, Any] = {"replicas": 2, "coroutines": 1, "prefetch": 8, "env": EXPIRES_SOON}
    return resource(version=version, rollout=rollout, **(content | spec))


def name(document: dict[str, Any], prefetch: int) -> str:
    parsed = parse(document)
    assert isinstance(parsed, QueueWorker), parsed
    return revision_of(parsed.metadata.name, parsed.spec, prefetch).name


def step(up: Up) -> str:
    found: str = up.of().get("status", {}).get("rollout", {}).get("step", "")
    return found


def numbers(up: Up) -> dict[str, int]:
    """Live workers that were not told to stop, by revision."""
    found: dict[str, int] = {}
    for row in up.of().get("processes", []):
        if not row["stopping"]:
            found[row["revision"]] = found.get(row["revision"], 0) + 1
    return found


async def test_the_arms_one_after_the_other_under_load_and_then_the_promotion(up: Up, jobs: Jobs) -> None:
    # Pauses that do not end by themselves, so that the test sees both; and nobody who is late loses work.
    steps, env = (arm(1), PAUSE, arm(8), PAUSE), dict[str, str]()
    up.write(changing("v1", *steps, env=env))
    await up.start()
    stable = await up.ready(replicas=2)
    second = changing("v2", *steps, env=env)
    first_arm, last_arm = name(second, 1), name(second, 8)

    def skip(number: int) -> None:
        request = {"id": str(number), "action": "SkipStep"}
        up.write(changing("v2", *steps, env=env, request=request))

    async with load(jobs) as ids:
        up.write(second)
        await up.until("the first arm", lambda: (stage(up), step(up)) == ("Paused", "3/5"))
        assert numbers(up) == {stable: 1, first_arm: 1}
        await jobs.claimed(first_arm, 1)
        skip(1)
        await up.until("the second arm", lambda: (stage(up), step(up)) == ("Paused", "5/5"))
        assert numbers(up) == {stable: 1, last_arm: 1}
        skip(2)
        assert await up.ready(generation=2, replicas=2) == last_arm
        await jobs.begun(len(ids) + 5)
    reading = await jobs.finished(len(ids))

    assert set((await jobs.done()).values()) == {1}, "no job ran twice"
    assert set(await jobs.done()) == set(ids)
    assert reading.ledger[first_arm].committed > 0
    assert reading.ledger[last_arm].committed > 0
    assert first_arm in reading.fences, "an arm leaves fenced"
    assert last_arm not in reading.fences
    assert reading.private == reading.failed == reading.dead == 0
    assert numbers(up) == {last_arm: 2}
    told = [reason for reason in up.events() if reason in ("StepCompleted", "Promoted")]
    assert told == ["Promoted", *["StepCompleted"] * 4, "Promoted"]
    assert await up.stop() == 0


async def test_an_abort_in_an_arm_and_what_a_person_sees_of_it(up: Up, jobs: Jobs) -> None:
    steps = (arm(1), PAUSE, arm(8), PAUSE)
    up.write(changing("v1", *steps))
    await up.start()
    stable = await up.ready(replicas=2)
    up.write(changing("v2", *steps))
    await up.until("the first pause", lambda: stage(up) == "Paused")
    code, told, _ = await plugin("why", "work", "--local", str(up.state_dir))
    assert (code, told.splitlines()[0]) == (4, "work: blocked (PauseStep)")
    assert "step 3/5 of attempt 1" in told
    _, shown, _ = await plugin("get", "--local", str(up.state_dir))
    assert "step 3/5, attempt 1" in shown
    assert f"{name(changing('v2', *steps), 1)}  Canary  1/1 ready" in shown

    up.write(changing("v2", *steps, request={"id": "1", "action": "SkipStep"}))
    await up.until("the second pause", lambda: (stage(up), step(up)) == ("Paused", "5/5"))
    await jobs.publish((f"job-{n}" for n in range(20)), seconds=-1)
    await jobs.begun(2)
    up.write(changing("v2", *steps, request={"id": "2", "action": "Abort"}))
    await up.until("the fence", lambda: stage(up) in ("StopReceiving", "DrainOutstanding"))
    await jobs.let_go()
    await up.until("the abort", lambda: up.condition("Ready")["reason"] == "RolloutAborted")
    await up.until("the stable revision at its number", lambda: numbers(up) == {stable: 2})
    reading = await jobs.finished(20)
    assert len(await jobs.done()) == 20
    assert reading.private == reading.failed == reading.dead == 0
    assert up.stable() == stable
    assert "RolledBack" in up.events()
    assert await up.stop() == 0


@pytest.mark.parametrize(
    ("at", "steps"),
    [
        pytest.param("CanaryScaling", (short(),), marks=pytest.mark.soak),
        ("ArmChanging", (arm(1), short(1), arm(8), short(1))),
        pytest.param("Paused", (arm(1), short(1), arm(8), short(6)), marks=pytest.mark.soak),
        pytest.param("Promoting", (short(1),), marks=pytest.mark.soak),
    ],
)
async def test_up_killed_at_a_step_goes_on_from_it(
    up: Up, jobs: Jobs, at: str, steps: tuple[dict[str, Any], ...]
) -> None:
    up.write(changing("v1", *steps))
    await up.start()
    stable = await up.ready(replicas=2)
    second = changing("v2", *steps)
    last = name(second, 8)
    up.write(second)
    reached = f"{len(steps) + 1}/{len(steps) + 1}" if at == "Paused" else ""
    await up.until(f"stage {at}", lambda: stage(up) == at and step(up) >= reached)
    stood_at, everybody = step(up), up.pids()

    up.signal(signal.SIGKILL)
    await up.wait()
    await until("the workers to end by themselves", lambda: not any(map(running, everybody)))
    await up.start()
    await up.until("the first look", lambda: step(up))
    assert up.stable() == stable, "who served is known"
    assert step(up) >= stood_at
    assert up.of()["status"]["rollout"]["attempt"] == 1
    await jobs.publish(["between"])
    assert await up.ready(replicas=2) == last
    assert numbers(up) == {last: 2}
    reading = await jobs.finished(1)
    assert reading.private == reading.failed == reading.dead == 0
    assert await up.stop() == 0


async def test_what_was_adopted_is_started_again_beside_a_canary(up: Up, jobs: Jobs) -> None:
    """Nobody but the one who made the orphans knew of what they were made."""
    up.write(changing("v1", PAUSE, deletion={"policy": "Orphan"}))
    await up.start()
    stable = await up.ready(replicas=2)
    up.write_nothing()
    await up.until("the end", lambda: "work" not in up.state["resources"])
    second = changing("v2", PAUSE)
    canary = {stable: 1, name(second, 8): 1}
    up.write(second)
    await up.until("the canary", lambda: stage(up) == "Paused" and numbers(up) == canary)
    everybody = up.pids()

    up.signal(signal.SIGKILL)
    await up.wait()
    await until("the workers to end by themselves", lambda: not any(map(running, everybody)))
    await up.start()
    await up.until("the canary again", lambda: stage(up) == "Paused" and numbers(up) == canary)
    assert up.stable() == stable
    assert await up.stop() == 0
