"""The condition GatesPassed and the events of the gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queueworker_operator.api.gates import AnalysisStatus, GateStatus, Verdict, newest
from queueworker_operator.api.reasons import ConditionReason, EventReason
from queueworker_operator.api.types import QueueWorkerStatus
from queueworker_operator.plan.actions import EmitEvent
from queueworker_operator.plan.broker_words import Word

_EVENTS = {
    Verdict.PASSED: EventReason.GATE_PASSED,
    Verdict.WAIVED: EventReason.GATE_PASSED,
    Verdict.FAILED: EventReason.GATE_FAILED,
    Verdict.INCONCLUSIVE: EventReason.GATE_INCONCLUSIVE,
    Verdict.ERROR: EventReason.GATE_INCONCLUSIVE,
}


def gates_word(analysis: AnalysisStatus | None, gates: Sequence[GateStatus]) -> Word | None:
    """What the last analysis says; None before the first."""
    if analysis is not None and analysis.verdict is None:
        text = f"{analysis.revision} is measured beside the stable revision."
        return Word("Unknown", ConditionReason.ANALYZING, text)
    if analysis is not None:
        return _refused(analysis.verdict is Verdict.FAILED, analysis.message or "")
    last = newest(gates)
    if not last:
        return None
    told = "; ".join(f"{one.type} {one.verdict}: {one.message.rstrip('.')}" for one in last)
    verdicts = {one.verdict for one in last}
    if Verdict.FAILED in verdicts:
        return _refused(True, told)
    if verdicts & {Verdict.INCONCLUSIVE, Verdict.ERROR}:
        return _refused(False, told)
    waived = verdicts == {Verdict.WAIVED}
    return Word("True", ConditionReason.WAIVED if waived else ConditionReason.ALL_PASSED, f"{told}.")


def _refused(failed: bool, text: str) -> Word:
    text = f"{text.rstrip('.')}."
    if failed:
        return Word("False", ConditionReason.GATE_FAILED, text)
    return Word("Unknown", ConditionReason.GATE_INCONCLUSIVE, text)


def gate_events(before: QueueWorkerStatus, after: QueueWorkerStatus) -> Iterator[EmitEvent]:
    """One for each gate that judged, and one for a worker that was killed on purpose."""
    known = set(before.gates)
    for one in after.gates:
        if one in known:
            continue
        reason = _EVENTS[one.verdict]
        passed = reason is EventReason.GATE_PASSED
        text = f"{one.type} {one.verdict} for {one.revision} at step {one.step}: {one.message}"
        key = f"gate:{one.target}:{one.attempt}:{one.step}:{one.type}:{one.at:%Y%m%dT%H%M%S}"
        yield EmitEvent(reason, "Normal" if passed else "Warning", text, key)
    was = before.rollout.analysis if before.rollout else None
    now = after.rollout.analysis if after.rollout else None
    if now and now.killed_at and (was is None or was.killed_at != now.killed_at):
        text = f"A worker of {now.revision} is killed, as forceFailure asks: the accounts must balance."
        key = f"killed:{now.revision}:{now.began_at:%Y%m%dT%H%M%S}"
        yield EmitEvent(EventReason.WORKER_KILLED, "Normal", text, key)
