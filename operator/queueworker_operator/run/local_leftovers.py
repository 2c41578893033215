"""What a `queueworker up` left behind when it was killed: workers, which end themselves within a bound, and
the directory of its embedded broker."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from queueworker_operator.act.processes import started_at
from worker_runtime.brokers.nats.server import EmbeddedNats
from worker_runtime.brokers.redis.server import EmbeddedRedis

#: Seconds that they get before they are killed. They were told to stop when their parent died.
PATIENCE = 60.0
#: How the directories of embedded brokers are named.
EMBEDDED_PREFIXES = (EmbeddedRedis.prefix, EmbeddedNats.prefix)


def leftovers(state: dict[str, Any]) -> list[tuple[int, int]]:
    """Process id and start of each worker in an old up.json that still runs."""
    found = []
    resources = [_mapping(one).get("processes") for one in _mapping(state.get("resources")).values()]
    for rows in (*resources, *_mapping(state.get("orphans")).values()):
        for process in rows if isinstance(rows, list) else ():
            pid, started = _mapping(process).get("pid"), _mapping(process).get("started")
            if isinstance(pid, int) and started and started_at(pid) == started:
                found.append((pid, started))
    return found


def _mapping(value: Any) -> dict[str, Any]:
    """Somebody may have written into the file: what is not as expected tells nothing."""
    return value if isinstance(value, dict) else {}


def forget_embedded(state: dict[str, Any]) -> None:
    """Remove what embedded brokers of an old up.json left on disk. They ended with their `up`."""
    kept = state.get("embedded_directories")
    for directory in kept if state.get("state") != "stopped" and isinstance(kept, list) else ():
        if isinstance(directory, str) and Path(directory).name.startswith(EMBEDDED_PREFIXES):
            shutil.rmtree(directory, ignore_errors=True)


async def outlive(left: list[tuple[int, int]], say: Callable[[str], None]) -> None:
    """Wait for them to end; kill what is still there after PATIENCE seconds."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while left and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.2)
        left = [(pid, started) for pid, started in left if started_at(pid) == started]
    for pid, _ in left:
        say(f"the worker process {pid} of an earlier queueworker up did not end and is killed")
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
