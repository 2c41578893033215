"""What a session came to, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.bars import Bar, Verdict
from benchmarks.environments import versions_here, versions_of
from benchmarks.running import Figures
from benchmarks.scenarios import Scenario
from benchmarks.session import Counted, Result, Results
from benchmarks.spread import spread
from worker_runtime.brokers.nats.server import find_nats_server
from worker_runtime.brokers.redis.server import find_redis_server


def machine(peers: Sequence[str], server: str = "redis-server") -> dict[str, str]:
    """What the figures depend on, in words. Opens nothing but /proc and the programs' own versions."""
    versions = {"queueworker's": versions_here()} | {peer: versions_of(peer) for peer in peers}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, kernel {platform.release()}",
        "python": f"CPython {platform.python_version()}, {platform.python_compiler()}",
        server: _server_version(server),
    } | {
        f"{name} packages": ", ".join(f"{package} {version}" for package, version in found.items())
        for name, found in versions.items()
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _server_version(name: str) -> str:
    binary = find_redis_server() if name == "redis-server" else find_nats_server()
    if binary is None:
        return "none found"
    said = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(?:v=|: v)(\S+)", said)
    return found[1] if found else said.strip()


def as_json(about: dict[str, str], results: Results, verdicts: Sequence[Bar]) -> str:
    """Every run with its workload, the bars, and what could not be measured."""
    return json.dumps(
        {
            "machine": about,
            "runs": [dataclasses.asdict(run) for run in results.runs],
            "requests": [dataclasses.asdict(run) for run in results.counted],
            "bars": [dataclasses.asdict(bar) | {"verdict": bar.verdict.value} for bar in verdicts],
            "faults": results.faults,
        },
        indent=1,
    )


#: What others may take of a machine that counts as quiet.
QUIET = 0.1


@dataclasses.dataclass(frozen=True)
class Column:
    """`pick` gives the number of one run, `show` is its format, `spread` adds lowest and highest."""

    title: str
    pick: Callable[[Figures], float]
    show: str
    spread: bool = False


_COST = (
    Column("client CPU, us", lambda f: f.client_cpu, ",.1f"),
    Column("server CPU, us", lambda f: f.server_cpu, ",.1f"),
    Column("requests", lambda f: f.requests, ",.3f"),
    Column("commands", lambda f: f.commands, ",.1f"),
    Column("bytes in", lambda f: f.bytes_in, ",.0f"),
    Column("bytes out", lambda f: f.bytes_out, ",.0f"),
)
_MEMORY = Column("memory, MB", lambda f: f.memory_peak / 1e6, ",.0f")
_RETRIES = Column("retries", lambda f: float(f.retries), ",.0f")
_OTHERS = Column("others", lambda f: f.others, ".0%")
_BACKLOG = (
    Column("messages/s", lambda f: f.per_second, ",.0f", spread=True),
    *_COST,
    Column("age p50, ms", lambda f: f.age_p50, ",.0f"),
    _MEMORY,
    _RETRIES,
    _OTHERS,
)
_PACED = (
    Column("p50, ms", lambda f: f.age_p50, ",.2f", spread=True),
    Column("p99, ms", lambda f: f.age_p99, ",.2f", spread=True),
    Column("client CPU, % of a core", lambda f: f.client_cpu * f.per_second / 1e4, ",.1f"),
    Column("server CPU, % of a core", lambda f: f.server_cpu * f.per_second / 1e4, ",.1f"),
    _MEMORY,
    _RETRIES,
    _OTHERS,
)
_PUBLISHING = (
    Column("messages/s", lambda f: f.per_second, ",.0f", spread=True),
    Column("server CPU, us", lambda f: f.server_cpu, ",.1f"),
    Column("bytes in", lambda f: f.bytes_in, ",.0f"),
    _OTHERS,
)
_SETTLING = (
    Column("p50, ms", lambda f: f.age_p50, ",.2f", spread=True),
    Column("p99, ms", lambda f: f.age_p99, ",.2f", spread=True),
    Column("settled/s", lambda f: f.per_second, ",.0f"),
    _OTHERS,
)
_LONG = (
    Column("messages/s", lambda f: f.per_second, ",.0f"),
    Column("memory after a tenth, MB", lambda f: f.memory_early / 1e6, ",.1f"),
    Column("peak, MB", lambda f: f.memory_peak / 1e6, ",.1f"),
    Column("at the end, MB", lambda f: f.memory_last / 1e6, ",.1f"),
    _RETRIES,
    _OTHERS,
)


def _columns(scenario: Scenario) -> tuple[Column, ...]:
    if scenario.program == "publishing":
        return _PUBLISHING
    if scenario.program:
        return _SETTLING
    if scenario.name == "memory":
        return _LONG
    return _PACED if scenario.workloads[0].rate else _BACKLOG


def _table(scenario: Scenario, runs: Sequence[Result]) -> list[str]:
    """One row for each contender and workload, medians over the rounds."""
    rows: dict[tuple[str, str], list[Figures]] = {}
    for run in runs:
        rows.setdefault((run.figures.contender, run.figures.workload), []).append(run.figures)
    columns = _columns(scenario)
    titles = ["who", "workload", *(column.title for column in columns)]
    lines = ["| " + " | ".join(titles) + " |", "|---|---" + "|--:" * len(columns) + "|"]
    for (who, workload), figures in rows.items():
        cells = [who, workload, *(_cell(column, figures) for column in columns)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _counts(runs: Sequence[Counted]) -> list[str]:
    """One row for each workload: calls for 1,000 messages, the ten most frequent ones."""
    totals: Counter[str] = Counter()
    for run in runs:
        totals.update(run.requests.calls)
    names = [name for name, _ in totals.most_common(10)]
    lines = [
        "| workload | messages a claim | " + " | ".join(names) + " |",
        "|---|" + "--:|" * (len(names) + 1),
    ]
    for run in runs:
        calls = [run.requests.calls.get(name, 0) / run.requests.messages * 1000 for name in names]
        cells = [run.workload.name, f"{run.requests.batch:.1f}", *(f"{call:,.1f}" for call in calls)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cell(column: Column, figures: Sequence[Figures]) -> str:
    values = [column.pick(one) for one in figures]
    found = spread(values)
    text = format(found.median, column.show)
    if column.spread and len(values) > 1:
        text += f" ({found.low:{column.show}}..{found.high:{column.show}})"
    return text


def markdown(
    about: dict[str, str], scenarios: Sequence[Scenario], results: Results, verdicts: Sequence[Bar]
) -> str:
    """The tables, with the machine above them."""
    lines = [*(f"- {name}: {value}" for name, value in about.items()), *_busy(results), ""]
    if verdicts:
        lines += ["| bar | bound | median | lowest..highest | verdict |", "|---|---|---|---|---|"]
        lines += [_bar(bar) for bar in verdicts] + [""]
    for scenario in scenarios:
        counted = [run for run in results.counted if run.scenario == scenario.name]
        table = _counts(counted) if scenario.count_only else _table(scenario, results.of(scenario.name))
        lines += [f"### {scenario.title}", "", *table, ""]
    lines += [f"- Not measured: {fault}" for fault in results.faults]
    return "\n".join(lines).rstrip() + "\n"


def _busy(results: Results) -> list[str]:
    shares = [run.figures.others for run in results.runs]
    if not shares or spread(shares).median <= QUIET:
        return []
    return [
        f"- **busy machine**: processes outside the benchmark took {spread(shares).median:.0%} of it"
        f" ({min(shares):.0%}..{max(shares):.0%}); quote no figure of this session"
    ]


def _bar(bar: Bar) -> str:
    if bar.value is None:
        return f"| {bar.text} | {bar.bound} | | | {bar.verdict.value} |"
    value = bar.value
    digits = ",.0f" if abs(value.median) >= 1000 else ".3g"
    verdict = f"**{bar.verdict.value}**" if bar.verdict is Verdict.FAIL else bar.verdict.value
    return (
        f"| {bar.text} | {bar.bound} | {value.median:{digits}} "
        f"| {value.low:{digits}}..{value.high:{digits}} | {verdict} |"
    )
