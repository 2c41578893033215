"""What stops a QueueWorker, read from its status alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from queueworker_operator.api.gates import newest
from queueworker_operator.api.reasons import ConditionReason, ConditionType, Stage
from queueworker_operator.api.types import Condition
from queueworker_operator.cli.seen import Seen
from queueworker_operator.plan.revoked import told_unknown, unknown_revoked
from queueworker_operator.plan.view import HALTED

#: What `why` ends with.
MOVING, WAITING, BLOCKED = 0, 3, 4

#: True is how it should be; the two others are absent then.
_WANTED = (
    ConditionType.BROKER_REACHABLE,
    ConditionType.PLACEMENT_VALID,
    ConditionType.QUEUE_PROVISIONED,
    ConditionType.PRIORITY_DRAINED,
    ConditionType.REGISTRY_EMPTY,
    ConditionType.GATES_PASSED,
    ConditionType.AVAILABLE,
)
#: Reasons of Reconciling under which the operator itself goes on, without waiting for anybody.
_GOING_ON = (
    ConditionReason.ROLLOUT_IN_PROGRESS,
    ConditionReason.SCALING_STABLE,
    ConditionReason.RETIRING,
    ConditionReason.ANALYZING,
    ConditionReason.DELETING,
)
#: Those that end only when a person edits the resource.
_BY_HAND = (*HALTED, ConditionReason.STABLE_MISSING, ConditionReason.TARGET_FENCED)


#: Verbs that write what a message advises to request, and what ends a pause and a hold.
_VERBS = {
    "Retry": "retry",
    "SkipStep": "skip",
    "Promote": "promote",
    "Abort": "abort",
    "Rollback": "rollback",
}
_ENDS = {ConditionReason.PAUSED: "resume", ConditionReason.HELD: "release"}


class Answer(StrEnum):
    SETTLED = "nothing to do"
    MOVING = "moving"
    WAITING = "waiting"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is a word of docs/reasons.md, or of the plugin when the operator has said nothing yet."""

    answer: Answer
    reason: str
    message: str
    #: What else is not as it should be.
    besides: tuple[Condition, ...] = ()

    @property
    def code(self) -> int:
        return {Answer.WAITING: WAITING, Answer.BLOCKED: BLOCKED}.get(self.answer, MOVING)


def verdict(seen: Seen) -> Verdict:
    """The most serious of what the status says. An older generation's status is not believed."""
    status = seen.status
    if seen.abandoned:
        return Verdict(Answer.BLOCKED, "NotRunning", seen.abandoned)
    if status.observed_generation is None or status.observed_generation < seen.generation:
        last = (
            "nothing yet"
            if status.observed_generation is None
            else f"generation {status.observed_generation}"
        )
        return Verdict(
            Answer.WAITING,
            "NotObserved",
            f"The operator has not worked on generation {seen.generation} (last: {last}). {seen.look_for_it}",
        )
    besides = tuple(_off(seen))
    stalled, reconciling, ready = (
        status.condition(kind)
        for kind in (ConditionType.STALLED, ConditionType.RECONCILING, ConditionType.READY)
    )
    if stalled is not None and stalled.status == "True":
        return Verdict(Answer.BLOCKED, stalled.reason, stalled.message, besides)
    if reconciling is not None and reconciling.status == "True":
        answer = Answer.WAITING
        full = any(one.reason == ConditionReason.WRITES_REFUSED for one in besides)
        if reconciling.reason in _GOING_ON and not full:
            answer = Answer.MOVING
        elif reconciling.reason in _BY_HAND:
            answer = Answer.BLOCKED
        return Verdict(answer, reconciling.reason, reconciling.message, besides)
    if ready is None or ready.status != "True":
        reason = ready.reason if ready else "NotReported"
        message = ready.message if ready else "The status does not say Ready."
        answer = Answer.BLOCKED if reason in _BY_HAND else Answer.WAITING
        return Verdict(answer, reason, message, besides)
    return Verdict(Answer.SETTLED, ready.reason, ready.message, besides)


def _off(seen: Seen) -> Iterator[Condition]:
    for kind in _WANTED:
        condition = seen.status.condition(kind)
        # That a measurement is under way is nothing that is off.
        under_way = condition is not None and condition.reason == ConditionReason.ANALYZING
        off = condition is not None and (
            condition.status != "True" or condition.reason == ConditionReason.WRITES_REFUSED
        )
        if condition is not None and off and not under_way:
            yield condition


def advised(found: Verdict) -> tuple[str, ...]:
    """The verbs by which a person gets on, each with its options: what the message advises to request."""
    ends = [verb for reason, verb in _ENDS.items() if found.reason == reason]
    _, _, advice = found.message.replace("Request ", "request ").rpartition("request ")
    named = "|".join(_VERBS)
    asked = re.findall(rf"\b({named})\b(?: to ([\w-]+))?", advice)
    verbs = [f"{_VERBS[word]} --to {to}" if word == "Rollback" and to else _VERBS[word] for word, to in asked]
    return tuple(dict.fromkeys([*ends, *verbs])) if found.code else ()


def verdict_as_json(seen: Seen, found: Verdict) -> dict[str, Any]:
    rollout = seen.status.rollout
    return {
        "namespace": seen.namespace,
        "name": seen.name,
        "answer": found.answer.name.lower(),
        "code": found.code,
        "reason": found.reason,
        "message": found.message,
        "verbs": list(advised(found)),
        "stage": (rollout.stage if rollout else Stage.IDLE).value,
        "target": rollout.target if rollout else None,
        "step": rollout.step if rollout else None,
        "attempt": rollout.attempt if rollout else None,
        "requestIgnored": seen.status.request_ignored,
        "revokedUnknown": list(unknown_revoked(seen.status)),
        "gates": [one.model_dump(mode="json", by_alias=True) for one in newest(seen.status.gates)],
        "besides": [one.model_dump(mode="json", by_alias=True) for one in found.besides],
    }


def verdict_as_text(seen: Seen, found: Verdict, now: datetime, command: str) -> list[str]:
    """Lines for people: the answer, what was read and the way out, where the change stands, what is off.
    `command` is how to call a verb on it: a text with the place of the verb as {}."""
    lines = [f"{seen.title}: {found.answer.value} ({found.reason})", f"  {found.message}"]
    rollout = seen.status.rollout
    if rollout is not None and rollout.target and rollout.started_at is not None:
        progress = rollout.progressed_at or rollout.started_at
        step = f", step {rollout.step} of attempt {rollout.attempt}," if rollout.step else ""
        lines.append(
            f"  {rollout.stage} to {rollout.target}{step} for {_ago(now, rollout.started_at)},"
            f" last got further {_ago(now, progress)} ago"
        )
    if ignored := seen.status.request_ignored:
        lines.append(f"  request {seen.status.handled_request} was ignored: {ignored}")
    if unknown := unknown_revoked(seen.status):
        lines.append(f"  {told_unknown(unknown, seen.status)}")
    gates = newest(seen.status.gates)
    for gate in gates:
        said = "see above" if gate.message.rstrip(".") in found.message else gate.message
        lines.append(f"  gate {gate.type} of step {gate.step}: {gate.verdict}, {said}")
    for one in found.besides:
        told = one.type == ConditionType.GATES_PASSED and gates
        if one.message not in found.message and not told:
            lines.append(f"  {one.type} is {one.status} ({one.reason}): {one.message}")
    return lines + [f"  to do so: {command.format(verb)}" for verb in advised(found)]


def _ago(now: datetime, then: datetime) -> str:
    seconds = max(0, int((now - then).total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
