"""`queueworker publish`: one payload, or a file with one JSON value a line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
#: Batches a second, where there is a rate.
TICKS = 5


@dataclass
class Published:
    """What is on the broker for sure."""

    count: int = 0
    first: str = ""
    last: str = ""

    def add(self, pids: Sequence[str]) -> None:
        self.first = self.first or pids[0]
        self.count, self.last = self.count + len(pids), pids[-1]


@click.command("publish", short_help="Publish one message, or every line of a file.")
@click.argument("queue")
@click.argument("payload", required=False)
@click.option("--file", "path", metavar="JSONL", help="One JSON value a line; - reads standard input.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="PER_SECOND",
    help="Publish the file again and again, so many messages a second, until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@setting_options(BROKER_FIELDS)
def publish_command(
    queue: str, payload: str | None, path: str | None, rate: float | None, as_json: bool, **flags: Any
) -> None:
    """Publish PAYLOAD (JSON), or every line of a file, to QUEUE.

    Exit codes: 0 all published, or with --rate stopped by Ctrl-C; 2 a payload is not JSON; 3 the broker
    cannot be used.
    """
    if (payload is None) == (path is None):
        raise click.UsageError("Give either a PAYLOAD or --file, and not both.")
    if rate is not None and (path in (None, "-") or not math.isfinite(rate)):
        raise click.UsageError("--rate is a number, and takes a --file that can be read again.")
    settings, _ = read_settings(flags)
    app = App(settings.broker_url, settings.namespace, Timing(command_timeout=PATIENCE))
    if payload is not None:
        # The shell's bytes as they were, also when they are no UTF-8.
        lines: Iterable[tuple[int, bytes]] = [(0, os.fsencode(payload))]
        total = 0
    else:
        assert path is not None
        lines, total = _open(path)
    if rate is not None and path is not None:
        lines, total = _again_and_again(path, lines), 0
    asyncio.run(_publish(app, queue, lines, total, rate, as_json))


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


def _again_and_again(path: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Ends only where a turn had no line."""
    last = 0
    for last, line in lines:
        yield last, line
    while last:
        last = 0
        for last, line in _open(path)[0]:
            yield last, line


def _batches(
    lines: Iterable[tuple[int, bytes]], published: Published, most: int
) -> Iterator[tuple[list[bytes], list[int], int]]:
    """Checked payloads, up to `most` at a time, with the numbers of their lines and the bytes read for
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
                + (f" Published before it: {published.count} messages." if number else ""),
                exits.BAD_USAGE,
            ) from None
        batch.append(payload)
        numbers.append(number)
        size += len(line)
        if len(batch) == most:
            yield batch, numbers, size
            batch, numbers, size = [], [], 0
    if batch:
        yield batch, numbers, size


async def _publish(
    app: App,
    queue: str,
    lines: Iterable[tuple[int, bytes]],
    total: int,
    rate: float | None,
    as_json: bool,
) -> None:
    stop = asyncio.Event()
    if rate is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        click.echo(f"Publishing to {queue}, {rate:g} messages a second, until Ctrl-C.", err=True)
    most = BATCH if rate is None else min(BATCH, math.ceil(rate / TICKS))
    done = Published()
    began = time.monotonic()
    bar: Any = None
    if total and sys.stderr.isatty() and not as_json:
        bar = click.progressbar(length=total, label=f"Publishing to {queue}", file=sys.stderr)
    try:
        for batch, numbers, size in _batches(lines, done, most):
            with broker_errors(f"Published before: {done.count} messages." if done.count else ""):
                try:
                    done.add(await app.publish_many(queue, batch))
                except PayloadRefusedError as error:
                    if error.index < 0 or not numbers[error.index]:
                        raise
                    raise PayloadRefusedError(f"line {numbers[error.index]}: {error}") from None
            if bar is not None:
                bar.update(size)
            if rate is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(0, began + done.count / rate - time.monotonic()))
                if stop.is_set():
                    break
    finally:
        if bar is not None:
            bar.render_finish()
        await app.close()
    seconds = time.monotonic() - began
    if as_json:
        summary = {"queue": queue, "published": done.count, "seconds": round(seconds, 3)}
        if done.count:
            summary |= {"first": done.first, "last": done.last}
        click.echo(json.dumps(summary))
    elif done.count == 1:
        click.echo(f"Published {done.last} to {queue}.")
    else:
        click.echo(f"Published {done.count} messages to {queue} in {seconds:.2f} s.")
