"""`python -m benchmarks redis`: consuming Redis lists, ours beside the peers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks import plot, report
from benchmarks.bars import Verdict, bars
from benchmarks.contenders import Contender, all_peers, queueworker
from benchmarks.environments import SetupError
from benchmarks.scenarios import SCENARIOS, Scenario, quick
from benchmarks.session import Results, run_session, say
from benchmarks.workload import KINDS, shaped

PEERS = sorted({contender.peer for contender in all_peers()})
NAMES = [scenario.name for scenario in SCENARIOS]


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("redis", help="consume Redis lists", description=__doc__)
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        metavar="NAME",
        help=f"measure peers, too: all, or some of {', '.join(PEERS)}",
    )
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES)
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.quick and arguments.check:
        say("--check judges whole runs: leave out --quick.")
        return 2
    scenarios = _scenarios(arguments)
    if arguments.quick:
        scenarios = [quick(scenario) for scenario in scenarios]
    if arguments.plot:
        try:
            plot.check()
        except plot.PlotError as error:
            say(str(error))
            return 2
    results = Results()
    peers = [] if arguments.peers is None else _prepared(arguments.peers, results.faults)
    machine = report.machine(sorted({peer.peer for peer in peers}))
    for name, value in machine.items():
        say(f"{name}: {value}")
    run_session(scenarios, queueworker(), peers, arguments.repeat, results)
    verdicts = [] if arguments.quick else bars(results, [scenario.name for scenario in scenarios])
    text = report.markdown(machine, scenarios, results, verdicts)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(report.as_json(machine, results, verdicts))
    if arguments.plot:
        plot.draw(results, machine, arguments.plot)
    missed = any(bar.verdict is not Verdict.PASS for bar in verdicts)
    return 1 if arguments.check and (missed or results.faults) else 0


def _scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    if arguments.shape:
        workload = replace(
            arguments.shape, kind=arguments.handler, size=arguments.size, messages=arguments.messages
        )
        return [Scenario("shape", workload.name, (workload,), with_peers=True)]
    return [scenario for scenario in SCENARIOS if scenario.name in arguments.only]


def _prepared(names: list[str], faults: list[str]) -> list[Contender]:
    """The peers of these names, all for none; what cannot be set up is a fault."""
    ready: list[Contender] = []
    broken: set[str] = set()
    for contender in all_peers():
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
