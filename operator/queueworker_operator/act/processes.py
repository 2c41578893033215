"""Local workers: one group of processes per revision, kept at its number, started again when they die.

Each worker has a session of its own, so Ctrl-C in the terminal reaches only us and a kill reaches all of its
children. A worker gets SIGTERM when we die, whatever the reason.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queueworker_operator.act.launch import Launch, Place, Secrets, launch_of
from queueworker_operator.act.output import copy_output
from queueworker_operator.act.ports import Ports
from queueworker_operator.api.revisions import Revision
from queueworker_operator.plan.facts import WorkerFailure
from worker_runtime.child import describe_exit

#: Seconds before a worker that died is started again: doubled with each death, up to the second.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: A worker that ran this many seconds starts again without what it had been charged before.
GOOD_RUN = 30.0

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_HINTS = {
    2: "Correct the command, the settings or the module in spec.template.",
    3: "That code of a worker of this package means that the broker refused it: see BrokerReachable.",
}


@dataclass(frozen=True, slots=True)
class Host:
    """What all workers of one `queueworker up` share."""

    cwd: Path
    ports: Ports
    #: Shows one line of a worker: name, text.
    show: Callable[[str, str], None]
    #: Says that a worker started or ended: name, text.
    say: Callable[[str, str], None]
    #: Something changed: look again.
    wake: Callable[[], None]
    #: Where each worker's output is kept too; None keeps none.
    log_dir: Path | None = None


@dataclass(slots=True)
class Worker:
    """One worker: its process now, and what became of those before."""

    index: int
    name: str
    process: asyncio.subprocess.Process | None = None
    admin_port: int = 0
    #: When the process started, in the kernel's ticks: with the pid it names one process for good.
    started: int = 0
    #: The same by the loop's clock, in seconds.
    began: float = 0.0
    ready: bool = False
    was_ready: bool = False
    #: Since when it is ready without a break, by the loop's clock.
    ready_since: float = 0.0
    #: Looks in a row that did not find it ready.
    missed: int = 0
    #: Deaths in a row, none followed by a good run.
    deaths: int = 0
    #: Tells it from any other of its name, such as that of an earlier `queueworker up`.
    incarnation: str = field(default_factory=lambda: secrets.token_hex(4))
    #: All deaths but those that were ordered; when the last was, by the loop's clock, and what it left.
    restarts: int = 0
    fell_at: float = 0.0
    how_it_fell: str = ""
    #: Its process is killed because a person asked for a death, which is held against nobody.
    ordered: bool = False
    #: Kept word for word while it goes on failing the same way, since it ends up in conditions.
    failure: WorkerFailure | None = None
    failed_code: int | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process and self.process.returncode is None else None

    @property
    def stopping(self) -> bool:
        return self.stop.is_set()

    def saw(self, ready: bool, time: float) -> bool:
        """Take in one look, begun at that time of the loop's clock. It counts as not ready after three looks
        in a row; true when it changed."""
        before = self.ready
        self.missed = 0 if ready else self.missed + 1
        if ready:
            if not before:
                self.ready_since = time
            self.ready = self.was_ready = True
            self.failure, self.failed_code = None, None
        elif self.missed >= 3:
            self.ready = False
        return self.ready != before


class ProcessGroup:
    """All workers of one revision."""

    def __init__(
        self,
        revision: Revision,
        broker_url: str,
        secrets: Secrets,
        namespace: str,
        created: float,
        host: Host,
    ) -> None:
        """Raises TemplateRefusedError when no process can be made of the template."""
        self.revision, self.broker_url, self.created = revision, broker_url, created
        self.desired = 0
        #: A spec that leads to the revision, for whoever has to make it again; empty where nobody knows one.
        self.spec: Mapping[str, Any] = {}
        self.workers: list[Worker] = []
        #: Workers that were killed because they did not end in time, or that said they left work behind.
        self.left_work = 0
        self._secrets, self._namespace, self._host = secrets, namespace, host
        self._launch(Place("", namespace, 0))

    def scale(self, number: int) -> None:
        """Have that many workers. Those that are not ready stop first, then the youngest."""
        self.desired = number
        staying = [worker for worker in self.workers if not worker.stopping]
        for worker in sorted(staying, key=lambda w: (w.ready, -w.index))[: max(0, len(staying) - number)]:
            worker.ready = False
            worker.stop.set()
        taken = {worker.index for worker in self.workers}
        for _ in range(number - len(staying)):
            index = next(i for i in range(len(taken) + 1) if i not in taken)
            taken.add(index)
            worker = Worker(index, f"{self.revision.deployment}/{index}")
            self.workers.append(worker)
            worker.task = asyncio.create_task(self._keep(worker), name=worker.name)

    def kill(self) -> None:
        """End every process at once. What they had in work is recovered by others."""
        self.desired = 0
        for worker in self.workers:
            worker.stop.set()
            if worker.pid is not None:
                self.left_work += 1
                kill_group(worker.pid)

    def kill_one(self) -> None:
        """End one worker that serves, at once, as a crash would; it is started again."""
        serving = [w for w in self.workers if w.ready and not w.stopping and w.pid is not None]
        for worker in serving[:1]:
            assert worker.pid is not None
            worker.ready, worker.ordered = False, True
            kill_group(worker.pid)

    async def ended(self) -> None:
        """Wait until no worker is left; scale to 0 first."""
        while self.workers:
            await asyncio.wait([worker.task for worker in self.workers if worker.task])

    def _launch(self, place: Place) -> Launch:
        return launch_of(self.revision, self.broker_url, self._secrets, place)

    async def _keep(self, worker: Worker) -> None:
        """Run the worker, again and again, until it is told to stop."""
        loop = asyncio.get_running_loop()
        try:
            while not worker.stopping:
                began = loop.time()
                try:
                    code, last = await self._run_once(worker)
                except Exception as error:  # whatever it is, a worker that is wanted is tried again
                    code, last = None, f"{type(error).__name__}: {error}"
                if worker.stopping:
                    break
                worker.deaths = 1 if loop.time() - began > GOOD_RUN else worker.deaths + 1
                self._judge(worker, code, last)
                pause = min(FIRST_PAUSE * 2.0 ** min(worker.deaths - 1, 10), LONGEST_PAUSE)
                text = f"ended with {exit_text(code)}; it is started again in {pause:g} s"
                self._host.say(worker.name, text + (f". Last line: {last}" if last else ""))
                self._host.wake()
                with suppress(TimeoutError):
                    await asyncio.wait_for(worker.stop.wait(), pause)
        finally:
            self.workers.remove(worker)
            self._host.wake()

    async def _run_once(self, worker: Worker) -> tuple[int | None, str]:
        """One process from start to end. Exit code (None: it could not start) and the last line it wrote."""
        host = self._host
        reading, writing = os.pipe()
        try:
            worker.admin_port = host.ports.take()
            launch = self._launch(Place(worker.name.replace("/", "-"), self._namespace, worker.admin_port))
            worker.process = process = await asyncio.create_subprocess_exec(
                *launch.argv,
                env=launch.env,
                cwd=host.cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),
            )
        except OSError as error:
            os.close(reading)
            host.ports.give_back(worker.admin_port)
            return None, f"{error.strerror}: {error.filename}" if error.filename else str(error)
        finally:
            os.close(writing)
        worker.was_ready, worker.missed = False, 0
        worker.started = started_at(process.pid) or 0
        worker.began = asyncio.get_running_loop().time()
        host.say(worker.name, f"started, process {process.pid}")
        host.wake()
        log = host.log_dir / f"{worker.name.replace('/', '-')}.log" if host.log_dir else None
        output = asyncio.create_task(copy_output(reading, lambda text: host.show(worker.name, text), log))
        try:
            await self._until_exit(worker, process, launch.grace)
        finally:
            # A leader that died may leave children behind; a pod would take them with it.
            kill_group(process.pid)
            worker.ready = False
            host.ports.give_back(worker.admin_port)
        # Something that left the group may still hold the pipe: it is not waited for.
        done, _ = await asyncio.wait({output}, timeout=2)
        last = output.result() if done else ""
        output.cancel()
        if worker.stopping:
            if _left_work(process.returncode, worker.was_ready):
                self.left_work += 1
            host.say(worker.name, f"stopped with {exit_text(process.returncode)}")
        return process.returncode, last

    async def _until_exit(self, worker: Worker, process: asyncio.subprocess.Process, grace: int) -> None:
        exited = asyncio.create_task(process.wait())
        told = asyncio.create_task(worker.stop.wait())
        try:
            await asyncio.wait({exited, told}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                await asyncio.wait({exited}, timeout=grace)
            if not exited.done():
                self.left_work += 1
                self._host.say(worker.name, f"did not stop within {grace} s and is killed")
                kill_group(process.pid)
            await exited
        finally:
            told.cancel()
            if not exited.done():
                exited.cancel()

    def _judge(self, worker: Worker, code: int | None, last: str) -> None:
        """One death may be an accident; the second in a row is reported."""
        line = f" Its last line: {last.rstrip('.')}." if last else ""
        if worker.ordered:
            worker.ordered = False
        else:
            worker.restarts += 1
            worker.fell_at = asyncio.get_running_loop().time()
            worker.how_it_fell = f"worker {worker.name} ended with {exit_text(code)}.{line}"
        if worker.deaths < 2 or (worker.failure and worker.failed_code == code):
            return
        hint = _HINTS.get(code if code is not None else 2, "See its output for the reason.")
        worker.failed_code = code
        worker.failure = WorkerFailure(
            "CrashLoopBackOff",
            f"worker {worker.name} ends again and again with {exit_text(code)}.{line} {hint}",
        )


def _left_work(code: int | None, was_ready: bool) -> bool:
    """Whether a worker that was told to stop may have left something to be recovered: a fault, its deadline,
    force, or a signal that it should have handled. SIGKILL at the deadline was counted when it was sent."""
    if code == -signal.SIGTERM:
        return was_ready
    return code in (1, 4, 5) or (code is not None and code < 0 and code != -signal.SIGKILL)


def started_at(pid: int) -> int | None:
    """When a process started, in ticks since boot; None when there is none, or not on Linux."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def exit_text(code: int | None) -> str:
    return "no start" if code is None else describe_exit(code)


def kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_with_parent(parent: int) -> Callable[[], None] | None:
    """For the child, before it runs the program: SIGTERM when the parent dies. Linux only."""
    if _libc is None:
        return None

    def ask() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)

    return ask
