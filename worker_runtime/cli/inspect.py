"""`queueworker inspect`: where the messages of a queue are at this moment."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, fields
from typing import Any

import click

from worker_runtime.app import App
from worker_runtime.brokers.base import LedgerRow, QueueReading, Timing
from worker_runtime.cli.options import BROKER_FIELDS, PATIENCE, broker_errors, read_settings, setting_options

_PLACES = (
    ("ready", "wait for a worker"),
    ("staging", "woke a worker up, taken next"),
    ("reserved", "taken, not yet claimed"),
    ("owned", "with a worker"),
    ("processing", "entries in the processing list"),
    ("delayed", "wait for their time"),
    ("failed", "rejected, to be retried"),
    ("dead", "given up"),
    ("poison", "could not be decoded"),
)


@click.command("inspect")
@click.argument("queue")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@setting_options(BROKER_FIELDS)
def inspect_command(queue: str, as_json: bool, **flags: Any) -> None:
    """Show how many messages of QUEUE are where, who holds them, and the books of each revision.

    Exit codes: 0 read, 3 the broker cannot be used.
    """
    settings, _ = read_settings(flags)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))
    with broker_errors():
        reading = asyncio.run(_read(app, queue))
    if as_json:
        click.echo(json.dumps({**asdict(reading), "private": reading.private}, indent=2))
    else:
        click.echo(_table(reading))


async def _read(app: App, queue: str) -> QueueReading:
    inspector = app.make_broker().inspector()
    try:
        return await inspector.read(queue)
    finally:
        await inspector.close()


def _table(reading: QueueReading) -> str:
    lines = [f"Queue {reading.queue}"]
    for name, meaning in _PLACES:
        count = getattr(reading, name)
        age = ""
        if name == "ready" and reading.oldest_ready_age is not None:
            age = f"; the oldest for {reading.oldest_ready_age:.0f} s"
        lines.append(f"  {name:<11}{count:>9,}  {meaning}{age}")
    lines.append(f"  {'total':<11}{reading.total:>9,}  claimed ever; {reading.success:,} committed")
    if reading.reservations:
        lines.append("Reservations")
        lines += [
            f"  {each.id}  {each.size} messages, "
            + (f"{each.deadline_in:.1f} s left" if each.deadline_in >= 0 else "overdue")
            for each in reading.reservations
        ]
    if reading.owners:
        lines.append("Held by")
        lines += [f"  {worker}  {count:,}" for worker, count in sorted(reading.owners.items())]
    if reading.fences:
        lines.append("Fences")
        lines += [f"  {revision}  {reason}" for revision, reason in sorted(reading.fences.items())]
    if reading.ledger:
        names = [field.name for field in fields(LedgerRow)]
        width = max(len("revision"), *(len(revision) for revision in reading.ledger))
        lines.append("Ledger")
        lines.append("  " + "revision".ljust(width) + "".join(f"{name:>12}" for name in names))
        lines += [
            "  " + revision.ljust(width) + "".join(f"{getattr(row, name):>12,}" for name in names)
            for revision, row in sorted(reading.ledger.items())
        ]
    return "\n".join(lines)
