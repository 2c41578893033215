"""Versions whose workers start well and die a moment later: they take over from nobody."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.local.running import EXPIRES_SOON, PATIENCE, Jobs, Up, resource
from tests.local.test_canary import changing, numbers, short, step
from tests.local.test_plugin import plugin
from tests.local.test_rollback import load, stage

#: After its first look at readiness, and before minReadySeconds are over.
DIES = EXPIRES_SOON | {"DIES_AFTER": "2"}


def restarts(up: Up, stable: str) -> int:
    """Of all revisions but the stable one."""
    rows: list[dict[str, Any]] = up.of().get("status", {}).get("revisions", [])
    return sum(row["restarts"] for row in rows if row["name"] != stable)


async def test_a_version_that_dies_soon_after_its_start_never_takes_over(up: Up, jobs: Jobs) -> None:
    up.write(resource(version="v1", replicas=2, env=EXPIRES_SOON, minReadySeconds=4))
    await up.start()
    stable = await up.ready(replicas=2)
    async with load(jobs) as ids:
        up.write(resource(version="v2", replicas=2, env=DIES, minReadySeconds=4))
        await up.until("two deaths", lambda: restarts(up, stable) >= 2)
        assert up.stable() == stable
        assert numbers(up)[stable] == 2, "nobody was told to go"
        up.write(resource(version="v3", replicas=2, env=EXPIRES_SOON, minReadySeconds=4))
        await up.ready(generation=3, replicas=2)
    await jobs.finished(len(ids))
    assert set(await jobs.done()) == set(ids)
    assert await up.stop() == 0


async def test_a_canary_that_dies_in_its_pause_is_not_promoted(up: Up, jobs: Jobs) -> None:
    steps = (short(4),)
    up.write(changing("v1", *steps))
    await up.start()
    stable = await up.ready(replicas=2)
    up.write(changing("v2", *steps, env=DIES))
    await up.until("the pause", lambda: (stage(up), step(up)) == ("Paused", "2/2"))
    await up.until("two deaths", lambda: restarts(up, stable) >= 2)
    assert (up.stable(), step(up)) == (stable, "2/2")
    # Nobody is shown between a death and the next start.
    async with asyncio.timeout(PATIENCE):
        while "restarts" not in (await plugin("get", "--local", str(up.state_dir)))[1]:
            pass
    up.write(changing("v3", *steps))
    await up.until("the promotion", lambda: up.stable() not in ("", stable))
    assert await up.stop() == 0
