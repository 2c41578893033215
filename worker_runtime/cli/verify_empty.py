"""`queueworker verify-empty`: proof, by exit code, that nothing is left that only this protocol can read."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import click

from worker_runtime import exits
from worker_runtime.app import App
from worker_runtime.brokers.base import Timing
from worker_runtime.brokers.emptiness import Emptiness, verify_empty
from worker_runtime.cli.options import (
    BROKER_FIELDS,
    PATIENCE,
    Seconds,
    broker_errors,
    read_settings,
    setting_options,
)
from worker_runtime.cli.reading import as_json as reading_as_json, as_text


@click.command("verify-empty", short_help="Prove that nothing is left that older workers cannot read.")
@click.argument("queue")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict and the reading as JSON.")
@click.option(
    "--quiet-seconds",
    type=Seconds(min=0),
    default=0.0,
    show_default=True,
    help="How long it must stay empty and still; longer than the workers' blocking time.",
)
@click.option(
    "--timeout",
    type=Seconds(min=0),
    help="Seconds to wait at most for the quiet time. [default: 10 x quiet-seconds + 60]",
)
@setting_options(BROKER_FIELDS)
def verify_empty_command(
    queue: str, as_json: bool, quiet_seconds: float, timeout: float | None, **flags: Any
) -> None:
    """End with 0 only if nothing is left in QUEUE that only this protocol can read: nothing in staging,
    reserved, owned or delayed. Ready, failed and dead messages may be there: workers of older protocols read
    those.

    Exit codes: 0 empty, 6 not empty (or not still for long enough), 2 bad usage, 3 the broker cannot be used
    or is not the primary.
    """
    settings, _ = read_settings(flags)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))
    with broker_errors():
        found = asyncio.run(_verify(app, queue, quiet_seconds, timeout))
    if as_json:
        verdict = {
            "empty": found.empty,
            "why": found.why,
            "quiet_for": round(found.quiet_for, 3),
            "readings": found.readings,
            "reading": reading_as_json(found.reading),
        }
        click.echo(json.dumps(verdict, indent=2))
    elif found.empty:
        still = f", still for {found.quiet_for:.1f} s" if quiet_seconds else ""
        click.echo(f"{queue} holds nothing private{still} ({found.reading.ready:,} ready).")
    else:
        click.echo(as_text(found.reading))
        click.echo(f"{queue} is not proven empty: {found.why}.", err=True)
    sys.exit(exits.STOPPED if found.empty else exits.NOT_EMPTY)


async def _verify(app: App, queue: str, quiet: float, timeout: float | None) -> Emptiness:
    inspector = app.make_broker().inspector()
    try:
        return await verify_empty(inspector, queue, quiet, timeout)
    finally:
        await inspector.close()
