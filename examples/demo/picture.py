"""What the demo shows while it runs: a live picture on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from worker_runtime.brokers.base import QueueReading

QUEUE, NAMESPACE, NAME = "stats-usage", "utopia-queue", "stats-usage"
#: Seconds between two looks, and between two lines of a log in which the stage is the same.
LOOK, LINE = 0.25, 5.0


@dataclass
class Progressing:
    """What the picture shows."""

    #: To be published in all; 0 while nobody knows.
    jobs: int = 0
    published: int = 0
    #: What happens now; empty says what the status says.
    stage: str = ""
    reading: QueueReading | None = None
    status: dict[str, Any] = field(default_factory=dict)
    #: Whether the broker counts for each revision (JetStream does not).
    keeps_ledger: bool = True
    #: Why the last look failed; empty when it did not.
    trouble: str = ""

    @property
    def settled(self) -> int:
        return self.reading.success + self.reading.failed if self.reading else 0

    @property
    def revisions(self) -> dict[str, dict[str, Any]]:
        """The rows of the status, by name."""
        return {row["name"]: row for row in self.status.get("revisions", [])}

    @property
    def now(self) -> str:
        if self.stage:
            return self.stage
        rollout = self.status.get("rollout", {})
        step = f" {rollout['step']}" if rollout.get("step") else ""
        return f"{rollout.get('stage', 'starting')}{step}"

    @property
    def why(self) -> str:
        """What is known of a wait that takes too long."""
        if self.trouble:
            return f"looking fails: {self.trouble}"
        for condition in self.status.get("conditions", []):
            if condition["type"] == "Ready" and condition["status"] != "True":
                return f"{condition['reason']}: {condition['message']}"
        return f"the stage is {self.now}"

    def books_of(self, revision: str) -> tuple[str, ...]:
        """What the broker says of a revision: its row of the ledger, else what its workers hold."""
        if not self.keeps_ledger:
            workers = self.reading.workers if self.reading else ()
            return (str(sum(one.outstanding for one in workers if one.revision == revision)),)
        row = self.reading.ledger.get(revision) if self.reading else None
        return (str(row.committed), str(row.taken_over), str(row.released)) if row else ("0", "0", "0")


def is_ready(status: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))


def picture(progress: Progressing) -> Group:
    """The live view: two bars, the revisions, and the places where a message can be."""
    bars = Progress(TextColumn("{task.description:10}"), BarColumn(48), MofNCompleteColumn())
    bars.add_task("published", total=progress.jobs or None, completed=progress.published)
    bars.add_task("settled", total=progress.jobs or progress.published, completed=progress.settled)
    ledger = progress.reading.ledger if progress.reading else {}
    books = ("committed", "taken over", "released") if progress.keeps_ledger else ("in hand",)
    revisions = Table("revision", "role", "workers", "ready", *books, box=None)
    shown = progress.revisions
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
    if progress.trouble:
        where += "\n" + escape(progress.why)
    return Group(f"[bold]{progress.now}[/]", bars, revisions, where)


def line(progress: Progressing) -> str:
    """The same for a log: one line, with the revisions that have workers."""
    ledger = progress.reading.ledger if progress.reading else {}
    names = [name for name, row in progress.revisions.items() if row.get("replicas")] or list(ledger)
    said = "committed" if progress.keeps_ledger else "in hand"
    books = "  ".join(f"{name} {said} {progress.books_of(name)[0]}" for name in sorted(names))
    trouble = f"  ({progress.why})" if progress.trouble else ""
    return (
        f"{progress.now:34} published {progress.published:5}  settled {progress.settled:5}  {books}{trouble}"
    )


@asynccontextmanager
async def drawn(
    progress: Progressing, console: Console, look: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """Look and draw as long as the block runs, and once more at its end. `look` reads the broker and the
    operator into `progress`."""

    async def look_once() -> None:
        try:
            await look()
            progress.trouble = ""
        except Exception as error:  # it is shown, and the next look may work
            progress.trouble = str(error) or type(error).__name__

    async def forever() -> None:
        if console.is_terminal:
            with Live(picture(progress), console=console, refresh_per_second=4) as live:
                while True:
                    await look_once()
                    live.update(picture(progress))
                    await asyncio.sleep(LOOK)
        said, stage = 0.0, ""
        while True:
            await look_once()
            if progress.now != stage or time.monotonic() >= said + LINE:
                said, stage = time.monotonic(), progress.now
                console.print(line(progress), highlight=False, markup=False)
            await asyncio.sleep(LOOK)

    drawing = asyncio.create_task(forever())
    try:
        yield
        await look_once()
        await asyncio.sleep(2 * LOOK)  # the last picture shows the end
    finally:
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
