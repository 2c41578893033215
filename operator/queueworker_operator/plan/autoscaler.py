"""An autoscaler that is aimed at one of our Deployments, instead of at the QueueWorker.

It and we would write the same number in turn, and each time a worker would start or stop. So we give way, say
so, and put the number back only now and then, in case the autoscaler is gone. Nothing gives way where a
revision is told to stop altogether: an autoscaler leaves a Deployment alone that is at 0.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from queueworker_operator.api.names import GROUP_VERSION, KIND
from queueworker_operator.api.reasons import WAY_OUT, ConditionReason, ConditionType
from queueworker_operator.api.types import QueueWorkerStatus
from queueworker_operator.plan.actions import Action, ScaleRevision
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.forward import Change
from queueworker_operator.plan.guards import Fail

#: Between two times that the number is put back.
PUT_BACK_EVERY = timedelta(seconds=300)


def gives_way(change: Change, name: str, now: datetime) -> Change:
    """The change without the numbers that an autoscaler would write over, and with the word on it. `name` is
    that of the QueueWorker."""
    scaled = {r.name: r for r in change.situation.revisions if r.scaled_by}
    contested = [
        action
        for action in change.decision.actions
        if isinstance(action, ScaleRevision) and action.replicas and action.revision in scaled
    ]
    if not contested:
        return change
    if not _is_due(change.previous, now):
        actions = tuple(action for action in change.decision.actions if not _is_one_of(action, contested))
        change = replace(change, decision=replace(change.decision, actions=actions))
    if isinstance(change.blocker, Fail) or change.decision.stage in WAY_OUT:
        return change
    first = scaled[contested[0].revision]
    return replace(change, blocker=Fail(ConditionReason.FOREIGN_AUTOSCALER, _text(first, name)))


def _is_one_of(action: Action, contested: list[ScaleRevision]) -> bool:
    return any(action is one for one in contested)


def _is_due(previous: QueueWorkerStatus, now: datetime) -> bool:
    """It was said, and that is long ago."""
    stalled = previous.condition(ConditionType.STALLED)
    told = stalled is not None and stalled.reason == ConditionReason.FOREIGN_AUTOSCALER
    return told and stalled is not None and now - stalled.last_transition_time >= PUT_BACK_EVERY


def _text(r: RevisionFacts, name: str) -> str:
    return (
        f"The number of workers of {r.deployment} was set by {r.scaled_by}, which is aimed at it, "
        f"and is left as it is. Delete it, or aim its scaleTargetRef at the QueueWorker (apiVersion: "
        f"{GROUP_VERSION}, kind: {KIND}, name: {name}). The number is put back within "
        f"{PUT_BACK_EVERY.seconds} s, or at once with `kubectl scale`."
    )
