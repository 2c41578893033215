"""The asking end of the nursery: start, signal and reap the workers of a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Self

from worker_runtime.chaos.nursery import PLAN
from worker_runtime.chaos.plan import Plan


class NurseryError(Exception):
    """The process that starts the workers is gone."""


class Nursery:
    """Use it as a context manager; what is still alive at the end is killed."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._process: asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "worker_runtime.chaos.nursery"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {PLAN: self._plan.encode()},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()

    async def start(self, revision: str, name: str, seed: int) -> int:
        """A disposable worker; its process id."""
        return await self._ask(f"work {revision} {name} {seed}")

    async def start_supervised(self, revision: str, name: str) -> int:
        """`queueworker run` as the leader of its own process group; its process id."""
        return await self._ask(f"run {revision} {name}")

    async def killed(self, pid: int, *, group: bool = False) -> bool:
        """SIGKILL it (or its whole group). False when it had ended by itself before."""
        if group:
            # Just forked, it does not lead its group yet, and has started nothing either.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        status = await self._ask(f"reap {pid}")
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    async def ended(self, pid: int) -> int:
        """Wait until it ends by itself; its exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(await self._ask(f"reap {pid}"))

    async def _ask(self, request: str) -> int:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        # Whoever is cancelled meanwhile must not leave its answer to the next.
        return await asyncio.shield(self._exchange(process.stdin, process.stdout, request))

    async def _exchange(
        self, requests: asyncio.StreamWriter, answers: asyncio.StreamReader, request: str
    ) -> int:
        async with self._one_at_a_time:
            requests.write(f"{request}\n".encode())
            answer = await answers.readline()
        if not answer:
            raise NurseryError(f"the process that starts the workers ended before it answered {request!r}")
        return int(answer)
