"""`python -m benchmarks operator`: what many QueueWorkers cost the operator.

On a kind cluster that is made for it and removed, with ten Redis servers of which one falls silent: how long
the operator takes for resources that are new to it, for all of them after a restart, what a minute costs in
which nothing changes, and what the silent broker costs the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import report
from benchmarks.operator_site import BROKERS, NAMESPACE, Asked, Operator, Site, site
from benchmarks.session import say
from benchmarks.tree import usage
from benchmarks.watchdog import Limits, StuckError, Watchdog
from e2e.failure import SetupError

#: What is asked of 1,000 resources.
RESYNC_SECONDS, MEMORY_BYTES, COUNT = 10.0, 256 * 2**20, 1000
#: Resources that are changed to see how soon the operator answers.
_PROBES = 20
#: A healthy resource may answer as much later than without the silent broker, in seconds.
DELAY_SECONDS = 1.0


@dataclass(frozen=True)
class Figures:
    """Times in seconds. `answer` is from a change of a resource, whose broker is well, to a status that knows
    it."""

    resources: int
    workers: int
    #: From the start of the operator until each resource has its Deployment and a status.
    created: float
    #: From the start of the process until each was looked at, and of that from the first list.
    restarted: float
    resync: float
    #: In the first resync after the restart.
    cpu_per_pass: float
    memory_peak: int
    #: Of the operator in a minute in which nothing changes, as parts of a core.
    idle_seconds: float
    idle_cpu: float
    idle_passes: float
    idle_reads: int
    idle_writes: int
    answer_before: float
    answer_before_worst: float
    answer_beside: float
    answer_beside_worst: float
    load: float

    def missed(self) -> list[str]:
        """The bars that were not reached, in words."""
        found = []
        if self.resync >= RESYNC_SECONDS:
            found.append(f"a resync took {self.resync:.1f} s; {RESYNC_SECONDS:g} s are allowed")
        if self.memory_peak >= MEMORY_BYTES:
            found.append(f"memory reached {self.memory_peak / 2**20:.0f} MiB; 256 MiB are allowed")
        if self.idle_writes:
            found.append(f"{self.idle_writes} writes while nothing changed; none is allowed")
        if self.answer_beside_worst > self.answer_before_worst + DELAY_SECONDS:
            found.append(
                f"a resource whose broker is well answered after {self.answer_beside_worst:.2f} s beside a "
                f"silent broker and after {self.answer_before_worst:.2f} s before; {DELAY_SECONDS:g} s more "
                "are allowed"
            )
        return found


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "operator", help="what many QueueWorkers cost the operator", description=__doc__
    )
    parser.add_argument("--resources", type=int, default=COUNT, metavar="N", help=f"({COUNT:,})")
    parser.add_argument("--replicas", type=int, default=0, metavar="N", help="of each (0: no pods)")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="without a change (60)")
    parser.add_argument("--cluster", default="bench-operator", metavar="NAME", help="(bench-operator)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster, to look at it")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.resources < BROKERS:
        say(f"--resources {arguments.resources}: give at least {BROKERS}, one for each broker.")
        return 2
    about = report.machine([])
    try:
        with (
            TemporaryDirectory(prefix="queueworker-bench-") as folder,
            site(arguments.cluster, Path(folder), arguments.keep) as opened,
        ):
            about["kubernetes"] = f"{opened.version}, one node in kind"
            figures = measure(opened, arguments.resources, arguments.replicas, arguments.idle)
    except StuckError as error:
        say(f"STUCK, ended by the watchdog: {error}")
        return 1
    except SetupError as error:
        say(f"no cluster to measure on: {error}")
        return 1
    except subprocess.CalledProcessError as error:
        say(f"{' '.join(map(str, error.cmd))} ended with {error.returncode}: {error.stderr.strip()[-600:]}")
        return 1
    missed = figures.missed()
    text = markdown(about, figures, missed)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        found = {"machine": about, "figures": dataclasses.asdict(figures), "missed": missed}
        arguments.json.write_text(json.dumps(found, indent=1))
    return 1 if arguments.check and missed else 0


def measure(opened: Site, count: int, replicas: int, idle: float) -> Figures:
    """Raises StuckError, CalledProcessError."""
    watchdog = Watchdog(Limits(stall=180, total=1800), f"{count:,} QueueWorkers", opened.folder, tell=say)
    say(f"{count:,} QueueWorkers on {BROKERS} brokers are applied")
    opened.apply(opened.resources(count, replicas))
    operator = opened.start_operator()
    began = time.monotonic()
    while (told := _told(opened)) < count:
        watchdog.alive(operator.process, "the operator")
        watchdog.look(f"the operator makes Deployments ({told:,} have one)", int(operator.passes()))
        # A list of everything, which the machine that is measured has to make.
        time.sleep(3)
    created = time.monotonic() - began
    say(f"created in {created:.1f} s")
    _settled(operator, watchdog)
    before = [_answer(opened, operator, watchdog, number, 700) for number in range(_PROBES)]
    opened.silence()
    say("one broker is silent from here on")
    _noticed(opened, operator, watchdog, count // BROKERS)
    beside = [_answer(opened, operator, watchdog, number, 800) for number in range(_PROBES)]
    peak = operator.peak_memory()
    operator.stop()

    operator = opened.start_operator()
    began = time.monotonic()
    while not (seen := operator.metrics()).get("resyncs_total"):
        watchdog.alive(operator.process, "the operator")
        watchdog.look("a restarted operator looks at them", int(operator.passes()))
        time.sleep(0.2)
    restarted, cpu = time.monotonic() - began, usage([operator.process.pid]).cpu
    passes = sum(value for name, value in seen.items() if name.startswith("reconcile_total"))
    say(f"restarted in {restarted:.1f} s")
    _settled(operator, watchdog)
    cost, seconds, calm, looked = _idle(opened, operator, watchdog, idle)
    return Figures(
        resources=count,
        workers=count * replicas,
        created=created,
        restarted=restarted,
        resync=seen["resync_seconds"],
        cpu_per_pass=cpu / passes,
        memory_peak=max(peak, operator.peak_memory()),
        idle_seconds=seconds,
        idle_cpu=cost / seconds,
        idle_passes=looked,
        idle_reads=calm.reads,
        idle_writes=calm.writes,
        answer_before=statistics.median(before),
        answer_before_worst=max(before),
        answer_beside=statistics.median(beside),
        answer_beside_worst=max(beside),
        load=os.getloadavg()[1],
    )


def _listed(opened: Site, path: str) -> list[str]:
    return opened.kubectl(
        "--namespace",
        NAMESPACE,
        "get",
        "queueworkers",
        "-o",
        f"jsonpath={{range .items[*]}}{path}{{'\\n'}}{{end}}",
    ).split("\n")


def _told(opened: Site) -> int:
    """How many have a status about their newest generation and the Deployment that it names."""
    rows = _listed(opened, "{.metadata.generation} {.status.observedGeneration} {.status.stable.revision}")
    made = [row.split() for row in rows]
    return sum(len(row) == 3 and row[0] == row[1] for row in made)


def _noticed(opened: Site, operator: Operator, watchdog: Watchdog, count: int) -> None:
    """Wait until the conditions say that the broker does not answer."""
    path = "{.status.conditions[?(@.type=='BrokerReachable')].status}"
    while (seen := sum(row.strip() == "False" for row in _listed(opened, path))) < count:
        watchdog.alive(operator.process, "the operator")
        watchdog.look("the operator notices the silent broker", seen)
        time.sleep(1)


def _settled(operator: Operator, watchdog: Watchdog, quiet: float = 20.0) -> None:
    """Wait until the operator has written nothing for `quiet` seconds."""
    wrote, since = operator.metrics()["writes_total"], time.monotonic()
    while time.monotonic() - since < quiet:
        time.sleep(1)
        now = operator.metrics()["writes_total"]
        if now != wrote:
            wrote, since = now, time.monotonic()
        watchdog.alive(operator.process, "the operator")
        watchdog.look("the operator comes to rest", int(wrote) * 1000 + int(time.monotonic() - since))


def _answer(opened: Site, operator: Operator, watchdog: Watchdog, number: int, seconds: int) -> float:
    """Seconds until the status of a resource whose broker is well knows a change of it."""
    name = f"q{number // (BROKERS - 1) * BROKERS + number % (BROKERS - 1):04}"
    inside = ("--namespace", NAMESPACE)
    change = json.dumps({"spec": {"progressDeadlineSeconds": seconds}})
    generation = opened.kubectl(
        *(*inside, "patch", "queueworker", name, "--type=merge", "--patch", change),
        *("-o", "jsonpath={.metadata.generation}"),
    )
    began = time.monotonic()
    while (
        opened.kubectl(*inside, "get", "queueworker", name, "-o", "jsonpath={.status.observedGeneration}")
        != generation
    ):
        watchdog.alive(operator.process, "the operator")
        watchdog.look(f"{name} waits for an answer to its change", number)
    return time.monotonic() - began


def _idle(
    opened: Site, operator: Operator, watchdog: Watchdog, seconds: float
) -> tuple[float, float, Asked, float]:
    """CPU seconds of the operator, the seconds that it was watched for, what the API server was asked, and
    the passes."""
    asked, passes = opened.asked(), operator.passes()
    cpu, began = usage([operator.process.pid]).cpu, time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        watchdog.alive(operator.process, "the operator")
        watchdog.look("nothing changes", int(passed))
        time.sleep(1)
    cost, passed = usage([operator.process.pid]).cpu - cpu, time.monotonic() - began
    return cost, passed, opened.asked().since(asked), operator.passes() - passes


def markdown(about: dict[str, str], figures: Figures, missed: list[str]) -> str:
    """The machine, a table, and the bars that were missed."""
    f = figures
    rows = [
        ("resources, one broker in ten silent", f"{f.resources:,}"),
        ("workers", f"{f.workers:,}"),
        ("first creation of all", f"{f.created:.1f} s"),
        ("resync after a restart (bar: under 10 s)", f"{f.resync:.1f} s"),
        ("the same from the start of the process", f"{f.restarted:.1f} s"),
        ("CPU of that, a pass", f"{f.cpu_per_pass * 1000:.1f} ms"),
        ("peak memory (bar: under 256 MiB)", f"{f.memory_peak / 2**20:.0f} MiB"),
        (f"writes in {f.idle_seconds:.0f} s without a change (bar: none)", f"{f.idle_writes}"),
        ("reads in that time", f"{f.idle_reads}"),
        ("passes in that time", f"{f.idle_passes:.0f}"),
        ("CPU in that time", f"{f.idle_cpu:.0%} of a core"),
        (
            "answer to a change, all brokers well, median and worst",
            f"{f.answer_before:.2f} s, {f.answer_before_worst:.2f} s",
        ),
        (
            "the same beside the silent broker",
            f"{f.answer_beside:.2f} s, {f.answer_beside_worst:.2f} s",
        ),
    ]
    lines = [f"- {name}: {value}" for name, value in about.items()]
    lines += [f"- load of the machine meanwhile: {f.load:.1f}", "", "| figure | |", "|---|--:|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += ["", *(f"MISSED: {text}" for text in missed)]
    return "\n".join(lines).rstrip() + "\n"
