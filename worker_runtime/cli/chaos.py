"""`queueworker chaos`: kill workers on purpose, and prove by exit code that nothing was lost."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
import tempfile
import time
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from worker_runtime import exits
from worker_runtime.brokers.base import BrokerError
from worker_runtime.brokers.nats.address import SCHEMES
from worker_runtime.brokers.nats.server import EmbeddedNats
from worker_runtime.brokers.redis.server import EmbeddedRedis
from worker_runtime.chaos.ground import Ground
from worker_runtime.chaos.on_nats import nats_ground
from worker_runtime.chaos.on_redis import redis_ground
from worker_runtime.chaos.plan import QUEUE, REVISIONS, Plan
from worker_runtime.chaos.storm import Progress, Result, Storm, Wishes
from worker_runtime.chaos.workers import NurseryError
from worker_runtime.cli.options import Failure, broker_errors

EMBEDDED, EMBEDDED_NATS = "embedded", "embedded-nats"
#: Seconds between two lines where no terminal shows one that moves.
_LINE_EVERY = 5.0


@click.command("chaos", short_help="Kill workers at random, and prove that nothing is lost.")
@click.option(
    "--broker",
    required=True,
    metavar="URL",
    help=f'A Redis or NATS URL, or "{EMBEDDED}" for a private Redis, "{EMBEDDED_NATS}" for a private NATS.',
)
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), help="Harm for this long. [default: 1]"
)
@click.option(
    "--kills", type=click.IntRange(min=1), help="Stop after this many kills; alone or with --minutes."
)
@click.option(
    "--workers", type=click.IntRange(1, 100), default=8, show_default=True, help="Disposable workers at once."
)
@click.option(
    "--seed", type=int, help="Of the random choices. Moments differ all the same. [default: random]"
)
@click.option(
    "--namespace",
    help="An empty one, for users whose ACL asks for a prefix; on NATS the queue's name. [default: random]",
)
@click.option(
    "--server-faults",
    is_flag=True,
    help="Also harm servers: failovers of a Redis Cluster, changes of leaders in a NATS cluster, kills of the"
    f" server of {EMBEDDED_NATS}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def chaos_command(
    broker: str,
    minutes: float | None,
    kills: int | None,
    workers: int,
    seed: int | None,
    namespace: str | None,
    server_faults: bool,
    as_json: bool,
) -> None:
    """Publish messages, run workers, and kill them with SIGKILL, pause them beyond the expiry, cut their
    connections and flush the scripts of a Redis at random moments. At the end compare what the handlers wrote
    into a file with what the broker says. Uses a namespace of its own, on NATS the streams of a queue of its
    own, and removes it; nothing else is touched.

    Exit codes: 0 nothing lost and every book right, 1 something lost or a book wrong, 2 bad usage, 3 the
    broker cannot be used.
    """
    if minutes is None and kills is None:
        minutes = 1.0
    seed = secrets.randbits(32) if seed is None else seed
    wishes = Wishes(minutes, kills, workers, seed, server_faults)
    show = _Line(quiet=as_json)
    with ExitStack() as stack, broker_errors():
        server: EmbeddedNats | None = None
        if broker == EMBEDDED:
            broker = stack.enter_context(EmbeddedRedis()).url
        elif broker == EMBEDDED_NATS:
            server = stack.enter_context(EmbeddedNats())
            broker = server.url
        if namespace is None:
            name = f"queueworker-chaos-{secrets.token_hex(6)}"
            namespace = f"{{{name}}}" if "+cluster:" in broker else name
        directory = Path(tempfile.mkdtemp(prefix="queueworker-chaos-"))
        on_nats = broker.startswith(SCHEMES)
        # Streams have no namespace in their names: there the queue is the place of the run.
        queue = namespace if on_nats else QUEUE
        plan = Plan(broker, namespace, str(directory / "record"), str(directory / "workers.log"), queue)
        result: Result | None = None
        try:
            ground = nats_ground(plan, server) if on_nats else redis_ground(plan)
            result = asyncio.run(_run(ground, plan, wishes, show))
        except NurseryError as error:
            raise Failure(str(error), exits.FAULT) from None
        finally:
            show.end()
            _remove_or_name(directory, result is not None and not result.verdict.faults)
    right = not result.verdict.faults
    click.echo(json.dumps(_as_json(result, wishes), indent=2) if as_json else _as_text(result, wishes))
    sys.exit(exits.STOPPED if right else exits.FAULT)


def _remove_or_name(directory: Path, right: bool) -> None:
    files = list(directory.iterdir())
    if not right and any(file.stat().st_size for file in files):
        click.echo(f"The record and the workers' log are kept in {directory}.", err=True)
        return
    for file in files:
        file.unlink()
    directory.rmdir()


async def _run(place: AbstractAsyncContextManager[Ground], plan: Plan, wishes: Wishes, show: _Line) -> Result:
    async with place as ground:
        there = await ground.occupied()
        if there:
            raise Failure(
                f"the namespace {plan.namespace} is in use (it has {there}); chaos works in an empty one"
                " only: leave --namespace out for a random one",
                exits.BAD_USAGE,
            )
        storm = Storm(plan, wishes, ground, show)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, storm.stop)
        try:
            return await storm.run()
        except BaseExceptionGroup as group:
            # What ended the run; the rest of its tasks were cancelled for it.
            first = group.exceptions[0]
            raise (first if isinstance(first, BrokerError | NurseryError) else group) from None
        finally:
            await ground.remove()


class _Line:
    """Progress on standard error: one line that moves on a terminal, else a line every few seconds."""

    def __init__(self, quiet: bool) -> None:
        self._terminal = sys.stderr.isatty()
        self._quiet = quiet and not self._terminal
        self._last = time.monotonic()
        self._shown = False

    def __call__(self, now: Progress) -> None:
        moment = time.monotonic()
        if self._quiet or (not self._terminal and moment - self._last < _LINE_EVERY):
            return
        self._last = moment
        text = (
            f"{now.phase} {moment - now.began:.0f} s: {now.kills:,} kills, {now.pauses:,} pauses,"
            f" {now.cuts:,} cuts, {now.published:,} published, {now.success:,} committed,"
            f" {now.private:,} in work"
        )
        self._shown = True
        click.echo(f"\r\x1b[K{text}" if self._terminal else text, err=True, nl=not self._terminal)

    def end(self) -> None:
        if self._terminal and self._shown:
            click.echo(err=True)


def _as_json(result: Result, wishes: Wishes) -> dict[str, Any]:
    verdict, progress = result.verdict, result.progress
    return {
        "schema": 1,
        "seed": wishes.seed,
        "workers": wishes.workers,
        "seconds": round(result.seconds, 3),
        "storm_seconds": round(result.storm_seconds, 3),
        "kills": progress.kills,
        "kills_per_second": round(progress.kills / result.storm_seconds, 2),
        "group_kills": progress.group_kills,
        "caught_with_work": result.caught,
        "pauses": progress.pauses,
        "long_pauses": progress.long_pauses,
        "cuts": progress.cuts,
        "script_flushes": progress.flushes,
        "failovers": progress.failovers,
        **{name: value for name, value in asdict(verdict).items() if name not in ("lost", "committed_twice")},
        "lost": len(verdict.lost),
        "committed_twice": len(verdict.committed_twice),
        "whereabouts": result.whereabouts,
    }


def _as_text(result: Result, wishes: Wishes) -> str:
    verdict, progress = result.verdict, result.progress
    rate = progress.kills / result.storm_seconds
    outcomes = verdict.outcomes
    rows = {
        "kills (SIGKILL)": f"{progress.kills:,} in {result.storm_seconds:.1f} s, {rate:.1f} a second",
        "  with work in hand": f"{result.caught:,}",
        "  of whole supervisors": f"{progress.group_kills:,}",
        "pauses (SIGSTOP)": f"{progress.pauses:,}, {progress.long_pauses:,} longer than the expiry",
        "connections cut": f"{progress.cuts:,} times all of a worker's",
        **({f"{result.forgets} flushed": f"{progress.flushes:,} times"} if result.forgets else {}),
        **({result.server_faults: f"{progress.failovers:,} times"} if wishes.server_faults else {}),
        "published": f"{verdict.published:,}",
        "handled": f"{verdict.handled:,}",
        "lost": f"{len(verdict.lost):,}",
        "committed twice": f"{len(verdict.committed_twice):,}",
        "ran more than once": f"{verdict.duplicated:,}",
        "told superseded": f"{outcomes.get('superseded', 0) + outcomes.get('missing', 0):,}",
        "told unknown": f"{outcomes.get('unknown', 0):,}",
        "revisions": ", ".join(REVISIONS),
        "whole run": f"{result.seconds:.1f} s, seed {wishes.seed}",
    }
    lines = [f"{name:<28} {value}" for name, value in rows.items()]
    if verdict.faults:
        lines += ["", *[f"WRONG: {fault}." for fault in verdict.faults], *result.whereabouts]
    else:
        once = "nothing was committed twice, " if not verdict.committed_twice else ""
        lines += ["", f"Nothing was lost, {once}and every book balances."]
    return "\n".join(lines)
