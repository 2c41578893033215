"""`python -m e2e rollbacks`: many changes taken back in local mode, under load and random kills.

Each lane is a `queueworker up` of its own with a Redis of its own. A round brings a new version out and takes
it back: half way, as a canary, after its promotion, or by asking for no worker at all. Meanwhile workers and
the operator are killed, and all connections to the broker are cut.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from e2e.rollback_lane import Lane, Tally
from worker_runtime.brokers.redis.server import EmbeddedRedis
from worker_runtime.chaos.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """`good` when nothing was lost or stranded and every round ended in Idle."""

    rounds: int
    #: Rounds that ended in Idle, and those in which a revision left by the guarded way.
    ended: int
    guarded: int
    kinds: dict[str, int]
    kills: dict[str, int]
    published: int
    handled: int
    lost: int
    #: Messages that were started more than once: allowed, and to be expected under kills.
    duplicates: int
    stranded: list[str]
    not_idle: list[str]
    #: What the broker's books and the record do not agree on.
    faults: list[str]
    seconds: float
    seed: int

    @property
    def good(self) -> bool:
        return self.ended == self.rounds and not (self.lost or self.stranded or self.not_idle or self.faults)


async def take_back(
    rounds: int, lanes: int, seed: int, patience: float, pause: float, directory: Path, console: Console
) -> Report:
    """Run so many rounds, shared among the lanes. `patience` and `pause` in seconds, as of a `Lane`."""
    began = time.monotonic()
    columns = (TextColumn("rollbacks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=rounds)
        done = itertools.count(1)

        def ended() -> None:
            progress.advance(bar)
            number = next(done)
            # A bar is drawn on a terminal alone; a log gets a line for each tenth part.
            if not console.is_terminal and number % max(1, rounds // 10) == 0:
                console.print(f"{number} of {rounds} rounds in {time.monotonic() - began:.0f} s")

        async def lane(number: int) -> tuple[Tally, Verdict | None]:
            share = len(range(number, rounds, lanes))
            with EmbeddedRedis() as server:
                chance = random.Random(f"{seed}-{number}")
                one = Lane(
                    number, directory / f"lane-{number}", server.url, chance, patience=patience, pause=pause
                )
                return one.tally, await one.run(share, ended)

        found = await asyncio.gather(*(lane(number) for number in range(min(lanes, rounds))))
    tallies, verdicts = [tally for tally, _ in found], [verdict for _, verdict in found if verdict]
    return Report(
        rounds=rounds,
        ended=sum(tally.ended for tally in tallies),
        guarded=sum(tally.guarded for tally in tallies),
        kinds=dict(sum((tally.kinds for tally in tallies), Counter())),
        kills=dict(sum((tally.kills for tally in tallies), Counter())),
        published=sum(verdict.published for verdict in verdicts),
        handled=sum(verdict.handled for verdict in verdicts),
        lost=sum(len(verdict.lost) for verdict in verdicts),
        duplicates=sum(verdict.duplicated for verdict in verdicts),
        stranded=[text for tally in tallies for text in tally.stranded],
        not_idle=[text for tally in tallies for text in tally.stuck],
        faults=[fault for verdict in verdicts for fault in verdict.faults],
        seconds=round(time.monotonic() - began, 1),
        seed=seed,
    )


@click.command("rollbacks")
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--lanes", type=click.IntRange(min=1), default=2, show_default=True, help="Rounds at once.")
@click.option("--seed", type=int, default=None, help="Chooses what is done when; random by default.")
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    help="Seconds after which a step of a round counts as stuck.",
)
@click.option(
    "--pause",
    type=click.FloatRange(min=0.1),
    default=1.5,
    show_default=True,
    help="Seconds between two kills of a round, on the average.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def rollbacks(
    rounds: int, lanes: int, seed: int | None, patience: float, pause: float, as_json: bool
) -> None:
    """Take changes back in local mode, under load and kills of workers, operator and connections.

    Code 1 when a message was lost, a reservation stranded, or a round did not end in Idle; the folder with
    files and logs of the lanes is kept then.
    """
    chosen = random.SystemRandom().randrange(10**6) if seed is None else seed
    console = Console(stderr=True, highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="queueworker-rollbacks-"))
    report = asyncio.run(take_back(rounds, lanes, chosen, patience, pause, directory, console))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        click.echo("\n".join(in_words(report)))
    if not report.good:
        click.echo(f"kept: {directory}", err=True)
        sys.exit(1)
    shutil.rmtree(directory, ignore_errors=True)


def in_words(report: Report) -> list[str]:
    """The report for a person, one line for each thing that was asked."""

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"

    return [
        f"{report.ended} of {report.rounds} rollbacks ended in Idle within {report.seconds:g} s "
        f"(seed {report.seed}): {listed(report.kinds)}; {report.guarded} by the guarded way",
        f"killed: {listed(report.kills)}",
        f"messages: {report.published:,} published, {report.handled:,} handled, {report.lost} lost, "
        f"{report.duplicates} started more than once",
        f"stranded: {len(report.stranded)}",
        *report.stranded,
        *report.not_idle,
        *report.faults,
    ]
