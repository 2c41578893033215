"""`queueworker run`: worker processes under a supervisor."""

from __future__ import annotations

import sys
from typing import Any

import click

from worker_runtime import logs
from worker_runtime.cli.options import ALL_FIELDS, read_settings, setting_options
from worker_runtime.supervisor import run_supervisor


@click.command("run")
@click.argument("target", metavar="MODULE:APP")
@setting_options(ALL_FIELDS)
def run_command(target: str, **flags: Any) -> None:
    """Consume the queues of an app until SIGTERM or Ctrl-C.

    A first signal stops gracefully: what never started goes back to the queue, what runs is finished. A
    second signal ends at once. Exit codes: 0 stopped with nothing outstanding, 1 a job or start hook cannot
    work, 2 bad usage, settings or import, 3 refused by the broker, 4 work left to be recovered, 5 forced.
    """
    settings, given = read_settings(flags)
    logs.configure(settings.log_format, settings.log_level, settings.revision, "supervisor")
    sys.exit(run_supervisor(target, settings, given))
