"""What the commands share that move messages which no worker handles any more."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import click

from worker_runtime.app import App, timing_from
from worker_runtime.brokers.base import (
    MAX_TAKEOVERS,
    BrokerRefusedError,
    Maintenance,
    OnSwept,
    Role,
    Swept,
    Timing,
)
from worker_runtime.cli.options import BROKER_FIELDS, PATIENCE, broker_errors
from worker_runtime.settings import Settings

#: Seconds; below every ack wait.
_SHORTEST = 0.001
MAINTENANCE_FIELDS = (*BROKER_FIELDS, "job_ttl_seconds", "max_takeovers")


@asynccontextmanager
async def maintenance_of(settings: Settings, queue: str) -> AsyncIterator[Maintenance]:
    """The queue is checked first, so that a wrong broker is told in one line, and so that a replica, which
    may not have yet what is to be moved, does not pass for a queue with nothing to move."""
    timing = timing_from(settings, Timing(command_timeout=PATIENCE))
    broker = App(settings.broker_url, settings.namespace, timing).make_broker()
    # Nothing is renewed here, so no ack wait is too short for it.
    unhurried = replace(timing, expiry=_SHORTEST)
    await App(settings.broker_url, settings.namespace, unhurried).make_broker().check(queue)
    inspector = broker.inspector()
    try:
        reading = await inspector.read(queue)
    finally:
        await inspector.close()
    if reading.role is Role.REPLICA:
        raise BrokerRefusedError(
            f"Redis at {reading.server} is a replica: it takes no writes and may lag behind;"
            " point the URL at the primary"
        )
    limit = MAX_TAKEOVERS if settings.max_takeovers is None else settings.max_takeovers
    maintenance = broker.maintenance(max_takeovers=limit)
    try:
        yield maintenance
    finally:
        await maintenance.close()


class Progress:
    """One line on a terminal's standard error that is written over; nothing elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._on = not quiet and sys.stderr.isatty()
        self._written = False

    def show(self, text: str) -> None:
        if self._on:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
            self._written = True

    def end(self) -> None:
        if self._written:
            click.echo("\r\x1b[K", err=True, nl=False)


def run_sweep(
    settings: Settings,
    queue: str,
    sweep: Callable[[Maintenance, OnSwept], Awaitable[Swept]],
    shown: Callable[[Swept], str],
    *,
    quiet: bool,
) -> Swept:
    """Run a sweep to its end; `shown` says on a terminal how far it is. A broker that cannot be used ends
    the command."""
    progress = Progress(quiet=quiet)

    async def run() -> Swept:
        async with maintenance_of(settings, queue) as maintenance:
            return await sweep(maintenance, lambda swept: progress.show(shown(swept)))

    with broker_errors("What was moved before is moved; run the command again for the rest."):
        try:
            return asyncio.run(run())
        finally:
            progress.end()


def print_sweep(
    queue: str, swept: Swept, done: str, besides: Sequence[tuple[int, str]], cannot: str, *, as_json: bool
) -> None:
    """What a sweep did: `done`, and those of `besides` that are not 0. `cannot` is what cannot happen to a
    message without an envelope."""
    if as_json:
        click.echo(json.dumps({"queue": queue, **asdict(swept)}))
        return
    click.echo(", ".join((done, *(f"{count:,} {text}" for count, text in besides if count))) + ".")
    if swept.unreadable:
        click.echo(f"Of those left, {swept.unreadable:,} hold no envelope and cannot be {cannot}.", err=True)
