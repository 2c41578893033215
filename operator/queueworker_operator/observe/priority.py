"""The probe of the priority subject: what one look says, and since when nothing was there."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.revisions import revision_of
from queueworker_operator.api.sentences import inside
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.plan.facts import Priority, PriorityWork, Unknown
from worker_runtime.brokers.base import BrokerError
from worker_runtime.brokers.nats.survey import PriorityReading


def watches_closely(resource: QueueWorker) -> bool:
    """Whether each pass needs a look of its own: a change is under way on a broker that has such a subject,
    so older workers may be about to go."""
    stable = resource.status.stable
    if resource.spec.broker.nats is None or stable is None:
        return False
    return resource.status.rollout is None or (
        resource.status.rollout.stage is not Stage.IDLE
        or stable.revision != revision_of(resource.metadata.name, resource.spec).name
    )


def priority_fact(read: PriorityReading | BrokerError, now: datetime) -> Priority:
    """A reading as a fact; what could not be read is Unknown."""
    if isinstance(read, BrokerError):
        return Unknown(inside(read), now)
    return PriorityWork(
        subject=read.subject,
        pending=read.pending,
        unacknowledged=read.unacknowledged,
        stored=read.stored,
        stuck=read.stuck,
        last_sequence=read.last_sequence,
        stream_sequence=read.stream_sequence,
        ack_wait=timedelta(seconds=read.ack_wait),
        consumed=read.consumed,
        observed_at=now,
        empty_since=now if read.empty else None,
    )


def since(before: Priority | None, found: Priority) -> Priority:
    """A new look, with what the one before it adds: since when nothing was there and nothing moved, and
    whether somebody published meanwhile. A look that failed in between proves nothing, and the time starts
    anew."""
    if not isinstance(before, PriorityWork) or not isinstance(found, PriorityWork):
        return found
    published = found.observed_at if _published(before, found) else before.published_at
    found = replace(found, published_at=published)
    if found.empty_since is None or before.empty_since is None or _marks(before) != _marks(found):
        return found
    return replace(found, empty_since=before.empty_since)


def _published(before: PriorityWork, found: PriorityWork) -> bool:
    """What lies behind everything that the stream had at the first look was published after it."""
    return found.last_sequence > before.stream_sequence or found.stored > before.stored


def _marks(work: PriorityWork) -> tuple[object, ...]:
    return work.subject, work.last_sequence, work.consumed
