"""Was anything lost? The file of the handlers and the publisher's notes against the broker's last reading."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from worker_runtime.brokers.base import QueueReading
from worker_runtime.chaos.record import Account

#: The keys that may stay behind when all work is done; none of them holds a message.
_MAY_STAY = re.compile(r"\.(stats\..*|ledger\..*|takeovers\..*|workers\..*|roster\..*)$")


@dataclass(slots=True)
class Published:
    """What the publisher knows of each numbered message."""

    #: number -> pid, for those that the broker has confirmed.
    confirmed: dict[int, str] = field(default_factory=dict)
    #: Those of a publish whose answer was lost: there or not, both are right.
    doubtful: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`faults` is empty when nothing was lost and every book is right."""

    published: int
    handled: int
    #: Confirmed by the broker as published, and no handler ever finished it or its commit is not booked.
    lost: Sequence[int]
    #: Started more often than once: allowed by at-least-once delivery, and to be expected under kills.
    duplicated: int
    #: Settled as committed more often than once: a fault, except where servers of NATS were harmed.
    committed_twice: Sequence[int]
    #: outcome -> how often a worker was told that.
    outcomes: Mapping[str, int]
    faults: Sequence[str]


@dataclass(frozen=True, slots=True)
class Streams:
    """What JetStream itself counted of a run that began with new streams."""

    #: Messages that the queue's stream ever took, and those that it still has.
    stored: int
    left: int
    #: Messages that the dead stream ever took.
    buried: int
    #: Deliveries by the consumer.
    handed_out: int
    #: A server was killed, or lost its lead. It may then forget the last deliveries, and hand a message to
    #: two workers at once, both of whose commits it confirms.
    harmed: bool


def judge(account: Account, published: Published, reading: QueueReading, keys: Sequence[str]) -> Verdict:
    """On Redis. `keys` are all keys of the namespace; both readings are of the time after the last worker."""
    exist = _exist(account, published)
    faults = []
    if reading.success != exist:
        faults.append(f"the counter of successes says {reading.success:,}, published were {exist:,}")
    if reading.total != exist:
        faults.append(f"the counter of all messages says {reading.total:,}, published were {exist:,}")
    faults += _places(reading)
    faults += _books(reading, exist)
    left = [key for key in keys if not _MAY_STAY.search(key)]
    if left:
        faults.append(f"{len(left)} private keys are left: {', '.join(left[:5])}")
    return _verdict(account, published, faults)


def judge_streams(account: Account, published: Published, reading: QueueReading, streams: Streams) -> Verdict:
    """On JetStream, which keeps no ledger: its own counts against the record and the publisher's notes."""
    exist, starts = _exist(account, published), account.starts.total()
    faults = []
    if streams.stored != exist:
        faults.append(f"the stream stored {streams.stored:,} messages, published were {exist:,}")
    if streams.left:
        faults.append(f"{streams.left:,} messages are left in the stream")
    if streams.buried:
        faults.append(f"{streams.buried:,} messages went to the dead stream, and no handler rejected any")
    if not streams.harmed and streams.handed_out < starts:
        faults.append(f"the consumer handed out {streams.handed_out:,} messages, and {starts:,} were started")
    return _verdict(account, published, [*faults, *_places(reading)], twice_is_wrong=not streams.harmed)


def _exist(account: Account, published: Published) -> int:
    return len(set(published.confirmed) | (published.doubtful & set(account.starts)))


def _verdict(
    account: Account, published: Published, books: Sequence[str], *, twice_is_wrong: bool = True
) -> Verdict:
    """`books` are the faults that the broker's own counts show."""
    lost = sorted(number for number in published.confirmed if not account.finishes[number])
    twice = sorted(number for number, times in account.commits.items() if times > 1)
    foreign = sorted(set(account.starts) - set(published.confirmed) - published.doubtful)
    faults = [
        *_some(lost, "were lost: published and never handled to the end"),
        *(_some(twice, "were committed twice") if twice_is_wrong else ()),
        *_some(foreign, "were handled though nobody published them"),
    ]
    if account.unreadable:
        faults.append(f"{account.unreadable} lines of the record cannot be read")
    return Verdict(
        len(published.confirmed),
        sum(1 for number in published.confirmed if account.finishes[number]),
        lost,
        sum(times > 1 for times in account.starts.values()),
        twice,
        dict(account.outcomes),
        [*faults, *books],
    )


def _places(reading: QueueReading) -> list[str]:
    places = {
        "ready": reading.ready,
        "in staging": reading.staging,
        "reserved": reading.reserved,
        "owned": reading.owned,
        "delayed": reading.delayed,
        "failed": reading.failed,
        "dead": reading.dead,
        "poison": reading.poison,
        "in the processing list": reading.processing,
    }
    return [f"{count:,} messages are left {place}" for place, count in places.items() if count]


def _books(reading: QueueReading, committed: int) -> list[str]:
    """Nothing is owned any more, so each revision's claims must have come to an end."""
    faults = []
    for revision, row in reading.ledger.items():
        ended = row.committed + row.rejected + row.released + row.taken_over
        if row.claimed != ended:
            faults.append(f"the ledger of {revision} claimed {row.claimed:,} and ended {ended:,}")
    booked = sum(row.committed for row in reading.ledger.values())
    if booked != committed:
        faults.append(f"the ledger has {booked:,} commits, published were {committed:,}")
    return faults


def _some(numbers: Sequence[int], what: str) -> list[str]:
    if not numbers:
        return []
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    return [f"{len(numbers):,} messages {what}: {shown}"]
