"""The guard that keeps older workers until the work that only they take is gone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from queueworker_operator.api.reasons import ConditionReason
from queueworker_operator.api.types import Protocol
from queueworker_operator.plan.facts import (
    BrokerCheck,
    BrokerVerdict,
    NoPriority,
    Priority,
    PriorityWork,
    RevisionFacts,
    Unknown,
)
from queueworker_operator.plan.guards import Fail, Guard, Pass, Wait, broker_guard


def older_work(check: BrokerCheck | Unknown, revisions: Iterable[RevisionFacts], quiet: timedelta) -> Guard:
    """Whether the work that only older workers take is gone. `check` is fresh; `quiet` is how long a subject
    must have been empty at least."""
    if isinstance(check, Unknown):
        return check
    if check.verdict is not BrokerVerdict.REACHABLE:
        return broker_guard(check)
    older = [r.started_at for r in revisions if r.protocol is Protocol.LEGACY and r.started_at is not None]
    return priority_guard(check.priority, quiet, max(older, default=None))


def priority_guard(
    found: Priority, quiet: timedelta = timedelta(0), started: datetime | None = None
) -> Guard:
    """Whether the last older worker may go: pending, in work and stored are all zero, and were so at another
    look more than the ack wait (and `quiet`) before. `found` is fresh.

    `started` is when the youngest older worker started, None where none is there. It may make the consumer,
    or take up what others left, so what was seen before its start proves nothing.
    """
    match found:
        case NoPriority():
            return Pass()
        case Unknown():
            return found
    if found.stuck:
        return _stuck(found)
    needed = max(found.ack_wait, quiet)
    if found.published_at is not None and found.observed_at - found.published_at <= needed:
        return _published(found, needed)
    if found.empty_since is None:
        return _left(found)
    if not found.consumed and started is None:
        return Pass()
    began = found.empty_since if started is None else max(found.empty_since, started)
    if found.observed_at - began > needed:
        return Pass()
    return Wait(
        ConditionReason.PRIORITY_QUIET,
        f"{found.subject} is empty; it counts as drained when it has stayed so for longer than "
        f"{_time(found, needed)}, counted from the last start of an older worker.",
    )


def evidence(found: PriorityWork) -> str:
    """What one look counted, for a person."""
    return (
        f"{found.pending} pending, {found.unacknowledged} unacknowledged and {found.stored} stored on "
        f"{found.subject}, last handed out {found.last_sequence}"
    )


def _time(found: PriorityWork, needed: timedelta) -> str:
    seconds = f"{needed.total_seconds():g} s"
    return f"the ack wait of {seconds}" if needed == found.ack_wait else f"{seconds} (rollback.quietSeconds)"


def _stuck(found: PriorityWork) -> Fail:
    return Fail(
        ConditionReason.PRIORITY_STUCK,
        f"{found.subject} holds messages that were handed out too often and that nobody will be given: "
        "read them from the stream, publish the wanted ones to the normal subject, and delete them.",
    )


def _published(found: PriorityWork, needed: timedelta) -> Fail:
    normal = f"{found.subject.rpartition('.')[0]}.normal"
    return Fail(
        ConditionReason.PRODUCERS_PUBLISH,
        f"Producers still publish to {found.subject}, which workers of this package never take: have them "
        f"publish to {normal} (their option priority off), or undo the change. It goes on by itself when "
        f"nothing has come for longer than {_time(found, needed)}.",
    )


def _left(found: PriorityWork) -> Wait | Fail:
    if not found.consumed:
        return Fail(
            ConditionReason.PRIORITY_LEFT,
            f"{found.subject} holds messages and has no consumer: start a worker of utopia-php/queue 4 for "
            "them, or publish them to the normal subject. Workers of this package never take them.",
        )
    return Wait(
        ConditionReason.PRIORITY_LEFT,
        f"{found.subject} holds messages, which workers of this package never take: keep a worker of "
        "utopia-php/queue 4 until they are done.",
    )
