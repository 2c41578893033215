"""`python -m benchmarks redis` and `nats`: consuming from a broker, ours beside the peers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import plot, report
from benchmarks.bars import Bars, Verdict, bars, nats_bars, redis_bars
from benchmarks.contenders import Contender, all_peers, nats_peers, queueworker
from benchmarks.environments import SetupError
from benchmarks.nats_scenarios import NATS_SCENARIOS
from benchmarks.nats_site import nats_site
from benchmarks.redis_site import redis_site
from benchmarks.scenarios import SCENARIOS, Scenario, quick
from benchmarks.session import Results, run_session, say
from benchmarks.site import OpenSite
from benchmarks.workload import KINDS, shaped


@dataclass(frozen=True)
class Bench:
    """What is measured on one broker."""

    broker: str
    #: What is consumed, in words.
    title: str
    server: str
    open_site: OpenSite
    scenarios: Sequence[Scenario]
    peers: Callable[[], list[Contender]]
    bars: Bars


REDIS = Bench("redis", "Redis lists", "redis-server", redis_site, SCENARIOS, all_peers, redis_bars)
NATS = Bench("nats", "NATS JetStream", "nats-server", nats_site, NATS_SCENARIOS, nats_peers, nats_bars)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for bench in (REDIS, NATS):
        _add_command(commands, bench)


def _add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], bench: Bench) -> None:
    peers = sorted({contender.peer for contender in bench.peers()})
    names = [scenario.name for scenario in bench.scenarios]
    parser = commands.add_parser(bench.broker, help=f"consume {bench.title}", description=__doc__)
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=peers,
        metavar="NAME",
        help=f"measure peers, too: all, or some of {', '.join(peers)}",
    )
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument(
        "--shape",
        type=shaped,
        metavar="SHAPE",
        help="only this: '2p x 4c x 100f' is 2 processes, 4 coroutines in each, prefetch 100",
    )
    parser.add_argument("--handler", choices=KINDS, default="null", help="of --shape (null)")
    parser.add_argument("--size", type=int, default=100, metavar="BYTES", help="payload of --shape (100)")
    parser.add_argument("--messages", type=int, default=100_000, metavar="N", help="of --shape (100,000)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="rounds of each (3)")
    parser.add_argument("--quick", action="store_true", help="few messages, one round: no figures to quote")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed or not measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures (.svg, .png or .pdf)")
    parser.set_defaults(run=partial(run, bench))


def run(bench: Bench, arguments: argparse.Namespace) -> int:
    if arguments.quick and arguments.check:
        say("--check judges whole runs: leave out --quick.")
        return 2
    scenarios = _scenarios(bench, arguments)
    if arguments.quick:
        scenarios = [quick(scenario) for scenario in scenarios]
    if arguments.plot:
        try:
            plot.check()
        except plot.PlotError as error:
            say(str(error))
            return 2
    results = Results()
    peers = [] if arguments.peers is None else _prepared(bench, arguments.peers, results.faults)
    machine = report.machine(sorted({peer.peer for peer in peers}), bench.server)
    for name, value in machine.items():
        say(f"{name}: {value}")
    run_session(scenarios, queueworker(), peers, arguments.repeat, results, open_site=bench.open_site)
    judged = [] if arguments.quick else [scenario.name for scenario in scenarios]
    verdicts = bars(results, judged, bench.bars)
    text = report.markdown(machine, scenarios, results, verdicts)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(report.as_json(machine, results, verdicts))
    if arguments.plot:
        plot.draw(results, f"{bench.title}, {bench.server} {machine[bench.server]}", machine, arguments.plot)
    missed = any(bar.verdict is not Verdict.PASS for bar in verdicts)
    return 1 if arguments.check and (missed or results.faults) else 0


def _scenarios(bench: Bench, arguments: argparse.Namespace) -> list[Scenario]:
    if arguments.shape:
        workload = replace(
            arguments.shape, kind=arguments.handler, size=arguments.size, messages=arguments.messages
        )
        return [Scenario("shape", workload.name, (workload,), with_peers=True)]
    return [scenario for scenario in bench.scenarios if scenario.name in arguments.only]


def _prepared(bench: Bench, names: list[str], faults: list[str]) -> list[Contender]:
    """The peers of these names, all for none; what cannot be set up is a fault."""
    ready: list[Contender] = []
    broken: set[str] = set()
    for contender in bench.peers():
        if (names and contender.peer not in names) or contender.peer in broken:
            continue
        try:
            contender.prepare()
        except SetupError as error:
            broken.add(contender.peer)
            faults.append(f"{contender.peer} is not measured: {error}")
            say(faults[-1])
        else:
            ready.append(contender)
    return ready
