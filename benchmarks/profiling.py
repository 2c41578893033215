"""`python -m benchmarks profile`: where a worker's time goes, seen by a sampling profiler."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.contenders import ROOT, queueworker
from benchmarks.nats_site import nats_site
from benchmarks.redis_site import redis_site
from benchmarks.running import GLANCE, Run
from benchmarks.session import say
from benchmarks.site import OpenSite
from benchmarks.watchdog import Limits, StuckError
from benchmarks.workload import KINDS, Workload

_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*?)(:(?P<line>\d+))?\)")
#: Samples a second.
RATE = 500


@dataclass(frozen=True)
class Profile:
    """Samples in which the interpreter ran, by function and by the part that it belongs to. C code counts
    for the Python function that called it; that of the event loop for `WorkerProcess.run`."""

    functions: Counter[str]
    parts: Counter[str]

    @property
    def samples(self) -> int:
        return self.functions.total()


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("profile", help="where a worker's time goes", description=__doc__)
    parser.add_argument("--broker", choices=["redis", "nats"], default="redis", help="(redis)")
    parser.add_argument("--messages", type=int, default=400_000, metavar="N", help="in the backlog (400,000)")
    parser.add_argument(
        "--seconds", type=int, default=5, metavar="N", help="watched from the first handler on (5)"
    )
    parser.add_argument("--prefetch", type=int, default=100, metavar="N")
    parser.add_argument("--coroutines", type=int, default=1, metavar="N")
    parser.add_argument("--handler", choices=KINDS, default="null")
    parser.add_argument("--top", type=int, default=25, metavar="N", help="functions that are listed (25)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument(
        "--raw", type=Path, metavar="FILE", help="keep the collapsed stacks, for a flame graph"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        say("py-spy is not installed. Install it: scripts/environment.sh bench")
        return 2
    workload = Workload(
        coroutines=arguments.coroutines,
        prefetch=max(arguments.prefetch, arguments.coroutines),
        kind=arguments.handler,
        messages=arguments.messages,
    )
    sites: dict[str, OpenSite] = {"redis": redis_site, "nats": nats_site}
    try:
        stacks = _watch(program, sites[arguments.broker], workload, arguments.seconds)
    except StuckError as error:
        say(str(error))
        return 1
    if arguments.raw:
        arguments.raw.write_text(stacks)
    about = report.machine([], f"{arguments.broker}-server") | {
        "watched": f"{workload.name}; {arguments.seconds} s, {RATE} samples a second",
    }
    text = markdown(read(stacks.splitlines()), about, arguments.seconds * RATE, arguments.top)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    return 0


def _watch(program: str, open_site: OpenSite, workload: Workload, seconds: int) -> str:
    """The collapsed stacks of the worker process while it consumes. Raises StuckError."""
    with open_site(workload) as site, tempfile.TemporaryDirectory(prefix="queueworker-bench-") as name:
        folder = Path(name)
        measured = Run(queueworker(), workload, site, folder, Limits())
        site.prepare(workload, ours=True)
        say(f"publishing {workload.messages:,} messages")
        measured.publish()
        with measured.worker() as worker:
            while not measured.records.starts().count:
                measured.watch.alive(worker, "the worker")
                measured.watch.look("waiting for the first handler")
                time.sleep(GLANCE)
            process = next(folder.glob("*.rec")).stem
            stacks = folder / "stacks.txt"
            say(f"watching worker process {process} for {seconds} s")
            watched = subprocess.run(
                [
                    *(program, "record", "--pid", process, "--duration", str(seconds), "--rate", str(RATE)),
                    *("--format", "raw", "--function", "--gil", "--nonblocking", "--output", str(stacks)),
                ],
                capture_output=True,
                text=True,
                timeout=seconds + 120,
            )
            if watched.returncode:
                measured.watch.give_up(
                    f"py-spy ended with {watched.returncode}: {watched.stderr.strip()[-400:]}. It must be"
                    " allowed to trace the worker: run it as root or set kernel.yama.ptrace_scope=0"
                )
            if measured.records.starts().count >= workload.messages:
                measured.watch.give_up(f"all was consumed before {seconds} s were over; use more --messages")
        return stacks.read_text()


def read(lines: Iterable[str]) -> Profile:
    """Collapsed stacks, `frame;frame;... count` a line, outermost frame first."""
    functions: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if not count.isdigit():
            continue
        frames = [found for found in map(_FRAME.fullmatch, stack.split(";")) if found]
        if frames:
            last = frames[-1]
            place = _place(last["file"])
            functions[f"`{last['function']}` in {place}"] += int(count)
            parts[_part(place)] += int(count)
    return Profile(functions, parts)


def _place(file: str) -> str:
    """The path without what is of this machine."""
    path = file.removeprefix(f"{ROOT}/")
    for root in ("site-packages/", f"python{sys.version_info[0]}.{sys.version_info[1]}/"):
        path = path.rpartition(root)[2]
    return path


def _part(place: str) -> str:
    package = place.split("/")[0]
    if place.startswith("worker_runtime/brokers/"):
        return "our broker code (brokers/)"
    if package == "worker_runtime":
        return "our worker code (without brokers/)"
    if package == "benchmarks":
        return "the handler and its record"
    return {"redis": "redis-py", "asyncio": "asyncio"}.get(package, package)


def markdown(profile: Profile, about: dict[str, str], taken: int, top: int) -> str:
    """The two tables. Shares are of the samples in which the interpreter ran, out of `taken`."""
    whole = max(1, profile.samples)
    lines = [
        *(f"- {name}: {value}" for name, value in about.items()),
        f"- the interpreter ran in {profile.samples / taken:.0%} of the samples; otherwise it waited, or the"
        " event loop was inside the kernel",
        "",
        "| part | share |",
        "|---|--:|",
        *(f"| {part} | {count / whole:.1%} |" for part, count in profile.parts.most_common()),
        "",
        "| function (with the C code that it calls) | share |",
        "|---|--:|",
        *(f"| {name} | {count / whole:.1%} |" for name, count in profile.functions.most_common(top)),
    ]
    return "\n".join(lines) + "\n"
