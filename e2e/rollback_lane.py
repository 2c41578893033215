"""One lane of `python -m e2e rollbacks`: a `queueworker up`, its queue, its load, the kills it suffers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import yaml
from redis.asyncio import Redis
from redis.exceptions import RedisError

from e2e.rollback_jobs import QUEUE, RECORD
from worker_runtime.brokers.base import BrokerError, QueueReading
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.chaos.footprint import footprint
from worker_runtime.chaos.plan import TIMING
from worker_runtime.chaos.record import read_account
from worker_runtime.chaos.verdict import Published, Verdict, judge

_ROOT = Path(__file__).resolve().parent.parent
_NAME = "work"
#: Workers that serve between two rounds.
_WORKERS = 2
#: Messages that are published together, and seconds until the next ones.
_TOGETHER, _EVERY = 5, 0.1
_LOOK = 0.05
#: Kills of one round at most: workers that are killed all the time are started again less and less often.
_KILLS = 4
#: Seconds that `up` has to drain at the end.
_TO_STOP = 60.0
#: The guarded way of a revision out of service.
_GUARDED = ("StopReceiving", "DrainOutstanding", "RecoverReservations", "VerifyRegistryEmpty", "Retire")
_STEPS: list[dict[str, Any]] = [
    {"setCanaryScale": {"replicas": 1}},
    {"setPrefetch": 4},
    {"pause": {"durationSeconds": 1}},
    {"setPrefetch": 20},
    {"pause": {}},
]


class Kind(StrEnum):
    """What is taken back in a round."""

    HALF_WAY = "half way"
    CANARY = "a canary"
    PROMOTED = "after its promotion"
    TO_NOBODY = "to no worker at all"


class StuckError(Exception):
    """What was waited for did not happen. The text has what `up` says of itself."""


@dataclass(slots=True)
class Tally:
    """What came of the rounds of one lane."""

    ended: int = 0
    #: Rounds in which a revision was seen to leave by the guarded way.
    guarded: int = 0
    #: What did not end, and what was left in a registry that nobody reads.
    stuck: list[str] = field(default_factory=list)
    stranded: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)


class Lane:
    """`patience` in seconds is how long one step of a round may take; `pause` how long it is between two
    kills of a round, on the average. The clock is monotonic."""

    def __init__(
        self,
        number: int,
        directory: Path,
        url: str,
        chance: random.Random,
        *,
        patience: float,
        pause: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number, self.tally = number, Tally()
        self._directory, self._url, self._chance = directory, url, chance
        self._patience, self._pause, self._clock = patience, pause, clock
        self._namespace = f"lane-{number}"
        self._process: asyncio.subprocess.Process | None = None
        self._published = Published()
        self._seen: set[str] = set()
        self._stable = ""
        #: The operator is killed only on the way back: a new one does not know what served before.
        self._back = False
        self._kills_left = 0
        self._over = asyncio.Event()

    # -- the life of a lane --------------------------------------------------------------------------

    async def run(self, rounds: int, done: Callable[[], None]) -> Verdict | None:
        """So many rounds under load and kills; `done` hears of each. None where one did not end."""
        self._directory.mkdir(parents=True)
        self._write("stable")
        await self._start()
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._until("the first workers", self._settled)
            self._stable = self._status()["stable"]["revision"]
            tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._storm())]
            for number in range(rounds):
                await self._round(number)
                done()
            self._over.set()
            await asyncio.gather(*tasks)
            return await self._verdict()
        except StuckError as error:
            self.tally.stuck.append(str(error))
            return None
        finally:
            self._over.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop()

    async def _round(self, number: int) -> None:
        kind = self._chance.choice(list(Kind))
        self._seen.clear()
        self._kills_left = self._chance.randint(1, _KILLS)
        self._write(f"v{number}", canary=kind is Kind.CANARY)
        await self._until(f"round {number}: the change", lambda: self._target() not in ("", self._stable))
        if kind in (Kind.PROMOTED, Kind.TO_NOBODY):
            await self._until(f"round {number}: the promotion", self._promoted)
        else:
            await asyncio.sleep(self._chance.random() * 3)
        nobody = kind is Kind.TO_NOBODY
        self._back = True
        self._write("stable", workers=0 if nobody else _WORKERS)
        await self._until(f"round {number}, {kind}: Idle", lambda: self._settled(0 if nobody else _WORKERS))
        self._back = False
        if nobody:
            await self._nothing_is_stranded(number)
            self._write("stable")
            await self._until(f"round {number}: workers again", self._settled)
        self.tally.ended += 1
        self.tally.kinds[kind] += 1
        self.tally.guarded += bool(self._seen & set(_GUARDED))

    async def _nothing_is_stranded(self, number: int) -> None:
        reading = await self._read()
        if reading.private - reading.delayed:
            self.tally.stranded.append(
                f"round {number}: without a worker {reading.reserved} reserved, {reading.owned} owned and "
                f"{reading.staging} staged messages are left"
            )

    async def _verdict(self) -> Verdict:
        """After the last kill: everything is handled, then the books are compared."""
        await self._until("workers at the end", self._settled)
        until, reading = self._clock() + self._patience, await self._read()
        while reading.ready + reading.private:
            if self._clock() > until:
                self.tally.stranded.append(f"at the end: {reading.ready} ready, {reading.private} private")
                break
            await asyncio.sleep(_LOOK)
            reading = await self._read()
        async with footprint(self._url, self._namespace) as all_keys:
            # Fences outlive the revision that they keep out.
            keys = [key for key in await all_keys.keys() if ".fence." not in key]
        with (self._directory / "record").open() as lines:
            return judge(read_account(lines), self._published, reading, keys)

    # -- the file, and what `up` says ------------------------------------------------------------------

    def _write(self, version: str, *, workers: int = _WORKERS, canary: bool = False) -> None:
        values = {"VERSION": version, RECORD: str(self._directory / "record")}
        container = {
            "name": "worker",
            "image": "none",
            "args": ["run", "e2e.rollback_jobs:app"],
            "env": [{"name": key, "value": value} for key, value in values.items()],
        }
        spec: dict[str, Any] = {
            "queue": {"name": QUEUE},
            "broker": {"redis": {"url": self._url, "keyNamespace": self._namespace}},
            "coroutines": 4,
            "prefetch": 20,
            "minReadySeconds": 0,
            "replicas": workers,
            "shutdownSeconds": 20,
            "rollback": {"quietSeconds": 3},
            "template": {"spec": {"containers": [container]}},
        }
        if canary:
            spec["rollout"] = {"strategy": "Canary", "steps": _STEPS}
        body = {"apiVersion": "queueworker.dev/v1alpha1", "kind": "QueueWorker", "metadata": {"name": _NAME}}
        new = self._directory / "new.yaml"
        new.write_text(yaml.safe_dump(body | {"spec": spec}))
        new.replace(self._directory / "workers.yaml")

    def _state(self) -> dict[str, Any]:
        """What the `up` that runs now says of the resource."""
        try:
            state: dict[str, Any] = json.loads((self._directory / "state" / "up.json").read_text())
        except (OSError, ValueError):
            return {}
        if self._process is None or state.get("pid") != self._process.pid:
            return {}
        found: dict[str, Any] = state.get("resources", {}).get(_NAME, {})
        return found

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._state().get("status", {})
        return found

    def _target(self) -> str:
        return str(self._status().get("rollout", {}).get("target", ""))

    def _promoted(self) -> bool:
        stable = self._status().get("stable", {}).get("revision", "")
        return stable not in ("", self._stable) and self._ready()

    def _ready(self) -> bool:
        return any(
            one["type"] == "Ready" and one["status"] == "True" for one in self._status().get("conditions", ())
        )

    def _settled(self, workers: int = _WORKERS) -> bool:
        """The stable revision alone, at its number, and Idle."""
        state, status = self._state(), self._status()
        rollout, serves = status.get("rollout", {}), status.get("stable", {}).get("revision", "")
        rows, name = state.get("processes", ()), self._stable or serves
        return (
            rollout.get("stage") == "Idle"
            and rollout.get("target") == name == serves
            and status.get("readyReplicas", 0) == workers
            and all(row["revision"] == name and not row["stopping"] for row in rows)
            and self._ready()
        )

    async def _until(self, what: str, true: Callable[[], bool]) -> None:
        until = self._clock() + self._patience
        while not true():
            self._seen.add(self._status().get("rollout", {}).get("stage", ""))
            if self._clock() > until:
                raise StuckError(
                    f"lane {self.number}, {what}: not within {self._patience:g} s; `up` says "
                    f"{json.dumps(self._status().get('conditions'))}; see {self._directory}"
                )
            await asyncio.sleep(_LOOK)

    # -- load and harm -------------------------------------------------------------------------------

    async def _publish(self) -> None:
        publisher = broker_from_url(self._url, self._namespace, TIMING).publisher()
        number = 0
        while not self._over.is_set():
            some = range(number, number := number + _TOGETHER)
            try:
                pids = await publisher.publish_many(QUEUE, [msgspec.json.encode({"n": n}) for n in some])
            except BrokerError:
                self._published.doubtful.update(some)
            else:
                self._published.confirmed.update(zip(some, pids, strict=True))
            await asyncio.sleep(_EVERY)
        await publisher.close()

    async def _storm(self) -> None:
        harms = {"worker": self._kill_a_worker, "connections": self._cut, "operator": self._kill_the_operator}
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), self._chance.random() * 2 * self._pause)
            if self._over.is_set():
                return
            if self._kills_left <= 0:
                continue
            harm = self._chance.choices(list(harms), weights=(4, 3, 3))[0]
            if await harms[harm]():
                self.tally.kills[harm] += 1
                self._kills_left -= 1

    async def _kill_a_worker(self) -> bool:
        rows = self._state().get("processes", ())
        if not rows:
            return False
        row = self._chance.choice(rows)
        if _started_at(row["pid"]) != row["started"]:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(row["pid"], signal.SIGKILL)
        return True

    async def _cut(self) -> bool:
        """All connections of everybody at once."""
        try:
            async with Redis.from_url(self._url) as client:
                await client.client_kill_filter(_type="normal", skipme=True)
        except (RedisError, OSError):
            return False
        return True

    async def _kill_the_operator(self) -> bool:
        if not self._back or self._process is None:
            return False
        self._process.kill()
        await self._process.wait()
        await self._start()
        return True

    async def _read(self) -> QueueReading:
        inspector = broker_from_url(self._url, self._namespace, TIMING).inspector()
        until = self._clock() + self._patience
        try:
            while True:
                try:
                    return await inspector.read(QUEUE)
                except BrokerError as error:
                    if self._clock() > until:
                        raise StuckError(f"lane {self.number}: the queue cannot be read: {error}") from error
                await asyncio.sleep(_LOOK)
        finally:
            await inspector.close()

    async def _start(self) -> None:
        with (self._directory / "up.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "worker_runtime.cli.main", "up"),
                *("-f", str(self._directory / "workers.yaml"), "--state-dir", str(self._directory / "state")),
                cwd=_ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _stop(self) -> None:
        """Drain; what does not end in time is killed, with its workers."""
        if self._process is None:
            return
        rows = self._state().get("processes", ())
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(self._process.wait(), _TO_STOP)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            for row in rows:
                if _started_at(row["pid"]) == row["started"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(row["pid"], signal.SIGKILL)


def _started_at(pid: int) -> int | None:
    """When a process started, in ticks since boot: a pid may be somebody else's by now."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
