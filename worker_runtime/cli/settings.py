"""`queueworker settings`: the documented list, in which every setting has one line."""

from __future__ import annotations

import click

from worker_runtime.cli.options import default_of, flag_of
from worker_runtime.settings import VARIABLES


def as_markdown() -> str:
    lines = [
        "# Settings of a worker",
        "",
        "Each has a variable and a flag of `queueworker run`. A flag wins over a variable, a variable over",
        "the code. Durations are in seconds. This page is the output of `queueworker settings --markdown`.",
        "",
        "| variable | flag | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{v.name}` | `{flag_of(v)}` | `{default_of(v.field)}` | {v.help} |" for v in VARIABLES]
    return "\n".join(lines) + "\n"


@click.command("settings")
@click.option("--markdown", is_flag=True, help="As the page docs/settings.md.")
def settings_command(markdown: bool) -> None:
    """List every setting: variable, flag, default, meaning."""
    if markdown:
        click.echo(as_markdown(), nl=False)
        return
    rows = [(v.name, flag_of(v), default_of(v.field), v.help) for v in VARIABLES]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, flag, default, text in rows:
        click.echo(f"{name:{widths[0]}}  {flag:{widths[1]}}  {default:{widths[2]}}  {text}")
