"""Whether every job was done, added up from the broker and from the store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from examples.demo.picture import NAMESPACE, QUEUE, Progressing
from examples.usage.totals import open_totals
from worker_runtime.brokers.connect import broker_from_url


async def summary(
    progress: Progressing, url: str, events: Sequence[bytes], console: Console, totals: str = ""
) -> bool:
    """Add up on the broker and in the store (`totals`, else the broker); true if nothing is missing of the
    published `events`."""
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
    table.add_row("committed", f"{committed}  ({by_revision})" if by_revision else str(committed))
    table.add_row("failed", str(reading.failed + reading.dead + reading.poison))
    table.add_row(
        "left over",
        f"{left}  (staging {reading.staging}, reserved {reading.reserved}, owned {reading.owned})",
    )
    table.add_row("duplicates", str(duplicates))
    versions = sorted(stored.by_version.items())
    table.add_row("versions", ", ".join(f"{name} handled {count}" for name, count in versions))
    table.add_row("totals", f"{'equal to' if wanted == counted else 'DIFFERENT from'} what was published")
    console.rule()
    console.print(table)
    console.print("[green]Nothing was lost.[/]" if good else "[red]Not every job was committed.[/]")
    return good
