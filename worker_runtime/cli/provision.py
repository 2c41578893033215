"""`queueworker provision`: make what a queue needs on a broker that does not make it by itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from worker_runtime import exits
from worker_runtime.app import App
from worker_runtime.brokers.base import Timing
from worker_runtime.brokers.nats.broker import NatsBroker
from worker_runtime.brokers.nats.topology import Plan
from worker_runtime.cli.options import (
    BROKER_FIELDS,
    PATIENCE,
    Failure,
    Seconds,
    broker_errors,
    read_settings,
    setting_options,
)

_USUAL = Plan()


@click.command("provision", short_help="Make the streams and the consumer of a queue on NATS.")
@click.argument("queue")
@click.option("--replicas", type=click.IntRange(1, 5), default=_USUAL.replicas, show_default=True)
@click.option("--storage", type=click.Choice(["file", "memory"]), default=_USUAL.storage, show_default=True)
@click.option(
    "--ack-wait",
    type=Seconds(min=0.1, max=1e7),
    default=_USUAL.ack_wait,
    show_default=True,
    metavar="SECONDS",
    help="Work without a sign of life for this long is handed out again.",
)
@click.option(
    "--max-age",
    type=Seconds(min=0, max=1e9),
    default=_USUAL.max_age,
    show_default=True,
    metavar="SECONDS",
    help="Messages older than this are deleted, worked on or not; 0 keeps them.",
)
@click.option(
    "--max-deliver",
    type=click.IntRange(min=-1),
    default=_USUAL.max_deliver,
    show_default=True,
    help="Deliveries after which the server gives a message up silently; -1 leaves that to the workers.",
)
@click.option(
    "--max-ack-pending",
    type=click.IntRange(min=1),
    default=_USUAL.max_ack_pending,
    show_default=True,
    help="Deliveries that all workers together may hold.",
)
@click.option(
    "--update",
    is_flag=True,
    help="Also change what is there and differs. Workers of utopia-php/queue undo it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
@setting_options(BROKER_FIELDS)
def provision_command(
    queue: str,
    replicas: int,
    storage: str,
    ack_wait: float,
    max_age: float,
    max_deliver: int,
    max_ack_pending: int,
    update: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Make the streams, the consumer and the bucket of QUEUE on NATS JetStream, as far as they are missing.

    May be repeated at will. What is there stays as it is, unless --update is given; a stream that belongs to
    another queue is refused. Exit codes: 0 done, 2 bad usage, 3 the broker cannot be used.
    """
    settings, _ = read_settings(flags)
    plan = Plan(replicas, storage, ack_wait, max_age, max_deliver or -1, max_ack_pending)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))
    with broker_errors():
        broker = app.make_broker()
        if not isinstance(broker, NatsBroker):
            raise Failure(
                f"{broker.display_url} needs no provisioning: a queue is there as soon as it is used.",
                exits.BAD_USAGE,
            )
        told = asyncio.run(broker.provision(queue, plan, update=update))
    if as_json:
        click.echo(json.dumps({"queue": queue, "done": list(told)}))
        return
    for line in told:
        click.echo(f"{line[0].upper()}{line[1:]}.")
