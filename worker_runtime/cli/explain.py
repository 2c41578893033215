"""`queueworker explain`: where one message is, why it has not run, and what to do."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

import click

from worker_runtime import exits
from worker_runtime.app import App
from worker_runtime.brokers.base import Place, QueueReading, Timing, Whereabouts
from worker_runtime.cli.diagnosis import Diagnosis, diagnose
from worker_runtime.cli.options import (
    BROKER_FIELDS,
    PATIENCE,
    broker_errors,
    in_utf8,
    read_settings,
    setting_options,
)


@click.command("explain", short_help="Say where one message is, and why it does not run.")
@click.argument("queue")
@click.argument("pid", callback=in_utf8)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--scan",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Entries to look at in each long list, from the end that is taken next.",
)
@setting_options(BROKER_FIELDS)
def explain_command(queue: str, pid: str, as_json: bool, scan: int, **flags: Any) -> None:
    """Say where the message PID of QUEUE is, why it has not run yet, and the way out.

    Exit codes: 0 found, 7 not found, 2 bad usage, 3 the broker cannot be used.
    """
    settings, _ = read_settings(flags)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))
    with broker_errors():
        found, reading = asyncio.run(_find(app, queue, pid, scan))
    diagnosis = diagnose(found, reading)
    if as_json:
        click.echo(json.dumps({**asdict(found), "place": found.place.value, **asdict(diagnosis)}, indent=2))
    else:
        click.echo("\n".join(_lines(found, diagnosis)))
    sys.exit(exits.NOT_FOUND if found.place is Place.NOWHERE else exits.STOPPED)


async def _find(app: App, queue: str, pid: str, scan: int) -> tuple[Whereabouts, QueueReading]:
    inspector = app.make_broker().inspector()
    try:
        found = await inspector.find(queue, pid, scan)
        return found, await inspector.read(queue)
    finally:
        await inspector.close()


def _lines(found: Whereabouts, diagnosis: Diagnosis) -> list[str]:
    lines = [f"Message    {found.pid}", f"Where      {diagnosis.where}"]
    if found.published_ago is not None:
        lines.append(f"Published  {found.published_ago:.0f} s ago")
    if found.attempts is not None:
        lines.append(f"Attempts   {found.attempts} before this one")
    if found.takeovers:
        lines.append(f"Takeovers  {found.takeovers}: workers that had it died or fell silent")
    if found.reason:
        lines.append(f"Reason     {found.reason}")
    return [*lines, f"Why        {diagnosis.why}", f"Way out    {diagnosis.way_out}"]
