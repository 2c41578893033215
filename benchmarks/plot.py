"""Draws a session: throughput, CPU and latency beside the peers, and what prefetch does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.session import Result, Results
from benchmarks.spread import Spread, spread

OURS, PEER, SECOND = "#1b6e53", "#b9bec6", "#7d8794"


class PlotError(Exception):
    """It cannot be drawn: says what is missing."""


def check() -> None:
    """Raises PlotError when a plot could not be drawn, before anything is measured for it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlotError(
            f"a plot needs matplotlib ({error}). Install it: scripts/environment.sh bench"
        ) from None


def draw(results: Results, broker: str, about: dict[str, str], file: Path) -> None:
    """Write the plot; `broker` is in its title, the file's ending says in which format."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    headline, sparse = results.of("headline"), results.of("sparse")
    _bars(axes[0][0], "Messages a second", headline, lambda r: r.figures.per_second)
    _cpu(axes[0][1], headline)
    _latency(axes[1][0], sparse)
    _prefetch(axes[1][1], results.of("prefetch"))
    figure.suptitle(
        f"{broker}, null handler, 100-byte payloads\n{about['cpu']}; {about['python']}; "
        f"median, lowest and highest of each",
        fontsize=10,
    )
    figure.savefig(file)


def _grouped(runs: list[Result], number: Callable[[Result], float]) -> dict[str, Spread]:
    values: dict[str, list[float]] = {}
    for run in runs:
        ours = run.peer == "queueworker"
        values.setdefault(run.figures.contender if not ours else "queueworker", []).append(number(run))
    return {name: spread(found) for name, found in values.items()}


def _error(found: list[Spread]) -> list[list[float]]:
    return [[s.median - s.low for s in found], [s.high - s.median for s in found]]


def _empty(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.text(0.5, 0.5, "not measured in this session", ha="center", transform=axes.transAxes)
    axes.set_axis_off()


def _names(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), [name.replace(", ", ",\n", 1) for name in names], fontsize=7)
    axes.invert_yaxis()


def _bars(axes: Any, title: str, runs: list[Result], number: Callable[[Result], float]) -> None:
    groups = _grouped(runs, number)
    if not groups:
        _empty(axes, title)
        return
    found = list(groups.values())
    colours = [OURS if name == "queueworker" else PEER for name in groups]
    axes.barh(range(len(found)), [s.median for s in found], xerr=_error(found), color=colours)
    for at, one in enumerate(found):
        axes.text(one.high, at, f" {one.median:,.0f}", va="center", fontsize=8)
    axes.margins(x=0.15)
    _names(axes, list(groups))
    axes.set_title(title, fontsize=10)


def _cpu(axes: Any, runs: list[Result]) -> None:
    title = "CPU a message, us: worker, and server (pale)"
    client = _grouped(runs, lambda r: r.figures.client_cpu)
    server = _grouped(runs, lambda r: r.figures.server_cpu)
    if not client:
        _empty(axes, title)
        return
    places = range(len(client))
    colours = [OURS if name == "queueworker" else SECOND for name in client]
    left = [s.median for s in client.values()]
    right = [s.median for s in server.values()]
    axes.barh(places, left, color=colours)
    axes.barh(places, right, left=left, color=colours, alpha=0.45)
    for at, (one, two) in enumerate(zip(left, right, strict=True)):
        axes.text(one + two, at, f" {one:.0f} + {two:.0f}", va="center", fontsize=8)
    axes.margins(x=0.2)
    _names(axes, list(client))
    axes.set_title(title, fontsize=10)


def _latency(axes: Any, runs: list[Result]) -> None:
    title = "Publish to handler start at 50/s, ms: p50, and p99 (pale)"
    names: dict[str, list[Result]] = {}
    for run in runs:
        idle = f" with {run.workload.processes} idle" if run.peer == "queueworker" else ""
        names.setdefault(run.figures.contender + idle, []).append(run)
    if not names:
        _empty(axes, title)
        return
    colours = [OURS if runs[0].peer == "queueworker" else SECOND for runs in names.values()]
    for number, height, pale in ((_p99, 0.8, 0.35), (_p50, 0.4, 1.0)):
        medians = [spread([number(run) for run in group]).median for group in names.values()]
        axes.barh(range(len(names)), medians, height=height, color=colours, alpha=pale)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    _names(axes, list(names))
    axes.set_title(title, fontsize=10)


def _p50(run: Result) -> float:
    return run.figures.age_p50


def _p99(run: Result) -> float:
    return run.figures.age_p99


def _prefetch(axes: Any, runs: list[Result]) -> None:
    title = "Messages a second by prefetch, one coroutine"
    values: dict[int, list[float]] = {}
    for run in runs:
        values.setdefault(run.workload.prefetch, []).append(run.figures.per_second)
    if not values:
        _empty(axes, title)
        return
    found = {prefetch: spread(rates) for prefetch, rates in sorted(values.items())}
    axes.errorbar(
        list(found),
        [s.median for s in found.values()],
        yerr=_error(list(found.values())),
        color=OURS,
        marker="o",
    )
    axes.set_xscale("log")
    axes.set_xticks(list(found), [str(prefetch) for prefetch in found])
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=10)
