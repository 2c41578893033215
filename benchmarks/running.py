"""One run: publish, start the worker, watch it until the last handler has started, stop it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import ROOT, Contender, environment
from benchmarks.records import Records
from benchmarks.site import Site
from benchmarks.snapshot import Snapshot, others, snapshot
from benchmarks.spread import quantile
from benchmarks.tree import usage
from benchmarks.watchdog import Limits, Watchdog
from benchmarks.workload import Workload

#: Seconds between two looks at the records, and at the memory.
GLANCE = 0.002
MEMORY_GLANCE = 0.25
#: CPU seconds that an idle process may use in half a second.
IDLE_CPU = 0.01
#: What a process of ours logs when it has begun to consume.
CONSUMES = '"msg":"consumes with '


@dataclass(frozen=True)
class Figures:
    """What one run came to. Over the window from the first to the last handler start: `seconds`,
    `per_second` = (n-1)/seconds, CPU microseconds a message, requests, commands and bytes a message. Memory
    is in bytes (early: after a tenth of the messages). Ages are milliseconds from publishing to the start:
    in a backlog mostly the wait behind others."""

    contender: str
    workload: str
    messages: int
    seconds: float
    per_second: float
    client_cpu: float
    server_cpu: float
    requests: float
    commands: float
    bytes_in: float
    bytes_out: float
    #: Handler starts beyond one for each message, and handlers that failed.
    retries: int
    processes: int
    memory_early: int
    memory_peak: int
    memory_last: int
    server_memory: int
    age_p50: float
    age_p99: float
    published_per_second: float | None
    #: Part of the machine's CPU time that went elsewhere meanwhile, 0 to 1.
    others: float


@dataclass(frozen=True)
class Said:
    """What a program of ours measured of itself: its rate, and the times of its calls."""

    per_second: float
    milliseconds: list[float]


def _tell(text: str) -> None:
    print(f"         {text}", file=sys.stderr, flush=True)


class Run:
    """The processes of one run, its records and its watchdog."""

    def __init__(self, contender: Contender, workload: Workload, site: Site, folder: Path, limits: Limits):
        self.contender, self.workload, self.site, self.folder = contender, workload, site, folder
        # The shape is ours; a peer's settings are in its name.
        self.text = workload.name if contender.ours else workload.conditions
        self.env = environment(contender, workload, site.url, folder)
        self.watch = Watchdog(limits, f"{contender.name}, {self.text}", folder, tell=_tell)
        self.records = Records(folder)

    @contextlib.contextmanager
    def process(self, name: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        """A process in a group of its own, told to stop at the end and killed if it does not."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def worker(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        return self.process("worker", self.contender.work(self.workload))

    def publisher(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        return self.process("publisher", self.contender.publish(self.workload))

    def publish(self) -> float | None:
        """Publish the backlog; messages a second inside our producer's calls of `publish_many`."""
        self.finish("publisher", self.contender.publish(self.workload))
        return self.said("publisher").per_second if self.contender.ours else None

    def finish(self, name: str, command: list[str]) -> None:
        """Run a process to its end. Raises StuckError."""
        with self.process(name, command) as process:
            while process.poll() is None:
                self.watch.look(f"waiting for the {name}")
                time.sleep(0.01)
            if process.returncode:
                self.watch.alive(process, f"the {name}")

    def said(self, name: str) -> Said:
        """What a program of ours printed."""
        told = json.loads((self.folder / f"{name}.log").read_text())
        return Said(told["messages"] / told["seconds"], told.get("milliseconds", []))

    def snapshot(self, pid: int) -> Snapshot:
        return snapshot(self.site, self.contender.sends, [pid])

    def settle(self) -> int:
        """Wait until our broker has booked every message as done; handlers that failed."""
        if not self.contender.ours:
            return 0
        while (booked := self.site.booked(self.workload))[0] < self.workload.messages:
            self.watch.look("waiting for the last commits", booked[0])
            time.sleep(GLANCE)
        return booked[1]

    def figures(
        self,
        window: tuple[Snapshot, Snapshot],
        counted: int,
        memory: tuple[int, int],
        failed: int,
        published: float | None,
    ) -> Figures:
        """`counted` messages were started in the window; `memory` is early and peak."""
        first, last = window
        starts, ages = self.records.starts(), self.records.ages()
        seconds = (starts.last - starts.first) / 1e9
        per = 1.0 / max(1, counted)
        return Figures(
            contender=self.contender.name,
            workload=self.text,
            messages=self.workload.messages,
            seconds=seconds,
            per_second=(starts.count - 1) / seconds if seconds else 0.0,
            client_cpu=(last.clients.cpu - first.clients.cpu) * per * 1e6,
            server_cpu=(last.server_cpu - first.server_cpu) * per * 1e6,
            requests=(last.requests - first.requests) * per,
            commands=(last.commands - first.commands) * per,
            bytes_in=(last.bytes_in - first.bytes_in) * per,
            bytes_out=(last.bytes_out - first.bytes_out) * per,
            retries=starts.count - self.workload.messages + failed,
            processes=last.clients.processes,
            memory_early=memory[0],
            memory_peak=max(memory[1], last.clients.memory),
            memory_last=last.clients.memory,
            server_memory=last.server_memory,
            age_p50=quantile(ages, 0.5) * 1e3,
            age_p99=quantile(ages, 0.99) * 1e3,
            published_per_second=published,
            others=others(first, last),
        )


def measure(contender: Contender, workload: Workload, site: Site, limits: Limits) -> Figures:
    """Run it on this server, which has to be empty. Raises StuckError."""
    with tempfile.TemporaryDirectory(prefix="queueworker-bench-") as folder:
        run = Run(contender, workload, site, Path(folder), limits)
        site.prepare(workload, contender.ours)
        return _paced(run) if workload.rate else _backlog(run)


def measure_program(
    contender: Contender, program: str, workload: Workload, site: Site, limits: Limits
) -> Figures:
    """A program of ours in place of a worker; the figures of a worker are 0, ages are the times that it said.
    The CPU is that of the program's whole life. Raises StuckError."""
    with tempfile.TemporaryDirectory(prefix="queueworker-bench-") as folder:
        run = Run(contender, workload, site, Path(folder), limits)
        site.prepare(workload, contender.ours)
        first, before = run.snapshot(os.getpid()), os.times()
        run.finish(program, [sys.executable, "-m", f"benchmarks.{program}"])
        last, after = run.snapshot(os.getpid()), os.times()
        said = run.said(program)
        per, count = 1e6 / workload.messages, workload.messages
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return Figures(
            contender=contender.name,
            workload=run.text,
            messages=count,
            seconds=count / said.per_second,
            per_second=said.per_second,
            client_cpu=cpu * per,
            server_cpu=(last.server_cpu - first.server_cpu) * per,
            requests=(last.requests - first.requests) / count,
            commands=(last.commands - first.commands) / count,
            bytes_in=(last.bytes_in - first.bytes_in) / count,
            bytes_out=(last.bytes_out - first.bytes_out) / count,
            retries=0,
            processes=1,
            memory_early=0,
            memory_peak=0,
            memory_last=0,
            server_memory=last.server_memory,
            age_p50=quantile(said.milliseconds, 0.5),
            age_p99=quantile(said.milliseconds, 0.99),
            published_per_second=said.per_second,
            others=others(first, last),
        )


def _backlog(run: Run) -> Figures:
    """Everything is published before the worker starts. Of several processes the first ones would begin
    before the last ones are there, so the queue is held back until all are idle."""
    total = run.workload.messages
    published = run.publish()
    aside = run.contender.ours and run.workload.processes > 1
    if aside:
        run.site.hold_back(run.workload)
    with run.worker() as worker:
        if aside:
            _wait_until_idle(run, worker)
            run.site.let_go(run.workload)

        def started(doing: str) -> int:
            run.watch.alive(worker, "the worker")
            count = run.records.starts().count
            run.watch.look(doing, count)
            return count

        while not started("waiting for the first handler"):
            time.sleep(GLANCE)
        first = run.snapshot(worker.pid)
        already = run.records.starts().count
        early, peak, looked = 0, first.clients.memory, time.monotonic()
        while (count := started("consuming")) < total:
            if time.monotonic() - looked > MEMORY_GLANCE:
                memory, looked = usage([worker.pid]).memory, time.monotonic()
                peak = max(peak, memory)
                early = early or (memory if count >= total / 10 else 0)
            time.sleep(GLANCE)
        last = run.snapshot(worker.pid)
        failed = run.settle()
    if already >= total:
        run.watch.give_up(f"all {total:,} were started before the first look; use more messages")
    return run.figures((first, last), total - already, (early or peak, peak), failed, published)


def _paced(run: Run) -> Figures:
    """The worker waits on an empty queue before the first message is published."""
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(run.worker())
        _wait_until_idle(run, worker)
        first = run.snapshot(worker.pid)
        publisher = stack.enter_context(run.publisher())
        while (count := run.records.starts().count) < run.workload.messages:
            run.watch.alive(worker, "the worker")
            published = publisher.poll()
            if published:
                run.watch.alive(publisher, "the publisher")
            run.watch.look("consuming", count)
            # Seldom: to read what a hundred processes noted takes a core for milliseconds.
            time.sleep(1.0 if published is None else GLANCE)
        last = run.snapshot(worker.pid)
        failed = run.settle()
        return run.figures((first, last), count, (first.clients.memory, 0), failed, None)


def _wait_until_idle(run: Run, worker: subprocess.Popen[bytes]) -> None:
    """Until every worker process consumes and nothing that a start costs goes on: for two seconds none of its
    processes has used more CPU than an idle one does."""
    log = run.folder / "worker.log"
    while run.contender.ours and log.read_text().count(CONSUMES) < run.workload.processes:
        run.watch.alive(worker, "the worker")
        # A hundred processes need long to start. That they use CPU is progress.
        run.watch.look(f"waiting for {run.workload.processes} worker processes", int(usage([worker.pid]).cpu))
        time.sleep(0.2)
    calm, before = 0, usage([worker.pid])
    while calm < 4:
        time.sleep(0.5)
        run.watch.alive(worker, "the worker")
        run.watch.look("waiting until the workers are idle", calm)
        now = usage([worker.pid])
        connected = run.site.clients() > 0
        same = now.processes == before.processes
        calm = calm + 1 if connected and same and now.cpu - before.cpu < IDLE_CPU * now.processes else 0
        before = now
