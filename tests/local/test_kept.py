"""The request Rollback: back to a revision that is kept, also after `up` was killed."""

from __future__ import annotations

import signal

from tests.local.running import Jobs, Up, resource, running, until

BACK = {"id": "1", "action": "Rollback"}


async def test_a_rollback_to_a_kept_revision_stays_until_it_is_taken_back(up: Up, jobs: Jobs) -> None:
    up.write(resource(version="v1"))
    await up.start()
    first = await up.ready()
    up.write(resource(version="v2"))
    second = await up.ready(generation=2)
    assert up.of()["status"]["kept"] == [second, first]

    up.write(resource(version="v2", request=BACK))
    await up.until("the rollback", lambda: up.condition("Ready")["reason"] == "RolledBack")
    assert up.stable() == first
    assert not up.pids(revision=second)
    assert [one for one in up.events() if one in ("RollbackStarted", "RolledBack")] == [
        "RollbackStarted",
        "RolledBack",
    ]
    await jobs.publish(["old"])
    assert (await jobs.finished(1)).ledger[first].committed == 1

    pids = up.pids()
    up.signal(signal.SIGKILL)
    await up.wait()
    await until("the workers to end by themselves", lambda: not any(map(running, pids)))
    await up.start()
    await up.until("what it was", lambda: up.condition("Ready")["reason"] == "RolledBack")
    assert {row["revision"] for row in up.of()["processes"]} == {first}

    up.write(resource(version="v2", request={"id": "2", "action": "Retry"}))
    await up.until("the retry", lambda: up.stable() == second)
    await up.ready()
    await jobs.publish(["new"])
    assert (await jobs.finished(2)).ledger[second].committed == 1
    assert await up.stop() == 0


async def test_a_revision_that_is_not_kept_is_refused(up: Up) -> None:
    up.write(resource())
    await up.start()
    stable = await up.ready()
    up.write(resource(request=BACK | {"revision": "h1-00000000-p1"}))
    await up.until("the answer", lambda: "RequestIgnored" in up.events())
    assert f"is not kept for this broker (kept: {stable})" in up.output
    assert await up.ready() == stable
    assert await up.stop() == 0
