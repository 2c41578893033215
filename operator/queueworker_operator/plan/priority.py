"""The guard that keeps older workers until the work that only they take is gone."""

from __future__ import annotations

from datetime import datetime

from queueworker_operator.api.reasons import ConditionReason
from queueworker_operator.plan.facts import NoPriority, Priority, PriorityWork, Unknown
from queueworker_operator.plan.guards import Fail, Guard, Pass, Wait


def priority_guard(found: Priority) -> Guard:
    """Whether the last older worker may go: pending, in work and stored are all zero, and were so at another
    look more than the ack wait before. `found` is fresh."""
    match found:
        case NoPriority():
            return Pass()
        case Unknown():
            return found
        case PriorityWork(empty_since=None):
            return _left(found)
        case PriorityWork(consumed=False):
            return Pass()
        case PriorityWork(empty_since=datetime() as began) if found.observed_at - began > found.ack_wait:
            return Pass()
    return Wait(
        ConditionReason.PRIORITY_QUIET,
        f"{found.subject} is empty; it counts as drained when it has stayed so for longer than the ack wait "
        f"of {found.ack_wait.total_seconds():g} s.",
    )


def _left(found: PriorityWork) -> Wait | Fail:
    if found.stuck:
        return Fail(
            ConditionReason.PRIORITY_STUCK,
            f"{found.subject} holds messages that were handed out too often and that nobody will be given: "
            "read them from the stream, publish the wanted ones to the normal subject, and delete them.",
        )
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
