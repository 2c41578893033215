"""`queueworker recover`: return what dead workers left, without waiting for a live one to do it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import click

from worker_runtime.brokers.base import Recovered
from worker_runtime.cli.maintenance import MAINTENANCE_FIELDS, Progress, maintenance_of
from worker_runtime.cli.options import broker_errors, read_settings, setting_options


@click.command("recover", short_help="Take back expired work, once: reservations, owners, delays.")
@click.argument("queue")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@setting_options(MAINTENANCE_FIELDS)
def recover_command(queue: str, as_json: bool, **flags: Any) -> None:
    """Run the recovery of QUEUE until nothing is due: expired reservations, deliveries whose owner stopped
    renewing, delayed retries whose time has come. Work that is alive is left alone.

    Exit codes: 0 done, 2 bad usage, 3 the broker cannot be used.
    """
    settings, _ = read_settings(flags)
    progress = Progress(quiet=as_json)

    def show(now: Recovered) -> None:
        progress.show(f"Returned {now.deliveries:,} deliveries, {now.reservations:,} reservations")

    async def run() -> tuple[Recovered, int]:
        async with maintenance_of(settings, queue) as maintenance:
            recovered = await maintenance.recover(queue, show)
            return recovered, await maintenance.promote(queue)

    with broker_errors("What was returned before is returned; run the command again for the rest."):
        try:
            recovered, promoted = asyncio.run(run())
        finally:
            progress.end()
    if as_json:
        click.echo(json.dumps({"queue": queue, **asdict(recovered), "promoted": promoted}))
        return
    click.echo(
        f"Returned to {queue}: {recovered.deliveries:,} deliveries, {recovered.reservations:,} reservations, "
        f"{promoted:,} retries that were due."
    )
    if recovered.crash_loops:
        click.echo(
            f"Dead letters now, since they lost too many owners (crash-loop): {recovered.crash_loops:,}."
        )
