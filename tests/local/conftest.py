"""A real broker, jobs on it, and a `queueworker up` that leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.local.running import Jobs, Up
from worker_runtime.brokers.redis.server import EmbeddedRedis


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedRedis]:
    async with EmbeddedRedis() as server:
        yield server


@pytest.fixture
async def jobs(broker: EmbeddedRedis) -> AsyncIterator[Jobs]:
    jobs = Jobs(broker.url)
    yield jobs
    await jobs.close()


@pytest.fixture
async def up(tmp_path: Path, broker: EmbeddedRedis) -> AsyncIterator[Up]:
    """One that works on the test's broker, whatever its file says."""
    up = Up(tmp_path, "--broker", broker.url)
    yield up
    await up.clean_up()


@pytest.fixture
async def own_up(tmp_path: Path) -> AsyncIterator[Up]:
    """One that finds its broker by its file."""
    up = Up(tmp_path)
    yield up
    await up.clean_up()
