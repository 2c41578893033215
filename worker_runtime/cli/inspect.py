"""`queueworker inspect`: where the messages of a queue are at this moment."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click

from worker_runtime.app import App
from worker_runtime.brokers.base import BrokerError, QueueReading, Timing
from worker_runtime.cli.options import BROKER_FIELDS, PATIENCE, broker_errors, read_settings, setting_options
from worker_runtime.cli.reading import as_json as reading_as_json
from worker_runtime.cli.reading import as_text

#: Seconds between two readings when --watch names none.
PERIOD = 2.0
#: Clears a terminal and goes to its upper left corner.
_CLEAR = "\x1b[2J\x1b[H"


@click.command("inspect")
@click.argument("queue")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--watch",
    "period",
    type=click.FloatRange(min=0.05),
    is_flag=False,
    flag_value=PERIOD,
    metavar="[SECONDS]",
    help=f"Read again every so many seconds (default {PERIOD:g}) until Ctrl-C; as JSON one reading a line.",
)
@setting_options(BROKER_FIELDS)
def inspect_command(queue: str, as_json: bool, period: float | None, **flags: Any) -> None:
    """Show how many messages of QUEUE are where, who holds them, who lives, and the books of each revision.

    Exit codes: 0 read, 3 the broker cannot be used.
    """
    settings, _ = read_settings(flags)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))
    if period is None:
        with broker_errors():
            reading = asyncio.run(_read(app, queue))
        click.echo(json.dumps(reading_as_json(reading), indent=2) if as_json else as_text(reading))
        return
    try:
        with broker_errors():
            asyncio.run(_watch(app, queue, as_json, period))
    except KeyboardInterrupt:
        pass


async def _read(app: App, queue: str) -> QueueReading:
    inspector = app.make_broker().inspector()
    try:
        return await inspector.read(queue)
    finally:
        await inspector.close()


async def _watch(app: App, queue: str, as_json: bool, period: float) -> None:
    """An outage in between is told and does not end it; a broker that cannot be used at the start does."""
    inspector = app.make_broker().inspector()
    screen = not as_json and sys.stdout.isatty()
    first = True
    try:
        while True:
            try:
                reading = await inspector.read(queue)
            except BrokerError as error:
                if first:
                    raise
                click.echo(str(error), err=True)
            else:
                text = json.dumps(reading_as_json(reading)) if as_json else as_text(reading)
                between = "" if first or as_json or screen else "\n"
                click.echo(f"{_CLEAR if screen else between}{text}")
                sys.stdout.flush()
            first = False
            await asyncio.sleep(period)
    finally:
        await inspector.close()
