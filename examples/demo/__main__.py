"""One thousand jobs through a change of version, then a canary and a rollback, on this machine: `make demo`.

Starts `queueworker up` on a copy of examples/queueworker.yaml (or, with `make demo BROKER=nats`,
queueworker-nats.yaml), publishes the events of a file, changes the version of the resource half way, shows
how workers of both revisions consume, and adds up at the end. On Redis the same follows with
examples/queueworker-canary.yaml: a new version in steps, its promotion, and the way back, under load. Exit
code 0 only if every job was committed and nothing private is left on the broker.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
from rich.console import Console

from examples.demo.adding_up import summary
from examples.demo.canary import CANARY_RESOURCE, canary_and_rollback
from examples.demo.change import EVENT_FILE, RESOURCES, change_of_version
from examples.demo.picture import NAMESPACE, QUEUE, Progressing, drawn
from examples.demo.up import DemoFailed, Up, running
from worker_runtime.brokers.connect import broker_from_url

PATIENCE = 120.0


@asynccontextmanager
async def _shown(progress: Progressing, console: Console, up: Up, url: str) -> AsyncIterator[None]:
    """Its picture, from a first look to the end of the block."""
    inspector = broker_from_url(url, NAMESPACE).inspector()

    async def look() -> None:
        progress.status = up.status()
        progress.reading = await inspector.read(QUEUE)

    try:
        await look()
        async with drawn(progress, console, look):
            yield
    finally:
        await inspector.close()


async def _first_act(console: Console, work: Path, broker: str) -> bool:
    events = [row.encode() for row in EVENT_FILE.read_text().splitlines()]
    progress = Progressing(jobs=len(events), keeps_ledger=broker == "redis")
    totals = "" if broker == "redis" else f"sqlite://{work / 'totals.db'}"
    source = RESOURCES[broker]
    console.print(
        f"[bold]queueworker up -f examples/{source.name}[/] with an embedded broker, {len(events)} jobs, "
        "a new version half way. About 25 seconds."
    )
    async with running(work, source, {"USAGE_TOTALS_URL": totals} if totals else {}) as up:
        url = await up.first_workers()
        async with _shown(progress, console, up, url):
            text = source.read_text()
            await change_of_version(progress, url, events, text, up.apply, up.until, PATIENCE)
        return await summary(progress, url, events, console, totals)


async def _second_act(console: Console, work: Path) -> bool:
    progress = Progressing()
    console.print(
        f"[bold]queueworker up -f examples/{CANARY_RESOURCE.name}[/]: a new version through the arms of a "
        "canary, its promotion, and the way back, under load. About 2 minutes."
    )
    async with running(work, CANARY_RESOURCE, {}) as up:
        url = await up.first_workers()
        async with _shown(progress, console, up, url):
            text = CANARY_RESOURCE.read_text()
            published = await canary_and_rollback(progress, url, text, up.apply, up.until, console, PATIENCE)
        return await summary(progress, url, published, console)


async def _demo(console: Console, work: Path, broker: str, act: str) -> int:
    task = asyncio.current_task()
    if task:
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: stop what was started
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    good = True
    if act in ("all", "change"):
        good = await _first_act(console, work / "change", broker)
    if act == "canary" or (act == "all" and broker == "redis"):
        good = await _second_act(console, work / "canary") and good
    return 0 if good else 1


@click.command()
@click.option("--broker", type=click.Choice(sorted(RESOURCES)), default="redis", show_default=True)
@click.option(
    "--act",
    type=click.Choice(["all", "change", "canary"]),
    default="all",
    show_default=True,
    help="A change of version; or, on Redis, a canary and a rollback.",
)
def main(broker: str, act: str) -> None:
    """One thousand jobs through a change of version, then a canary and a rollback, on this machine."""
    if act == "canary" and broker != "redis":
        raise click.UsageError("the gates of the canary need the books that Redis keeps: leave --broker out")
    sys.exit(run(broker, act))


def run(broker: str, act: str) -> int:
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    work = Path(tempfile.mkdtemp(prefix="queueworker-demo-"))
    for one in ("change", "canary"):
        (work / one).mkdir()
    try:
        code = asyncio.run(_demo(console, work, broker, act))
    except DemoFailed as failure:
        console.print("[red]The demo failed:[/]", end=" ")
        console.print(str(failure), markup=False)
        code = 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Stopped; all that the demo started is gone.")
        code = 130
    if code == 1:
        console.print(f"Everything it wrote is kept in {work}", markup=False)
    else:
        shutil.rmtree(work, ignore_errors=True)
    return code


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
