"""The probe of the priority subject: what one look says, and since when nothing was there."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from queueworker_operator.plan.facts import Priority, PriorityWork, Unknown
from worker_runtime.brokers.base import BrokerError
from worker_runtime.brokers.nats.survey import PriorityReading


def priority_fact(read: PriorityReading | BrokerError, now: datetime) -> Priority:
    """A reading as a fact; what could not be read is Unknown."""
    if isinstance(read, BrokerError):
        return Unknown(str(read).removesuffix("."), now)
    return PriorityWork(
        subject=read.subject,
        pending=read.pending,
        unacknowledged=read.unacknowledged,
        stored=read.stored,
        stuck=read.stuck,
        last_sequence=read.last_sequence,
        ack_wait=timedelta(seconds=read.ack_wait),
        consumed=read.consumed,
        observed_at=now,
        empty_since=now if read.empty else None,
    )


def since(before: Priority | None, found: Priority) -> Priority:
    """A new look, with what the one before it adds: since when nothing was there and nothing moved. A look
    that failed in between proves nothing, and the time starts anew."""
    if not isinstance(before, PriorityWork) or not isinstance(found, PriorityWork):
        return found
    if found.empty_since is None or before.empty_since is None or _marks(before) != _marks(found):
        return found
    return replace(found, empty_since=before.empty_since)


def _marks(work: PriorityWork) -> tuple[object, ...]:
    return work.subject, work.last_sequence, work.consumed
