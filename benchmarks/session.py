"""Runs scenarios round by round and keeps what every run came to."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.contenders import Contender
from benchmarks.counting import Requests, count_requests
from benchmarks.redis_site import redis_site
from benchmarks.running import Figures, measure, measure_program
from benchmarks.scenarios import Scenario
from benchmarks.site import OpenSite
from benchmarks.watchdog import Limits, StuckError
from benchmarks.workload import Workload


@dataclass(frozen=True)
class Result:
    """One run. `round` counts from 0; runs of one round were made one after the other."""

    scenario: str
    peer: str
    round: int
    workload: Workload
    figures: Figures


@dataclass(frozen=True)
class Counted:
    """The requests of one run."""

    scenario: str
    workload: Workload
    requests: Requests


@dataclass
class Results:
    """Of a whole session. `faults` says in words what could not be measured."""

    runs: list[Result] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def of(self, scenario: str) -> list[Result]:
        return [run for run in self.runs if run.scenario == scenario]


def say(text: str) -> None:
    """A line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def run_session(
    scenarios: Sequence[Scenario],
    ours: Contender,
    peers: Sequence[Contender],
    repeat: int,
    results: Results,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    open_site: OpenSite = redis_site,
) -> None:
    """Every round of a scenario runs each of its entries once. A stuck run is a fault; the others go on."""
    began = time.monotonic()
    for number, scenario in enumerate(scenarios, 1):
        say(f"[{number}/{len(scenarios)}] {scenario.title}")
        rounds = scenario.repeat or repeat
        for turn in range(rounds):
            for contender, workload in scenario.entries(ours, peers):
                at = f"{time.monotonic() - began:5.0f} s  {turn + 1}/{rounds}"
                try:
                    with open_site(workload) as site:
                        if scenario.count_only:
                            requests = count_requests(contender, workload, site, limits)
                            results.counted.append(Counted(scenario.name, workload, requests))
                            say(f"  {at}  {workload.name}: {requests.batch:.1f} messages a claim")
                            continue
                        if scenario.program:
                            ran = measure_program(contender, scenario.program, workload, site, limits)
                        else:
                            ran = measure(contender, workload, site, limits)
                except StuckError as error:
                    results.faults.append(f"{scenario.name}: {error}")
                    say(f"  {at}  STUCK, ended by the watchdog: {error}")
                    continue
                results.runs.append(Result(scenario.name, contender.peer, turn, workload, ran))
                say(f"  {at}  {line(ran)}")


def line(figures: Figures) -> str:
    """One run in a line."""
    text = f"{figures.contender}, {figures.workload}: {figures.per_second:,.0f}/s"
    text += f", CPU us/message client {figures.client_cpu:.1f} server {figures.server_cpu:.1f}"
    text += f", {figures.requests:.3f} requests/message"
    text += f", age p50 {figures.age_p50:,.2f} p99 {figures.age_p99:,.2f} ms"
    return text + f" (others took {figures.others:.0%} of the machine)"
