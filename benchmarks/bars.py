"""The bars: what the figures have to reach, as ratios and bounds from one session."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.session import Result, Results
from benchmarks.spread import Spread, spread


class Verdict(enum.Enum):
    PASS = "pass"
    FAIL = "FAIL"
    #: A run or a peer that it needs is missing.
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class Bar:
    """`value` is the median over the rounds; None when it was not measured."""

    scenario: str
    text: str
    bound: str
    value: Spread | None
    verdict: Verdict


Number = Callable[[Result], float]
Bars = Callable[[Results], list[Bar]]


def rate(result: Result) -> float:
    return result.figures.per_second


def client_cpu(result: Result) -> float:
    return result.figures.client_cpu


def server_cpu(result: Result) -> float:
    return result.figures.server_cpu


def best_of(results: Results, peer: str) -> list[Result]:
    """The headline runs of the peer's settings with the highest median throughput."""
    groups: dict[str, list[Result]] = {}
    for run in results.of("headline"):
        if run.peer == peer:
            groups.setdefault(run.figures.contender, []).append(run)
    return max(groups.values(), key=lambda runs: spread([rate(r) for r in runs]).median, default=[])


def bars(results: Results, scenarios: Sequence[str], every: Bars | None = None) -> list[Bar]:
    """The bars of the scenarios that were asked for, out of `every` (those of Redis)."""
    return [bar for bar in (every or redis_bars)(results) if bar.scenario in scenarios]


def redis_bars(results: Results) -> list[Bar]:
    ours = best_of(results, "queueworker")
    dramatiq, bullmq = best_of(results, "dramatiq"), best_of(results, "bullmq")
    sparse = [run for run in results.of("sparse") if run.peer == "queueworker"]
    history = results.of("history")

    def idle(count: int) -> list[Result]:
        return [run for run in sparse if run.workload.processes == count]

    def left(count: int) -> list[Result]:
        return [run for run in history if run.workload.history == count]

    return [
        _ratio("headline", "throughput, to dramatiq's best", rate, ours, dramatiq, at_least=5.0),
        _ratio("headline", "throughput, to BullMQ's best", rate, ours, bullmq, at_least=1.4),
        _ratio("headline", "client CPU a message, to BullMQ's", client_cpu, ours, bullmq, at_most=0.65),
        _ratio("headline", "client CPU a message, to dramatiq's", client_cpu, ours, dramatiq, at_most=0.2),
        _ratio("headline", "server CPU a message, to BullMQ's", server_cpu, ours, bullmq, at_most=0.5),
        _plain("headline", "requests a message", _requests, ours, at_most=0.1),
        _plain("sparse", "publish to handler start, p50 ms", _p50, idle(1), at_most=1.0),
        _plain("sparse", "publish to handler start, p99 ms", _p99, idle(1), at_most=3.0),
        _ratio("sparse", "p50 with 100 idle workers, to one", _p50, idle(100), idle(1), at_most=1.5),
        _ratio("sparse", "p99 with 100 idle workers, to one", _p99, idle(100), idle(1), at_most=1.5),
        _plain(
            "publish",
            "publish_many in batches of 1,000, messages/s",
            rate,
            results.of("publish"),
            at_least=100_000.0,
        ),
        _ratio(
            "history",
            "throughput with 100,000 old entries, to none",
            rate,
            left(100_000),
            left(0),
            at_least=0.9,
        ),
        _plain(
            "memory",
            "growth of memory from 100,000 to 1,000,000 messages, MB",
            lambda r: (r.figures.memory_last - r.figures.memory_early) / 1e6,
            results.of("memory"),
            at_most=2.0,
        ),
    ]


def nats_bars(results: Results) -> list[Bar]:
    ours = best_of(results, "queueworker")
    taskiq, faststream = best_of(results, "taskiq-nats"), best_of(results, "faststream")
    sparse = [run for run in results.of("sparse") if run.peer == "queueworker"]
    return [
        _ratio("headline", "throughput, to taskiq-nats's best", rate, ours, taskiq, at_least=3.0),
        _ratio("headline", "throughput, to FastStream's best", rate, ours, faststream, at_least=3.5),
        _plain("sparse", "publish to handler start, p50 ms", _p50, sparse, at_most=1.5),
        _plain("sparse", "publish to handler start, p99 ms", _p99, sparse, at_most=5.0),
        _plain("settle", "100 acknowledgements confirmed, p50 ms", _p50, results.of("settle"), at_most=3.0),
    ]


def _requests(result: Result) -> float:
    return result.figures.requests


def _p50(result: Result) -> float:
    return result.figures.age_p50


def _p99(result: Result) -> float:
    return result.figures.age_p99


def _plain(
    scenario: str,
    text: str,
    number: Number,
    runs: Sequence[Result],
    at_least: float | None = None,
    at_most: float | None = None,
) -> Bar:
    return _bar(scenario, text, [number(run) for run in runs], at_least, at_most)


def _ratio(
    scenario: str,
    text: str,
    number: Number,
    runs: Sequence[Result],
    to: Sequence[Result],
    at_least: float | None = None,
    at_most: float | None = None,
) -> Bar:
    """Of runs of one round: what the machine does besides changes less within a round."""
    others = {run.round: number(run) for run in to}
    ratios = [number(run) / others[run.round] for run in runs if others.get(run.round)]
    return _bar(scenario, text, ratios, at_least, at_most)


def _bar(
    scenario: str, text: str, values: Sequence[float], at_least: float | None, at_most: float | None
) -> Bar:
    bound = f">= {at_least:,g}" if at_least is not None else f"<= {at_most:,g}"
    if not values:
        return Bar(scenario, text, bound, None, Verdict.UNKNOWN)
    found = spread(values)
    holds = (at_least is None or found.median >= at_least) and (at_most is None or found.median <= at_most)
    return Bar(scenario, text, bound, found, Verdict.PASS if holds else Verdict.FAIL)
