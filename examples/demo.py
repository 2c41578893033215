"""One thousand jobs through a change of version, on this machine: `make demo`, or `make demo BROKER=nats`.

Starts `queueworker up` on a copy of examples/queueworker.yaml (or queueworker-nats.yaml), publishes the
events of a file, changes the version of the resource half way, shows how workers of both revisions consume,
and adds up at the end. Exit code 0 only if every job was committed and nothing private is left on the broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from examples.usage.totals import open_totals
from queueworker_operator.act.processes import end_with_parent
from worker_runtime.brokers.base import BrokerError, QueueReading
from worker_runtime.brokers.connect import broker_from_url

ROOT = Path(__file__).resolve().parent.parent
RESOURCE = ROOT / "examples" / "queueworker.yaml"
#: By the word for --broker.
RESOURCES = {"redis": RESOURCE, "nats": ROOT / "examples" / "queueworker-nats.yaml"}
EVENT_FILE = ROOT / "examples" / "usage" / "events.jsonl"
QUEUE, NAMESPACE, NAME = "stats-usage", "utopia-queue", "stats-usage"
#: Slow enough that the change of version is seen, fast enough for a demo of half a minute.
BATCH, PAUSE, PAUSE_AFTER_CHANGE = 10, 0.08, 0.16
#: Jobs that are kept until the change is through, so that the new version has work on a slow machine too.
KEPT = 100
START_SECONDS, FINISH_SECONDS, STOP_SECONDS = 45.0, 120.0, 45.0


class DemoFailed(Exception):
    """The demo cannot go on; the text says where the reason can be read."""


@dataclass
class Progressing:
    """What the picture shows."""

    jobs: int
    published: int = 0
    stage: str = "starting"
    reading: QueueReading | None = None
    state: dict[str, Any] = field(default_factory=dict)
    #: Whether the broker counts for each revision (JetStream does not).
    keeps_ledger: bool = True

    def books_of(self, revision: str) -> tuple[str, ...]:
        """What the broker says of a revision: its row of the ledger, else what its workers hold."""
        if not self.keeps_ledger:
            workers = self.reading.workers if self.reading else ()
            return (str(sum(one.outstanding for one in workers if one.revision == revision)),)
        row = self.reading.ledger.get(revision) if self.reading else None
        return (str(row.committed), str(row.taken_over), str(row.released)) if row else ("0", "0", "0")

    @property
    def settled(self) -> int:
        return self.reading.success + self.reading.failed if self.reading else 0


def read_state(directory: Path) -> dict[str, Any]:
    """What `queueworker up` says of itself; empty before it has written anything."""
    try:
        state: dict[str, Any] = json.loads((directory / "up.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return state


def status_of(state: dict[str, Any]) -> dict[str, Any]:
    status: dict[str, Any] = state.get("resources", {}).get(NAME, {}).get("status", {})
    return status


def is_ready(status: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))


def picture(progress: Progressing) -> Group:
    """The live view: two bars, the revisions, and the places where a message can be."""
    bars = Progress(TextColumn("{task.description:10}"), BarColumn(48), MofNCompleteColumn())
    bars.add_task("published", total=progress.jobs, completed=progress.published)
    bars.add_task("settled", total=progress.jobs, completed=progress.settled)
    ledger = progress.reading.ledger if progress.reading else {}
    books = ("committed", "taken over", "released") if progress.keeps_ledger else ("in hand",)
    revisions = Table("revision", "role", "workers", "ready", *books, box=None)
    shown = {row["name"]: row for row in status_of(progress.state).get("revisions", [])}
    for name in [*(n for n in ledger if n not in shown), *shown]:
        row = shown.get(name, {})
        revisions.add_row(
            name,
            str(row.get("role", "gone")),
            str(row.get("replicas", 0)),
            str(row.get("readyReplicas", 0)),
            *progress.books_of(name),
        )
    where = "waiting for the broker"
    if r := progress.reading:
        where = f"ready {r.ready}   reserved {r.reserved}   in work {r.owned}   failed {r.failed}"
    return Group(f"[bold]{progress.stage}[/]", bars, revisions, where)


def line(progress: Progressing) -> str:
    """The same for a log: one line."""
    names = [row["name"] for row in status_of(progress.state).get("revisions", [])]
    names += [name for name in (progress.reading.ledger if progress.reading else {}) if name not in names]
    said = "committed" if progress.keeps_ledger else "in hand"
    books = "  ".join(f"{name} {said} {progress.books_of(name)[0]}" for name in sorted(names))
    return f"{progress.stage:34} published {progress.published:5}  settled {progress.settled:5}  {books}"


async def show(progress: Progressing, console: Console, url: str, state_dir: Path) -> None:
    """Read the broker and the operator twice a second and draw, until cancelled."""
    inspector = broker_from_url(url, NAMESPACE).inspector()

    async def look() -> None:
        progress.state = read_state(state_dir)
        progress.reading = await inspector.read(QUEUE)

    try:
        if console.is_terminal:
            with Live(picture(progress), console=console, refresh_per_second=4) as live:
                while True:
                    await look()
                    live.update(picture(progress))
                    await asyncio.sleep(0.25)
        while True:
            await look()
            console.print(line(progress), highlight=False, markup=False)
            await asyncio.sleep(1)
    finally:
        await inspector.close()


async def publish(
    progress: Progressing, url: str, events: Sequence[bytes], change: asyncio.Event, changed: asyncio.Event
) -> None:
    """Publish in small batches; say when half is out, and keep the last until the version has `changed`."""
    publisher = broker_from_url(url, NAMESPACE).publisher()
    try:
        for start in range(0, len(events), BATCH):
            if start >= len(events) - KEPT:
                await changed.wait()
            progress.published += len(await publisher.publish_many(QUEUE, events[start : start + BATCH]))
            if progress.published >= len(events) // 2:
                change.set()
            await asyncio.sleep(PAUSE_AFTER_CHANGE if change.is_set() else PAUSE)
    except BrokerError as error:
        raise DemoFailed(f"after {progress.published} jobs, publishing failed: {error}") from error
    finally:
        await publisher.close()


async def half_way(publishing: asyncio.Task[None], change: asyncio.Event) -> None:
    """Wait until half is published. Raises what ended the publishing before."""
    waiting = asyncio.ensure_future(change.wait())
    await asyncio.wait({publishing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not change.is_set():
        publishing.result()


async def until(what: str, seconds: float, done: Any, up: asyncio.subprocess.Process, log: Path) -> None:
    """Wait for `done()`; name what was waited for, and the log, when it does not come."""
    deadline = time.monotonic() + seconds
    while not done():
        if up.returncode is not None:
            raise DemoFailed(
                f"queueworker up ended with exit code {up.returncode} while waiting for {what}.\n{tail(log)}"
            )
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what} did not come within {seconds:.0f} s.\n{tail(log)}")
        await asyncio.sleep(0.1)


def tail(log: Path, lines: int = 25) -> str:
    return "The last lines of its log:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


async def summary(
    progress: Progressing, url: str, events: Sequence[bytes], console: Console, totals: str = ""
) -> bool:
    """Add up on the broker and in the store (`totals`, else the broker); true if nothing is missing."""
    inspector = broker_from_url(url, NAMESPACE).inspector()
    reading = await inspector.read(QUEUE)
    await inspector.close()
    store = open_totals(totals or url)
    stored = await store.read()
    await store.close()

    wanted: Counter[str] = Counter()
    for event in map(json.loads, events):
        wanted[f"{event['project']}/{event['metric']}"] += event["value"]
    counted: Counter[str] = Counter()
    for row in stored.rows.values():
        key, _, value = row.rpartition(" ")
        counted[key] += int(value)
    # JetStream keeps no ledger of revisions; it knows what left the queue and is no dead letter.
    committed = sum(row.committed for row in reading.ledger.values()) if reading.ledger else reading.success
    by_revision = ", ".join(f"{name}: {row.committed}" for name, row in sorted(reading.ledger.items()))
    duplicates = sum(count - 1 for count in stored.handled.values())
    left = reading.ready + reading.private + reading.processing + reading.dead
    good = committed == progress.published == len(events) and reading.failed == left == reading.poison == 0
    good = good and wanted == counted and reading.private == 0

    table = Table("", "", show_header=False, box=None)
    table.add_row("published", str(progress.published))
    table.add_row(
        "committed",
        f"{committed}  ({by_revision})" if by_revision else str(committed),
    )
    table.add_row("failed", str(reading.failed + reading.dead + reading.poison))
    table.add_row(
        "left over",
        f"{left}  (staging {reading.staging}, reserved {reading.reserved}, owned {reading.owned})",
    )
    table.add_row("duplicates", str(duplicates))
    versions = sorted(stored.by_version.items())
    table.add_row("versions", ", ".join(f"{name} handled {count}" for name, count in versions))
    table.add_row(
        "totals", f"{'equal to' if wanted == counted else 'DIFFERENT from'} those of {EVENT_FILE.name}"
    )
    console.rule()
    console.print(table)
    return good


async def stop(up: asyncio.subprocess.Process) -> int:
    """Ctrl-C, as a person would; kill only what does not obey."""
    if up.returncode is None:
        up.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(up.wait(), STOP_SECONDS)
        except TimeoutError:
            up.kill()
            await up.wait()
    return up.returncode or 0


async def demo(console: Console, work: Path, broker: str) -> int:
    task = asyncio.current_task()
    if task:
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: stop what was started
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    events = [row.encode() for row in EVENT_FILE.read_text().splitlines()]
    progress = Progressing(jobs=len(events), keeps_ledger=broker == "redis")
    totals = "" if broker == "redis" else f"sqlite://{work / 'totals.db'}"
    resource, state_dir, log = work / "queueworker.yaml", work / "state", work / "up.log"
    shutil.copy(RESOURCES[broker], resource)
    command = [
        *(sys.executable, "-m", "worker_runtime.cli.main", "up"),
        *("-f", str(resource), "--state-dir", str(state_dir)),
    ]
    console.print(
        f"[bold]queueworker up -f examples/{RESOURCES[broker].name}[/] with an embedded broker, "
        f"{len(events)} jobs, "
        "a new version half way. About 25 seconds."
    )
    with log.open("wb") as output:
        up = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=os.environ | ({"USAGE_TOTALS_URL": totals} if totals else {}),
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent(os.getpid()),
        )
    drawing: asyncio.Task[None] | None = None
    try:
        await until(
            "the first workers", START_SECONDS, lambda: is_ready(status_of(read_state(state_dir))), up, log
        )
        state = read_state(state_dir)
        url, old = str(state["broker_url"]), status_of(state)["stable"]["revision"]
        progress.stage = f"{old} consumes"
        drawing = asyncio.create_task(show(progress, console, url, state_dir))
        change, changed = asyncio.Event(), asyncio.Event()
        publishing = asyncio.create_task(publish(progress, url, events, change, changed))

        await half_way(publishing, change)
        text = resource.read_text()
        resource.write_text(text.replace("value: v1", "value: v2"))
        progress.stage = "version changed: both consume"

        def rolled() -> bool:
            status = status_of(progress.state)
            return status.get("stable", {}).get("revision") not in (None, old) and is_ready(status)

        await until("the end of the change of version", FINISH_SECONDS, rolled, up, log)
        progress.stage = f"{status_of(progress.state)['stable']['revision']} consumes"
        changed.set()
        await publishing
        await until("the last settlement", FINISH_SECONDS, lambda: progress.settled >= len(events), up, log)
        await asyncio.sleep(0.6)  # one more frame, so that the last picture shows the end
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
        good = await summary(progress, url, events, console, totals)
    finally:
        if drawing:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)
        code = await stop(up)
    if code != 0:
        raise DemoFailed(f"queueworker up ended with exit code {code} instead of 0.\n{tail(log)}")
    console.print("[green]Nothing was lost.[/]" if good else "[red]Not every job was committed.[/]")
    return 0 if good else 1


@click.command()
@click.option("--broker", type=click.Choice(sorted(RESOURCES)), default="redis", show_default=True)
def main(broker: str) -> None:
    """One thousand jobs through a change of version, on this machine."""
    sys.exit(run(broker))


def run(broker: str) -> int:
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    work = Path(tempfile.mkdtemp(prefix="queueworker-demo-"))
    try:
        code = asyncio.run(demo(console, work, broker))
    except DemoFailed as failure:
        console.print(f"[red]The demo failed:[/] {failure}", markup=True)
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
