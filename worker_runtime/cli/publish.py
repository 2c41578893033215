"""`queueworker publish`: one payload, or a file with one JSON value a line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from worker_runtime import exits
from worker_runtime.app import App
from worker_runtime.brokers.base import PayloadRefusedError, Timing
from worker_runtime.cli.options import (
    BROKER_FIELDS,
    PATIENCE,
    Failure,
    broker_errors,
    read_settings,
    setting_options,
)

BATCH = 1_000


@click.command("publish")
@click.argument("queue")
@click.argument("payload", required=False)
@click.option("--file", "path", metavar="JSONL", help="One JSON value a line; - reads standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@setting_options(BROKER_FIELDS)
def publish_command(queue: str, payload: str | None, path: str | None, as_json: bool, **flags: Any) -> None:
    """Publish PAYLOAD (JSON), or every line of a file, to QUEUE.

    Exit codes: 0 all published, 2 a payload is not JSON, 3 the broker cannot be used.
    """
    if (payload is None) == (path is None):
        raise click.UsageError("Give either a PAYLOAD or --file, and not both.")
    settings, _ = read_settings(flags)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))
    if payload is not None:
        # The shell's bytes as they were, also when they are no UTF-8.
        lines: Iterable[tuple[int, bytes]] = [(0, os.fsencode(payload))]
        total = 0
    else:
        assert path is not None
        lines, total = _open(path)
    asyncio.run(_publish(app, queue, lines, total, as_json))


def _open(path: str) -> tuple[Iterator[tuple[int, bytes]], int]:
    """Numbered lines, and the size in bytes where it is known (else 0)."""
    if path == "-":
        return _numbered(sys.stdin.buffer), 0
    file = Path(path)
    try:
        return _numbered(file.open("rb")), file.stat().st_size
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}.", exits.BAD_USAGE) from None


def _numbered(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    with stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, line


def _batches(
    lines: Iterable[tuple[int, bytes]], published: list[str]
) -> Iterator[tuple[list[bytes], list[int], int]]:
    """Checked payloads, up to 1,000 at a time, with the numbers of their lines and the bytes read for
    them."""
    batch: list[bytes] = []
    numbers: list[int] = []
    size = 0
    for number, line in lines:
        payload = line.strip()
        try:
            msgspec.json.decode(payload, type=msgspec.Raw)
            payload.decode()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            where = f"line {number}" if number else "the payload"
            raise Failure(
                f"{where} is not JSON: {error}."
                + (f" Published before it: {len(published)} messages." if number else ""),
                exits.BAD_USAGE,
            ) from None
        batch.append(payload)
        numbers.append(number)
        size += len(line)
        if len(batch) == BATCH:
            yield batch, numbers, size
            batch, numbers, size = [], [], 0
    if batch:
        yield batch, numbers, size


async def _publish(
    app: App, queue: str, lines: Iterable[tuple[int, bytes]], total: int, as_json: bool
) -> None:
    pids: list[str] = []
    began = time.monotonic()
    bar: Any = None
    if total and sys.stderr.isatty() and not as_json:
        bar = click.progressbar(length=total, label=f"Publishing to {queue}", file=sys.stderr)
    try:
        for batch, numbers, size in _batches(lines, pids):
            with broker_errors(f"Published before: {len(pids)} messages." if pids else ""):
                try:
                    pids.extend(await app.publish_many(queue, batch))
                except PayloadRefusedError as error:
                    if error.index < 0 or not numbers[error.index]:
                        raise
                    raise PayloadRefusedError(f"line {numbers[error.index]}: {error}") from None
            if bar is not None:
                bar.update(size)
    finally:
        if bar is not None:
            bar.render_finish()
        await app.close()
    seconds = time.monotonic() - began
    if as_json:
        summary = {"queue": queue, "published": len(pids), "seconds": round(seconds, 3)}
        if pids:
            summary |= {"first": pids[0], "last": pids[-1]}
        click.echo(json.dumps(summary))
    elif len(pids) == 1:
        click.echo(f"Published {pids[0]} to {queue}.")
    else:
        click.echo(f"Published {len(pids)} messages to {queue} in {seconds:.2f} s.")
