"""What gates found, as the status keeps it, and what is read back of an analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from queueworker_operator.api.gates import AnalysisStatus, GateStatus, Verdict, newest
from queueworker_operator.api.reasons import ConditionReason
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.rollout import Rollout
from queueworker_operator.api.types import QueueWorkerSpec, QueueWorkerStatus, RolloutStatus
from queueworker_operator.plan.analysis import Analysed, Terms
from queueworker_operator.plan.guards import Wait
from queueworker_operator.plan.steps import Place

#: Entries in `status.gates`: the newest.
KEPT = 32


def terms_of(resource: str, spec: QueueWorkerSpec) -> Mapping[int, Terms]:
    """What holds for each step that is an analysis, by index. `resource` is the name of the QueueWorker."""
    rollout = spec.rollout or Rollout()
    return {
        index: Terms(
            step.analysis,
            rollout.gates,
            rollout.on_failure,
            rollout.on_inconclusive,
            timedelta(seconds=spec.progress_deadline_seconds),
            resource,
            spec.queue.name,
        )
        for index, step in enumerate(spec.steps)
        if step.analysis is not None
    }


def begun(before: RolloutStatus | None, target: str, place: Place) -> AnalysisStatus | None:
    """The analysis that the status has of this very step of this attempt."""
    if before is None or place.restarted:
        return None
    same = (before.target, before.step, before.attempt) == (target, place.shown, place.attempt)
    return before.analysis if same else None


def evidence(
    found: Analysed, target: str, arm: Revision, place: Place, now: datetime
) -> tuple[GateStatus, ...]:
    """One entry for each gate that judged."""
    return tuple(
        GateStatus(
            target=target,
            revision=arm.name,
            arm=arm.prefetch,
            attempt=place.attempt,
            step=place.shown,
            **judged.found(gate).model_dump(),
            at=now,
        )
        for gate, judged in found.found
    )


def kept_gates(
    previous: QueueWorkerStatus, wanted: str, forward: bool, aborted: str | None
) -> tuple[GateStatus, ...]:
    """What stays of earlier passes: all of it, until another change begins, or this one anew."""
    anew = previous.aborted == wanted and aborted is None
    other = forward and any(one.target != wanted for one in previous.gates)
    return () if anew or other else previous.gates


def refusals(gates: Sequence[GateStatus], target: str) -> tuple[GateStatus, ...]:
    """Gates of the last analysis of a change that did not let it go on."""
    passes = (Verdict.PASSED, Verdict.WAIVED)
    return tuple(one for one in newest(gates) if one.target == target and one.verdict not in passes)


def aborted(target: str, gates: Sequence[GateStatus]) -> Wait:
    """Why a change is not brought out that a request or a gate aborted."""
    bad = refusals(gates, target)
    if not bad:
        text = f"The change to {target} was aborted by a request: change the spec, or request Retry."
        return Wait(ConditionReason.ROLLOUT_ABORTED, text)
    why = "; ".join(f"{one.type} {one.verdict}: {one.message.rstrip('.')}" for one in bad)
    return Wait(
        ConditionReason.ROLLOUT_ABORTED,
        f"The change to {target} was aborted. At step {bad[0].step}: {why}. "
        "Change the spec, or request Retry.",
    )
