"""The `queueworker` command. Other distributions add commands through the entry point group
`queueworker.commands`. Every command, own or foreign, is loaded only when it is called or listed."""

from __future__ import annotations

import os
import signal

if os.getpid() == 1:
    # The kernel drops what the first process of a container does not handle: a pod that is deleted while it
    # starts would come up, consume, and be killed at the end of its grace period.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

import click

from worker_runtime import __version__

GROUP = "queueworker.commands"

_OWN = {
    "run": ("worker_runtime.cli.run", "run_command"),
    "publish": ("worker_runtime.cli.publish", "publish_command"),
    "inspect": ("worker_runtime.cli.inspect", "inspect_command"),
    "fence": ("worker_runtime.cli.fence", "fence_command"),
    "chaos": ("worker_runtime.cli.chaos", "chaos_command"),
    "unfence": ("worker_runtime.cli.fence", "unfence_command"),
    "verify-empty": ("worker_runtime.cli.verify_empty", "verify_empty_command"),
    "explain": ("worker_runtime.cli.explain", "explain_command"),
    "provision": ("worker_runtime.cli.provision", "provision_command"),
    "recover": ("worker_runtime.cli.recover", "recover_command"),
    "retry": ("worker_runtime.cli.retry", "retry_command"),
    "park": ("worker_runtime.cli.park", "park_command"),
    "settings": ("worker_runtime.cli.settings", "settings_command"),
}


class CommandsOfAll(click.Group):
    """Own commands first; a plugin can neither replace one nor break the rest."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_OWN, *(point.name for point in entry_points(group=GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            module, name = _OWN[cmd_name]
            command: click.Command = getattr(import_module(module), name)
            return command
        for point in entry_points(group=GROUP, name=cmd_name):
            return _load(point)
        return None


def _load(point: EntryPoint) -> click.Command | None:
    try:
        command = point.load()
    except Exception as error:
        _warn(point, f"{type(error).__name__}: {error}")
        return None
    if not isinstance(command, click.Command):
        _warn(point, f"{point.value} is a {type(command).__name__}, not a click command")
        return None
    return command


def _warn(point: EntryPoint, why: str) -> None:
    why = " ".join(why.split())
    click.echo(f"Warning: the command {point.name!r} ({point.value}) cannot be loaded: {why}", err=True)


@click.group(cls=CommandsOfAll, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="queueworker")
def main() -> None:
    """Run queue workers, publish to queues, and look into them.

    Where the queues live: --broker-url, or QUEUEWORKER_BROKER_URL (redis://127.0.0.1:6379/0 when neither is
    given). Look at the changes of `queueworker up` with `kubectl-queueworker`.
    """


if __name__ == "__main__":
    main()
