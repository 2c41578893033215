"""The proof of emptiness over scripted readings and a clock that only the test moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from worker_runtime.brokers.base import (
    BrokerRefusedError,
    Inspector,
    LedgerRow,
    QueueReading,
    Role,
    Whereabouts,
)
from worker_runtime.brokers.emptiness import Emptiness, verify_empty

EMPTY = QueueReading(
    "q", 5, 1.0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, ledger={"r1": LedgerRow(9, 9)}, role=Role.PRIMARY, server="a:1"
)


class Script(Inspector):
    """Hands out readings in order, the last for ever; sleeping moves the clock."""

    def __init__(self, *readings: QueueReading) -> None:
        self._readings = list(readings)
        self.now = 100.0
        self.reads = 0

    async def read(self, queue: str) -> QueueReading:
        self.reads += 1
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]

    async def find(self, queue: str, pid: str, scan: int = 0) -> Whereabouts:
        raise AssertionError("nobody looks for a message")

    async def close(self) -> None: ...

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def verify(self, quiet: float, limit: float | None = None) -> Emptiness:
        return await verify_empty(self, "q", quiet, limit, lambda: self.now, self.sleep)


def claimed(count: int) -> QueueReading:
    return replace(EMPTY, ledger={"r1": LedgerRow(count, count)})


async def test_one_reading_is_enough_without_a_quiet_time() -> None:
    script = Script(EMPTY)
    assert (await script.verify(0)).empty
    assert script.reads == 1


async def test_it_has_to_stay_empty_for_the_whole_time() -> None:
    script = Script(EMPTY)
    found = await script.verify(2)
    assert found.empty
    assert (found.quiet_for, script.now) == (2.0, 102.0)
    assert found.readings == script.reads == 9


async def test_movement_starts_the_time_anew() -> None:
    script = Script(EMPTY, EMPTY, EMPTY, claimed(10), claimed(10), claimed(11))
    found = await script.verify(2)
    assert found.empty
    assert script.now == 100 + 5 * 0.25 + 2


@pytest.mark.parametrize("place", ["staging", "reserved", "owned", "delayed"])
async def test_anything_private_ends_it_at_once(place: str) -> None:
    something: dict[str, Any] = {place: 1}
    script = Script(EMPTY, EMPTY, replace(EMPTY, **something), EMPTY)
    found = await script.verify(60)
    assert not found.empty
    assert script.reads == 3
    assert "1 " in found.why


async def test_a_queue_that_is_never_still_is_given_up() -> None:
    script = Script(*(claimed(n) for n in range(1000)))
    found = await script.verify(2, limit=10)
    assert not found.empty
    assert "never still for 2 s" in found.why
    assert script.now == pytest.approx(110, abs=0.5)


@pytest.mark.parametrize(("role", "text"), [(Role.REPLICA, "replica"), (Role.UNKNOWN, r"\+role")])
async def test_only_a_primary_proves_anything(role: Role, text: str) -> None:
    with pytest.raises(BrokerRefusedError, match=text):
        await Script(EMPTY, EMPTY, replace(EMPTY, role=role)).verify(5)


async def test_another_server_in_between_starts_the_time_anew() -> None:
    script = Script(EMPTY, EMPTY, replace(EMPTY, server="b:2"))
    assert (await script.verify(2)).empty
    assert script.now == 100 + 2 * 0.25 + 2
