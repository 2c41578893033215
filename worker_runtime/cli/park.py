"""`queueworker park`: failed messages that nobody will try again become dead letters."""

from __future__ import annotations

from typing import Any

import click

from worker_runtime.cli.maintenance import MAINTENANCE_FIELDS, print_sweep, run_sweep
from worker_runtime.cli.options import Seconds, read_settings, setting_options

_COUNT = click.IntRange(min=1)
_SECONDS = Seconds(min=0, min_open=True)


@click.command("park", short_help="Move failed messages to the dead letters.")
@click.argument("queue")
@click.option("--max-attempts", type=_COUNT, help="What was tried this often.")
@click.option("--older-than", type=_SECONDS, metavar="SECONDS", help="What was published before then.")
@click.option("--limit", type=_COUNT, help="Park at most this many, the oldest first.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@setting_options(MAINTENANCE_FIELDS)
def park_command(
    queue: str,
    max_attempts: int | None,
    older_than: float | None,
    limit: int | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Move failed messages of QUEUE to the dead letters: those of which --max-attempts or --older-than says
    so, with their records. One of the two is needed. `queueworker retry --dead` is the way back.

    It may be killed at any moment and run again, also twice at a time: no message is lost or doubled.
    Exit codes: 0 done, 2 bad usage, 3 the broker cannot be used.
    """
    if max_attempts is None and older_than is None:
        raise click.UsageError("Say which messages: give --max-attempts, --older-than or both.")
    settings, _ = read_settings(flags)
    swept = run_sweep(
        settings,
        queue,
        lambda maintenance, on_step: maintenance.park(
            queue, limit=limit, max_attempts=max_attempts, older_than=older_than, on_step=on_step
        ),
        lambda so_far: f"Parked {so_far.parked:,}",
        quiet=as_json,
    )
    besides = (
        (swept.dropped, "cleared since their record is gone"),
        (swept.kept, "left where they were"),
    )
    done = f"Parked {swept.parked:,} failed messages of {queue} in the dead letters"
    print_sweep(queue, swept, done, besides, "judged", as_json=as_json)
