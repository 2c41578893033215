"""A reading of a queue for people and for programs. docs/inspect.md describes both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from worker_runtime.brokers.base import LedgerRow, QueueReading, Role
from worker_runtime.cli.columns import columns

#: Grows when a field is renamed, removed or changes its meaning; new fields do not count.
SCHEMA = 1

_PLACES = (
    ("ready", "wait for a worker"),
    ("staging", "woke a worker up, taken next"),
    ("reserved", "taken, not yet claimed"),
    ("owned", "with a worker"),
    ("processing", "entries in the processing list"),
    ("delayed", "wait for their time"),
    ("failed", "rejected, to be retried"),
    ("dead", "given up"),
    ("poison", "could not be decoded"),
)


def as_json(reading: QueueReading) -> dict[str, Any]:
    """Every field of the reading by its name, numbers as numbers, durations in seconds."""
    return {
        "schema": SCHEMA,
        **asdict(reading),
        "role": reading.role.value,
        "private": reading.private,
        "without_token": reading.without_token,
    }


def as_text(reading: QueueReading) -> str:
    return "\n".join(_lines(reading))


def _lines(reading: QueueReading) -> Iterator[str]:
    yield f"Queue {reading.queue}"
    if reading.role is Role.REPLICA:
        yield f"  read from {reading.server}, a replica: it may lag behind"
    for name, meaning in _PLACES:
        if name == "failed" and reading.failed_among_dead:
            yield f"  {name:<11}{'-':>9}  counted among the dead; --retained tells them apart"
            continue
        yield f"  {name:<11}{getattr(reading, name):>9,}  {meaning}{_more(reading, name)}"
    yield f"  {'total':<11}{reading.total:>9,}  claimed ever; {reading.success:,} committed"
    if reading.reservations:
        yield "Reservations"
        for each in reading.reservations:
            left = f"{each.deadline_in:.1f} s left" if each.deadline_in >= 0 else "overdue"
            yield f"  {each.id}  {each.size} messages, {left}"
    yield from _workers(reading)
    if reading.fences:
        yield "Fences"
        for revision, reason in sorted(reading.fences.items()):
            yield f"  {revision}  {reason}"
    if reading.ledger:
        names = [field.name for field in fields(LedgerRow)]
        yield "Ledger"
        yield from columns(
            ["revision", *names],
            [[rev, *(f"{getattr(row, n):,}" for n in names)] for rev, row in sorted(reading.ledger.items())],
        )


def _more(reading: QueueReading, name: str) -> str:
    if name == "ready" and reading.oldest_ready_age is not None:
        return f"; the oldest for {reading.oldest_ready_age:.0f} s"
    if name == "processing" and reading.without_token:
        return f"; {reading.without_token:,} of workers without tokens"
    if name == "delayed" and reading.next_delayed_in is not None:
        due = reading.next_delayed_in
        return f"; the next in {due:.1f} s" if due > 0 else "; the next is due"
    return ""


def _workers(reading: QueueReading) -> Iterator[str]:
    """Live workers with what they hold, then holders that are not alive: their work is to be recovered."""
    alive = {each.worker for each in reading.workers}
    if reading.workers:
        yield "Workers"
        yield from columns(
            ["worker", "revision", "holds", "prefetch", "up", "receiving"],
            [
                [
                    each.worker,
                    each.revision,
                    f"{reading.owners.get(each.worker, 0):,}",
                    f"{each.prefetch:,}",
                    f"{each.uptime:.0f} s",
                    "yes" if each.receiving else f"no: {each.reason or 'it does not say why'}",
                ]
                for each in reading.workers
            ],
            left=(0, 1, 5),
        )
    gone = {worker: count for worker, count in reading.owners.items() if worker not in alive}
    if gone:
        yield "Held by workers that are not alive; recovered when their ownership expires"
        for worker, count in sorted(gone.items()):
            yield f"  {worker}  {count:,}"
