"""A `queueworker up` that really runs, its file, its broker, and how to wait for what it does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from redis.asyncio import Redis

from tests.local.jobs import BEGUN, DONE
from worker_runtime.brokers.base import QueueReading
from worker_runtime.brokers.connect import broker_from_url

ROOT = Path(__file__).resolve().parent.parent.parent
#: An upper bound, in seconds, for whatever is waited for.
PATIENCE = 120.0
NAMESPACE = "utopia-queue"


def resource(name: str = "work", version: str = "v1", **spec: Any) -> dict[str, Any]:
    """A QueueWorker of the test app. `env` adds variables, all else goes into the spec."""
    # Long: a worker that gets no turn for a while on a busy machine is not dead.
    env = {"VERSION": version, "QUEUEWORKER_EXPIRY_SECONDS": "60", **spec.pop("env", {})}
    container = {
        "name": "worker",
        "image": "none",
        "args": ["run", "tests.local.jobs:app"],
        "env": [
            {"name": key, "value": value} if isinstance(value, str) else {"name": key, "valueFrom": value}
            for key, value in env.items()
        ],
    }
    container |= spec.pop("container", {})
    return {
        "apiVersion": "queueworker.dev/v1alpha1",
        "kind": "QueueWorker",
        "metadata": {"name": name},
        "spec": {
            "queue": {"name": "work"},
            "broker": {"redis": {"secretRef": {"name": "nowhere"}}},
            "coroutines": 2,
            "prefetch": 10,
            "replicas": 1,
            "shutdownSeconds": 20,
            # Most tests ask what follows when a worker is ready, not for how long it has to be.
            "minReadySeconds": 0,
            "template": {"spec": {"containers": [container]}},
            **spec,
        },
    }


#: Variables for workers whose work others have to take over soon after a kill.
EXPIRES_SOON = {"QUEUEWORKER_EXPIRY_SECONDS": "3"}


def running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_directory(path: str) -> bool:
    return Path(path).is_dir()


async def until(what: str, true: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until `true()` is; returns what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        await asyncio.sleep(0.03)
    return found


class Up:
    """One file and the `queueworker up` processes that work on it, one after the other."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.file = directory / "workers.yaml"
        self.state_dir = directory / "state"
        self.log = directory / "up.log"
        self.arguments = arguments
        self.process: asyncio.subprocess.Process | None = None

    def write(self, *documents: dict[str, Any]) -> None:
        self.file.write_text(yaml.safe_dump_all(documents))

    def write_nothing(self) -> None:
        """A file that asks for no QueueWorker."""
        self.file.write_text("---\n")

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "worker_runtime.cli.main", "up", "-f", str(self.file)),
                *("--state-dir", str(self.state_dir), *self.arguments),
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def refused(self) -> tuple[int, str]:
        """Start one that is expected to end at once: exit code and output."""
        await self.start()
        assert self.process is not None
        code = await asyncio.wait_for(self.process.wait(), PATIENCE)
        return code, self.output

    # -- what it says ------------------------------------------------------------------------------

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def state(self) -> dict[str, Any]:
        """up.json, if it is that of the process that runs now."""
        try:
            state: dict[str, Any] = json.loads((self.state_dir / "up.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        mine = self.process is not None and state.get("pid") == self.process.pid
        return state if mine else {}

    def of(self, name: str = "work") -> dict[str, Any]:
        found: dict[str, Any] = self.state.get("resources", {}).get(name, {})
        return found

    def condition(self, type_: str, name: str = "work") -> dict[str, Any]:
        conditions = self.of(name).get("status", {}).get("conditions", [])
        return next(
            (c for c in conditions if c["type"] == type_), {"status": "", "reason": "", "message": ""}
        )

    def stable(self, name: str = "work") -> str:
        revision: str = self.of(name).get("status", {}).get("stable", {}).get("revision", "")
        return revision

    def pids(self, name: str = "work", revision: str = "") -> set[int]:
        rows = self.of(name).get("processes", [])
        return {row["pid"] for row in rows if not revision or row["revision"] == revision}

    def events(self, name: str = "work") -> list[str]:
        return [event["reason"] for event in self.of(name).get("events", [])]

    # -- waiting -----------------------------------------------------------------------------------

    async def until(self, what: str, true: Callable[[], Any]) -> Any:
        try:
            return await until(what, true)
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{json.dumps(self.state, indent=1)}\n{self.output[-4000:]}"
            ) from None

    async def ready(self, name: str = "work", generation: int = 0, replicas: int | None = None) -> str:
        """Wait until it serves that generation (or a later one). Returns the stable revision."""

        def is_so() -> bool:
            status = self.of(name).get("status", {})
            return (
                self.condition("Ready", name)["status"] == "True"
                and status.get("observedGeneration", 0) >= generation
                and (replicas is None or status.get("readyReplicas") == replicas)
            )

        await self.until(f"{name} ready at generation {generation}", is_so)
        return self.stable(name)

    # -- the end -----------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def wait(self) -> int:
        assert self.process is not None
        try:
            return await asyncio.wait_for(self.process.wait(), PATIENCE)
        except TimeoutError:
            raise AssertionError(f"it did not end within {PATIENCE:g} s\n{self.output[-4000:]}") from None

    async def stop(self) -> int:
        """Ctrl-C."""
        self.signal(signal.SIGINT)
        return await self.wait()

    async def clean_up(self) -> None:
        """Leave nothing behind, however the test ended."""
        pids = {pid for name in self.state.get("resources", {}) for pid in self.pids(name)}
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


class Jobs:
    """Publishes jobs and looks at what became of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Redis = Redis.from_url(url, decode_responses=True)
        broker = broker_from_url(url, NAMESPACE)
        self._publisher, self._inspector = broker.publisher(), broker.inspector()

    async def publish(self, ids: Iterable[str], seconds: float = 0.0) -> None:
        payloads = [json.dumps({"id": id_, "seconds": seconds}).encode() for id_ in ids]
        await self._publisher.publish_many("work", payloads)

    async def let_go(self) -> None:
        """End the handlers that wait."""
        await self.store.set("test:go", 1)

    async def begun(self, number: int) -> None:
        """Wait until that many handlers have begun."""
        await self._until(f"{number} handlers begun", lambda n: n >= number, lambda: self.store.scard(BEGUN))

    async def claimed(self, revision: str, number: int) -> None:
        """Wait until workers of that revision have taken that many."""

        def good(reading: QueueReading) -> bool:
            row = reading.ledger.get(revision)
            return row is not None and row.claimed >= number

        await self._until(f"{number} taken by {revision}", good, self.read)

    async def finished(self, number: int) -> QueueReading:
        """Wait until that many different jobs are done and settled. Returns what the broker says then."""
        await self._until(f"{number} jobs done", lambda n: n >= number, lambda: self.store.hlen(DONE))
        await self._until("everything settled", lambda r: r.ready + r.private == 0, self.read)
        return await self.read()

    async def done(self) -> dict[str, int]:
        """id -> how often it was finished."""
        done: Any = await self.store.hgetall(DONE)
        return {key: int(value) for key, value in done.items()}

    async def read(self) -> QueueReading:
        return await self._inspector.read("work")

    async def close(self) -> None:
        await self._publisher.close()
        await self._inspector.close()
        await self.store.aclose()

    async def _until(self, what: str, good: Callable[[Any], bool], ask: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not good(found := await ask()):
            assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE:g} s, but {found}"
            await asyncio.sleep(0.05)
