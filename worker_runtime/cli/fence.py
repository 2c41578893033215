"""`queueworker fence` and `queueworker unfence`: stop a revision from receiving, and let it again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import click

from worker_runtime.app import App
from worker_runtime.brokers.base import Fences, Timing
from worker_runtime.cli.options import (
    BROKER_FIELDS,
    PATIENCE,
    broker_errors,
    in_utf8,
    read_settings,
    setting_options,
)

Command = TypeVar("Command", bound=Callable[..., Any])


def _revision_option(command: Command) -> Command:
    return click.option(
        "--revision",
        default="*",
        show_default=True,
        callback=in_utf8,
        help="One revision, or * for every revision.",
    )(command)


@click.command("fence", short_help="Stop a revision from receiving.")
@click.argument("queue")
@_revision_option
@click.option(
    "--reason",
    required=True,
    callback=in_utf8,
    help="What people read when they ask why nothing is received.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what holds now as JSON.")
@setting_options(BROKER_FIELDS)
def fence_command(queue: str, revision: str, reason: str, as_json: bool, **flags: Any) -> None:
    """Stop a revision (default: every revision) from receiving from QUEUE.

    It holds from this moment on, wherever its workers are: the broker itself refuses to hand work to them.
    NATS cannot refuse: there the workers ask before each pull, and take nothing more after three seconds.
    They go on settling, renewing and recovering. Fencing again is harmless; a new reason replaces the old.
    Exit codes: 0 fenced, 2 bad usage, 3 the broker cannot be used.
    """
    if not reason.strip():
        raise click.UsageError("--reason is empty; say why, it is what people read when nothing runs.")

    async def change(fences: Fences) -> bool:
        return await fences.fence(queue, revision, reason)

    changed, held = _with_fences(flags, queue, revision, change)
    if as_json:
        _as_json(queue, revision, changed, held)
    else:
        click.echo(f"{_named(revision)} of {queue} {'is' if changed else 'was already'} fenced: {reason}")


@click.command("unfence", short_help="Let a revision receive again.")
@click.argument("queue")
@_revision_option
@click.option("--json", "as_json", is_flag=True, help="Print what holds now as JSON.")
@setting_options(BROKER_FIELDS)
def unfence_command(queue: str, revision: str, as_json: bool, **flags: Any) -> None:
    """Let a revision (default: every revision) receive from QUEUE again.

    Lifts the one fence that was set with the same --revision; others stay. Workers notice within about a
    second. Exit codes: 0 not fenced any more, 2 bad usage, 3 the broker cannot be used.
    """

    async def change(fences: Fences) -> bool:
        return await fences.unfence(queue, revision)

    changed, held = _with_fences(flags, queue, revision, change)
    if as_json:
        _as_json(queue, revision, changed, held)
        return
    click.echo(
        f"The fence on {_whom(revision)} of {queue} is lifted."
        if changed
        else f"Nothing was lifted: {queue} had no fence on {_whom(revision)}."
    )
    for other, reason in sorted(held.items()):
        click.echo(f"Still fenced: {_named(other)}: {reason}")


def _with_fences(
    flags: dict[str, Any], queue: str, revision: str, change: Callable[[Fences], Awaitable[bool]]
) -> tuple[bool, Mapping[str, str]]:
    if not revision or any(character.isspace() for character in revision):
        raise click.UsageError(f"--revision {revision!r} must be one word without spaces, or *.")
    settings, _ = read_settings(flags)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))

    async def work() -> tuple[bool, Mapping[str, str]]:
        fences = app.make_broker().fences()
        try:
            return await change(fences), await fences.fences(queue)
        finally:
            await fences.close()

    with broker_errors():
        return asyncio.run(work())


def _whom(revision: str) -> str:
    return "every revision" if revision == "*" else f"revision {revision}"


def _named(revision: str) -> str:
    """The same at the beginning of a sentence."""
    whom = _whom(revision)
    return whom[0].upper() + whom[1:]


def _as_json(queue: str, revision: str, changed: bool, held: Mapping[str, str]) -> None:
    click.echo(
        json.dumps(
            {
                "queue": queue,
                "revision": revision,
                "fenced": revision in held,
                "changed": changed,
                "fences": dict(sorted(held.items())),
            }
        )
    )
