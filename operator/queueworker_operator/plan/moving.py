"""A change to another broker: messages do not move with it, and nobody looks at the former one afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from queueworker_operator.api.kept import Kept
from queueworker_operator.api.reasons import EventReason, Stage
from queueworker_operator.api.revisions import Revision, broker_identity
from queueworker_operator.api.types import QueueWorkerStatus
from queueworker_operator.plan.actions import EmitEvent
from queueworker_operator.plan.kept import find


def moving(
    previous: QueueWorkerStatus, target: Revision, stage: Stage, kept: Sequence[Kept] | None
) -> list[EmitEvent]:
    """The warning of a change that begins and leads to another broker than the stable revision's, where that
    one is known: from `kept`."""
    rollout, stable = previous.rollout, previous.stable
    if stable is None or stage is Stage.IDLE or (rollout is not None and rollout.target == target.name):
        return []
    serves = find(kept or (), stable.revision)
    if serves is None or broker_identity(serves.revision.broker) == broker_identity(target.broker):
        return []
    text = (
        f"{target.name} consumes from another broker than {stable.revision}. If that is another server, what "
        "is left on the former one stays there, whether it is ready, delayed or held by workers that died: "
        f"see with `queueworker inspect {target.queue}` on it. To have it done, let another QueueWorker "
        "consume there; to go back, put the spec back."
    )
    key = f"broker:{stable.revision}:{target.name}:{rollout.target if rollout else None}"
    return [EmitEvent(EventReason.BROKER_CHANGED, "Warning", text, key)]
