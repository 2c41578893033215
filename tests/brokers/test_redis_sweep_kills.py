"""SIGKILL of the real sweep command between any two of its steps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers.fault_proxy import Fault, FaultProxy, Seen
from tests.brokers.site import PATIENCE, Site, receive, settle
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action

# What dies is ours, at the same steps on every server.
pytestmark = pytest.mark.any_server

_ROOT = Path(__file__).parents[2]
#: Three windows of a sweep: where in its life the command is killed, by what it has sent.
_STEPS = [("LLEN", 1), ("LRANGE", 1), ("MGET", 2), ("sweep", 1), ("sweep", 2), ("sweep", 3)]


def command(url: str, namespace: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "worker_runtime.cli.main", *arguments, "--json"],
        cwd=_ROOT,
        env={**os.environ, "QUEUEWORKER_BROKER_URL": url, "QUEUEWORKER_NAMESPACE": namespace},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("name", "number"), _STEPS, ids=lambda value: str(value))
async def test_a_killed_sweep_leaves_every_message_in_one_place(
    name: str, number: int, applied: bool, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    payloads = [b"%d" % n for n in range(500)]
    await standalone.publish(*payloads)
    consumer = standalone.consumer()
    await settle(consumer, (await receive(consumer, 1000)).deliveries, Action.REJECT)
    met = 0
    killed = asyncio.Event()
    sweeps: list[subprocess.Popen[bytes]] = []

    def rule(seen: Seen) -> Fault:
        nonlocal met
        met += seen.name == name
        if met < number or killed.is_set():
            return Fault.PASS
        sweeps[0].send_signal(signal.SIGKILL)
        killed.set()
        return Fault.CUT_AFTER

    def before(seen: Seen) -> Fault:
        choice = Fault.PASS if applied else rule(seen)
        return Fault.CUT_BEFORE if choice is Fault.CUT_AFTER else choice

    def after(seen: Seen) -> Fault:
        return rule(seen) if applied else Fault.PASS

    async with FaultProxy(redis_server.port, before, after) as proxy:
        sweeps.append(command(proxy.url, standalone.namespace, "retry", "q"))
        await asyncio.wait_for(killed.wait(), PATIENCE)
        assert await asyncio.to_thread(sweeps[0].wait, PATIENCE) == -signal.SIGKILL
        sweeps[0].communicate()
    reading = await standalone.read()
    moved = (number - 1 + applied) * 200 if name == "sweep" else 200 if name == "MGET" else 0
    moved = min(moved, 500)
    assert (reading.ready, reading.failed, reading.private) == (moved, 500 - moved, 0)

    again = command(standalone.url, standalone.namespace, "retry", "q")
    output, errors = await asyncio.to_thread(again.communicate, None, PATIENCE)
    assert again.returncode == 0, errors
    assert json.loads(output)["retried"] == 500 - moved
    deliveries = (await receive(consumer, 1000)).deliveries
    assert [one.payload for one in deliveries] == payloads, "each once, in order"
    assert {one.attempts for one in deliveries} == {1}
