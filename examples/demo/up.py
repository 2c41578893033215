"""`queueworker up` on a copy of a resource, from its start to the end of its drain."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.picture import NAME, is_ready
from queueworker_operator.act.processes import end_with_parent

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS, STOP_SECONDS = 45.0, 45.0


class DemoFailed(Exception):
    """The demo cannot go on; the text says where the reason can be read."""


@dataclass(frozen=True)
class Up:
    """One that runs. Its file is edited as a person would."""

    process: asyncio.subprocess.Process
    resource: Path
    state_dir: Path
    log: Path

    async def apply(self, text: str) -> None:
        self.resource.write_text(text)

    def state(self) -> dict[str, Any]:
        """What it says of itself; empty before it has written anything."""
        try:
            state: dict[str, Any] = json.loads((self.state_dir / "up.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return state

    def status(self) -> dict[str, Any]:
        """Of the resource, as on a cluster."""
        status: dict[str, Any] = self.state().get("resources", {}).get(NAME, {}).get("status", {})
        return status

    async def until(self, what: str, seconds: float, done: Callable[[], bool]) -> None:
        """Wait for `done()`. Raises DemoFailed with what was waited for, and the log, when it does not
        come."""
        deadline = time.monotonic() + seconds
        while not done():
            if self.process.returncode is not None:
                raise DemoFailed(
                    f"queueworker up ended with exit code {self.process.returncode} while waiting for {what}."
                    f"\n{_tail(self.log)}"
                )
            if time.monotonic() > deadline:
                raise DemoFailed(f"{what} did not come within {seconds:.0f} s.\n{_tail(self.log)}")
            await asyncio.sleep(0.1)

    async def first_workers(self) -> str:
        """Wait for them; the URL of the broker."""
        await self.until("the first workers", START_SECONDS, lambda: is_ready(self.status()))
        return str(self.state()["broker_url"])


@asynccontextmanager
async def running(work: Path, source: Path, environment: Mapping[str, str]) -> AsyncIterator[Up]:
    """Started in the directory `work` on a copy of `source`, drained at the end. Raises DemoFailed when the
    drain fails."""
    resource, state_dir, log = work / source.name, work / "state", work / "up.log"
    shutil.copy(source, resource)
    command = [
        *(sys.executable, "-m", "worker_runtime.cli.main", "up"),
        *("-f", str(resource), "--state-dir", str(state_dir)),
    ]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent(os.getpid()),
        )
    try:
        yield Up(process, resource, state_dir, log)
    finally:
        code = await _stop(process)
    if code != 0:
        raise DemoFailed(f"queueworker up ended with exit code {code} instead of 0.\n{_tail(log)}")


async def _stop(process: asyncio.subprocess.Process) -> int:
    """Ctrl-C, as a person would; kill only what does not obey."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
    return process.returncode or 0


def _tail(log: Path, lines: int = 25) -> str:
    return "The last lines of its log:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
