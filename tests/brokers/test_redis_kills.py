"""SIGKILL of a real worker process at every step of receiving: others finish the work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.fault_proxy import Fault, FaultProxy, Seen
from tests.brokers.site import CALM, PATIENCE, Site, receive, settle
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, Outcome

_ROOT = Path(__file__).parents[2]
#: What is killed when: the answer to this command is there, or the command after it has come.
_STEPS = ("BLMOVE", "take", "reserve", "claim", "settle")


class Child:
    def __init__(self, url: str, namespace: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.brokers.child", url, namespace],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.kill()


@pytest.mark.parametrize("reply", ["lost", "delivered"])
@pytest.mark.parametrize("step", _STEPS)
async def test_killed_right_after(
    step: str, reply: str, standalone: Site, redis_server: EmbeddedRedis, children: list[Child]
) -> None:
    payloads = [b'{"n":%d}' % n for n in range(5)]
    killed = asyncio.Event()
    armed = step in ("BLMOVE", "take")
    reached = False

    def kill() -> Fault:
        children[0].kill()
        killed.set()
        return Fault.CUT_AFTER

    def before(seen: Seen) -> Fault:
        if reached and not killed.is_set():
            kill()
            return Fault.CUT_BEFORE
        return Fault.PASS

    def after(seen: Seen) -> Fault:
        nonlocal reached
        got_work = seen.reply not in (None, [b"empty"]) and not isinstance(seen.reply, Exception)
        if seen.name == step and got_work and not killed.is_set():
            reached = True
            if reply == "lost":
                return kill()
        return Fault.PASS

    async with FaultProxy(redis_server.port, before, after) as proxy:
        if not armed:
            await standalone.publish(*payloads)
        children.append(Child(proxy.url, standalone.namespace))
        if armed:
            async with asyncio.timeout(PATIENCE):
                while "BLMOVE" not in proxy.names():  # noqa: ASYNC110 - the child is another process
                    await asyncio.sleep(0.02)
            await standalone.publish(*payloads)
        await asyncio.wait_for(killed.wait(), PATIENCE)
        assert children[0].process.returncode == -signal.SIGKILL

    reading = await standalone.read()
    assert reading.ready + reading.private + reading.success == len(payloads)
    renewer, consumer = standalone.renewer(timing=CALM), standalone.consumer("other", "r2", CALM)
    seen: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while (await standalone.read()).success < len(payloads):
            await renewer.recover()
            reading = await standalone.read()
            if reading.ready or reading.staging:
                deliveries = (await receive(consumer)).deliveries
                seen += [one.payload for one in deliveries]
                assert set(await settle(consumer, deliveries, Action.COMMIT)) == {Outcome.COMMITTED}
    assert seen == ([] if step == "settle" else payloads)
    reading = await standalone.read()
    assert (reading.private, reading.processing, len(reading.reservations)) == (0, 0, 0)
    assert reading.total == len(payloads)
    for row in reading.ledger.values():
        assert row.claimed == row.committed + row.rejected + row.released + row.taken_over
