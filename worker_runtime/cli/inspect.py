"""`queueworker inspect`: where the messages of a queue are at this moment."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from worker_runtime.app import App
from worker_runtime.brokers.base import BrokerError, Retained, Timing
from worker_runtime.cli.options import (
    BROKER_FIELDS,
    PATIENCE,
    Seconds,
    broker_errors,
    read_settings,
    setting_options,
)
from worker_runtime.cli.reading import as_json as reading_as_json, as_text
from worker_runtime.cli.retained import read_retained, retained_as_json, retained_lines

#: Seconds between two readings when --watch names none.
PERIOD = 2.0
#: Messages of each list when --retained names no number.
RETAINED = 10
#: Clears a terminal and goes to its upper left corner.
_CLEAR = "\x1b[2J\x1b[H"


class _MayBeLeftOut(click.ParamType):  # type: ignore[type-arg] # not generic in older releases of click
    """The value of an option that needs none. A word behind such an option may have been meant as QUEUE."""

    def __init__(self, number: click.FloatRange | click.IntRange) -> None:
        self._number = number
        self.name = number.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._number.convert(value, param, ctx)
        except click.BadParameter as error:
            option = param.opts[0] if param is not None else "the option"
            why = error.message.rstrip(".")
            self.fail(f"{why}. If {value!r} is the queue, name it before {option}.", param, ctx)


@click.command("inspect", short_help="Show where messages are, who holds them, who lives.")
@click.argument("queue")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--watch",
    "period",
    type=_MayBeLeftOut(Seconds(min=0.05)),
    is_flag=False,
    flag_value=PERIOD,
    metavar="[SECONDS]",
    help=f"Read again every so many seconds (default {PERIOD:g}) until Ctrl-C; as JSON one reading a line.",
)
@click.option(
    "--retained",
    "retained",
    type=_MayBeLeftOut(click.IntRange(min=1)),
    is_flag=False,
    flag_value=RETAINED,
    metavar="[N]",
    help=f"List the newest N (default {RETAINED}) failed and dead messages too, with reason and payload.",
)
@setting_options(BROKER_FIELDS)
def inspect_command(
    queue: str, as_json: bool, period: float | None, retained: int | None, **flags: Any
) -> None:
    """Show how many messages of QUEUE are where, who holds them, who lives, and the books of each revision.

    Exit codes: 0 read, 3 the broker cannot be used.
    """
    settings, _ = read_settings(flags)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))
    try:
        with broker_errors():
            look = _Look(app, queue, as_json, retained)
            asyncio.run(_once(look) if period is None else _watch(look, period))
    except KeyboardInterrupt:
        pass


class _Look:
    """What one reading asks for and how it is shown."""

    def __init__(self, app: App, queue: str, as_json: bool, retained: int | None) -> None:
        broker = app.make_broker()
        self.as_json = as_json
        self._queue = queue
        self._inspector = broker.inspector()
        self._maintenance = broker.maintenance()
        self._retained = retained

    async def read(self, indent: int | None = None) -> str:
        """A reading as text."""
        reading = await self._inspector.read(self._queue)
        found: dict[str, Sequence[Retained]] = {}
        if self._retained is not None:
            found = await read_retained(self._maintenance, self._queue, self._retained)
        if not self.as_json:
            return "\n".join([as_text(reading), *retained_lines(found)])
        extra = {} if self._retained is None else {"retained": retained_as_json(found)}
        return json.dumps({**reading_as_json(reading), **extra}, indent=indent)

    async def close(self) -> None:
        await self._inspector.close()
        await self._maintenance.close()


async def _once(look: _Look) -> None:
    try:
        click.echo(await look.read(indent=2))
    finally:
        await look.close()


async def _watch(look: _Look, period: float) -> None:
    """An outage in between is told and does not end it; a broker that cannot be used at the start does."""
    screen = not look.as_json and sys.stdout.isatty()
    first = True
    try:
        while True:
            try:
                text = await look.read()
            except BrokerError as error:
                if first:
                    raise
                click.echo(str(error), err=True)
            else:
                between = "" if first or look.as_json or screen else "\n"
                click.echo(f"{_CLEAR if screen else between}{text}")
                sys.stdout.flush()
            first = False
            await asyncio.sleep(period)
    finally:
        await look.close()
