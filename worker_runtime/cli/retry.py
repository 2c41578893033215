"""`queueworker retry`: failed or dead messages get another chance."""

from __future__ import annotations

from typing import Any

import click

from worker_runtime.cli.maintenance import MAINTENANCE_FIELDS, print_sweep, run_sweep
from worker_runtime.cli.options import Seconds, read_settings, setting_options

_COUNT = click.IntRange(min=1)
_SECONDS = Seconds(min=0, min_open=True)


@click.command("retry", short_help="Publish failed or dead messages again.")
@click.argument("queue")
@click.option("--limit", type=_COUNT, help="Retry at most this many, the oldest first.")
@click.option(
    "--max-attempts",
    type=_COUNT,
    help="Park in the dead letters what was tried this often (with --dead: leave it).",
)
@click.option("--newer-than", type=_SECONDS, metavar="SECONDS", help="Only what was published since then.")
@click.option("--older-than", type=_SECONDS, metavar="SECONDS", help="Only what was published before then.")
@click.option("--dead", is_flag=True, help="Retry the dead letters instead of the failed messages.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@setting_options(MAINTENANCE_FIELDS)
def retry_command(
    queue: str,
    limit: int | None,
    max_attempts: int | None,
    newer_than: float | None,
    older_than: float | None,
    dead: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Publish the failed messages of QUEUE again, each as a new message with one more attempt.

    It may be killed at any moment and run again, also twice at a time: no message is lost or doubled.
    Exit codes: 0 done, 2 bad usage, 3 the broker cannot be used.
    """
    settings, _ = read_settings(flags)
    swept = run_sweep(
        settings,
        queue,
        lambda maintenance, on_step: maintenance.retry(
            queue,
            limit=limit,
            max_attempts=max_attempts,
            newer_than=newer_than,
            older_than=older_than,
            dead=dead,
            on_step=on_step,
        ),
        lambda so_far: f"Retried {so_far.retried:,}, parked {so_far.parked:,}",
        quiet=as_json,
    )
    besides = (
        (swept.parked, "parked in the dead letters"),
        (swept.dropped, "cleared since their record is gone"),
        (swept.kept, "left where they were"),
    )
    done = f"Retried {swept.retried:,} {'dead letters' if dead else 'failed messages'} of {queue}"
    print_sweep(queue, swept, done, besides, "retried", as_json=as_json)
