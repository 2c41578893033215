"""UsageAccounting with totals in a store of its own: a process counts them, and what is lost leads back."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from tests.local.audit import AUDITS
from tests.local.running import PATIENCE, Jobs, Up, running, until
from tests.local.test_canary import changing, name, numbers
from tests.local.test_gates import GATES, kept_full, measure, verdicts


def audited(
    version: str, how: str = "counts", gate: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """A change that is measured once, and whose totals are counted then."""
    document = changing(version, measure(), **spec)
    env = [{"name": "AUDIT", "value": how}, {"name": "VERSION", "value": version}]
    container = {
        "name": "audit",
        "image": "none",
        "command": ["python", "-m", "tests.local.audit"],
        "env": env,
    }
    job = {"template": {"spec": {"containers": [container]}}, "timeoutSeconds": 60}
    usage = GATES[-1] | {"job": job, "errorLimit": 0} | (gate or {})
    document["spec"]["rollout"]["gates"] = [*GATES[:-1], usage]
    return document


def told(up: Up) -> str:
    found = up.of()["status"]["gates"]
    return [str(one["message"]) for one in found if one["type"] == "UsageAccounting"][-1]


async def audits(jobs: Jobs) -> list[int]:
    return [int(pid) for pid in await jobs.store.lrange(AUDITS, 0, -1)]


async def test_what_the_store_has_leads_on_and_what_it_lacks_leads_back(up: Up, jobs: Jobs) -> None:
    up.write(audited("v1"))
    await up.start()
    await up.ready(replicas=2)
    async with kept_full(jobs):
        up.write(audited("v2"))
        stable = await up.ready(generation=2, replicas=2)
        assert stable == name(audited("v2"), 8)
        assert ("2/2", 8, "UsageAccounting", "Passed") in verdicts(up)
        assert "0 lost" in told(up)

        loses = audited("v3", env={"LOSES": "1", "QUEUEWORKER_EXPIRY_SECONDS": "3"})
        up.write(loses)
        await up.until("the abort", lambda: up.condition("Ready")["reason"] == "RolloutAborted")
    await up.until("the stable revision at its number", lambda: numbers(up) == {stable: 2})
    found = {gate: verdict for _, _, gate, verdict in verdicts(up)}
    assert found["UsageAccounting"] == "Failed", "the books of the broker balance, and the store lacks some"
    assert " 0 lost" not in told(up)
    assert {"GateFailed", "RollbackStarted", "RolledBack"} <= set(up.events())
    assert name(loses, 8) in (await jobs.read()).fences, "it left by the guarded way"
    assert len(await audits(jobs)) == 2
    assert not any(map(running, await audits(jobs)))
    assert await up.stop() == 0


async def test_whoever_gives_no_answer_stops_the_change_until_one_does_even_across_a_kill(
    up: Up, jobs: Jobs
) -> None:
    up.write(audited("v1"))
    await up.start()
    await up.ready(replicas=2)
    async with kept_full(jobs):
        up.write(audited("v2", "fails"))
        await up.until("no verdict", lambda: up.condition("Ready")["reason"] == "GateInconclusive")
        message = up.condition("Ready")["message"]
        assert "exit code 1" in message
        assert "the store cannot be reached" in message
        assert up.condition("GatesPassed")["status"] == "Unknown"

        up.write(audited("v2", "pipe"))
        await up.until(
            "that pipe is read by nobody", lambda: "left no answer" in up.condition("Ready")["message"]
        )

        up.write(audited("v2", "waits"))
        await up.until("the next one", lambda: "waits for the Job" in up.condition("Ready")["message"])
        first, second = await _number(jobs, 2)
        assert not running(first)
        up.signal(signal.SIGKILL)
        await up.wait()
        await until("it to end with whom it worked for", lambda: not running(second))
        await up.start()
        await _number(jobs, 3)
        await jobs.store.set("test:audit", 1)
        assert await up.ready(replicas=2) == name(audited("v2"), 8)
    assert "0 lost" in told(up)
    assert await up.stop() == 0


async def test_who_cannot_be_started_or_asked_is_told_before_anything_is_measured(up: Up, jobs: Jobs) -> None:
    up.write(audited("v1"))
    await up.start()
    await up.ready(replicas=2)
    container = {"name": "audit", "image": "none"}
    job = {"template": {"spec": {"containers": [container]}}}
    up.write(audited("v2", gate={"job": job}))
    await up.until("the refusal", lambda: up.condition("Ready")["reason"] == "GateInconclusive")
    assert "neither command nor args" in up.condition("Ready")["message"]
    token = {"credentials": {"token": {"name": "nowhere"}}}
    asked = {"url": "http://127.0.0.1:9", "query": "lost", **token}
    up.write(audited("v2", gate={"job": None, "prometheus": asked}))
    await up.until("the other one", lambda: "its Prometheus" in up.condition("Ready")["message"])
    assert "Secret nowhere of the file, which is not there" in up.condition("Ready")["message"]
    assert await audits(jobs) == []
    assert await up.stop() == 0


async def _number(jobs: Jobs, number: int) -> list[int]:
    """Wait until so many have begun to count."""
    deadline = time.monotonic() + PATIENCE
    while len(found := await audits(jobs)) < number:
        assert time.monotonic() < deadline, f"{number} audits, but {found}"
        await asyncio.sleep(0.05)
    return found
