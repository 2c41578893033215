"""The request Rollback: back to a revision that is kept, also after `up` was killed."""

from __future__ import annotations

import signal

from tests.local.running import Jobs, Up, resource, running, until
from tests.local.test_plugin import plugin
from tests.local.test_rollback import stage

BACK = {"id": "1", "action": "Rollback"}


async def test_a_rollback_to_a_kept_revision_stays_until_it_is_taken_back(up: Up, jobs: Jobs) -> None:
    """Its fence does not stay: nobody of the revision is left."""
    short = {"keepFencesSeconds": 1}
    up.write(resource(version="v1", rollback=short))
    await up.start()
    first = await up.ready()
    up.write(resource(version="v2", rollback=short))
    second = await up.ready(generation=2)
    assert up.of()["status"]["kept"] == [second, first]
    _, shown, _ = await plugin("get", "work", "--local", str(up.state_dir))
    assert f"kept to go back to: {first}" in shown

    up.write(resource(version="v2", request=BACK, rollback=short))
    await up.until("the rollback", lambda: up.condition("Ready")["reason"] == "RolledBack")
    assert up.stable() == first
    assert not up.pids(revision=second)
    assert [one for one in up.events() if one in ("RollbackStarted", "RolledBack")] == [
        "RollbackStarted",
        "RolledBack",
    ]
    await up.until("the end of the fence", lambda: "FenceForgotten" in up.events())
    assert (await jobs.read()).fences == {}
    await jobs.publish(["old"])
    assert (await jobs.finished(1)).ledger[first].committed == 1

    pids = up.pids()
    up.signal(signal.SIGKILL)
    await up.wait()
    await until("the workers to end by themselves", lambda: not any(map(running, pids)))
    await up.start()
    await up.until("what it was", lambda: up.condition("Ready")["reason"] == "RolledBack")
    assert {row["revision"] for row in up.of()["processes"]} == {first}

    up.write(resource(version="v2", request={"id": "2", "action": "Retry"}, rollback=short))
    await up.until("the retry", lambda: up.stable() == second)
    await up.ready()
    await jobs.publish(["new"])
    assert (await jobs.finished(2)).ledger[second].committed == 1
    assert await up.stop() == 0


async def test_up_killed_on_the_way_to_a_kept_revision_still_goes_there(up: Up, jobs: Jobs) -> None:
    up.write(resource(version="v1"))
    await up.start()
    first = await up.ready()
    up.write(resource(version="v2"))
    second = await up.ready(generation=2)
    await jobs.publish(["held"], seconds=-1)
    await jobs.begun(1)
    up.write(resource(version="v2", request=BACK))
    await up.until("the way out", lambda: stage(up) == "DrainOutstanding")
    assert up.stable() == second

    pids = up.pids()
    up.signal(signal.SIGKILL)
    await up.wait()
    await jobs.let_go()
    await until("the workers to end by themselves", lambda: not any(map(running, pids)))
    await up.start()
    await up.until("the rollback", lambda: up.condition("Ready")["reason"] == "RolledBack")
    assert up.stable() == first
    assert {row["revision"] for row in up.of()["processes"]} == {first}
    assert (await jobs.finished(1)).private == 0
    assert await up.stop() == 0
