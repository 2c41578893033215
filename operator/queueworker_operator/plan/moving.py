"""A change to another broker: messages do not move with it, and nobody looks at the former one afterwards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from queueworker_operator.api.kept import Kept
from queueworker_operator.api.reasons import ConditionReason, EventReason, Stage
from queueworker_operator.api.revisions import Revision, broker_place
from queueworker_operator.api.types import Broker, QueueWorkerSpec, QueueWorkerStatus
from queueworker_operator.plan.actions import EmitEvent
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.guards import Pass, Wait
from queueworker_operator.plan.kept import find
from queueworker_operator.plan.split import is_empty


def elsewhere(
    broker: Broker, revisions: Iterable[RevisionFacts], kept: Iterable[Kept] | None
) -> frozenset[str]:
    """Revisions that are there or kept, and consume from another broker than this one."""
    place = broker_place(broker)
    away = {r.name for r in revisions if r.broker not in (None, place)}
    return frozenset(
        away | {one.revision.name for one in kept or () if broker_place(one.revision.broker) != place}
    )


def unproven(spec: QueueWorkerSpec, revisions: Sequence[RevisionFacts], away: Collection[str]) -> Pass | Wait:
    """Whether somebody can prove that nothing is left when every worker goes: not where some consume from a
    broker that is not looked at (`away`)."""
    busy = sorted(r.name for r in revisions if r.name in away and not is_empty(r))
    if spec.replicas or not busy:
        return Pass()
    names = ", ".join(busy)
    way = "put spec.broker back, or ask for no worker when the change is over."
    if any(r.name not in away and not is_empty(r) for r in revisions):
        # Whichever broker the spec names, workers of the other one are left.
        way = (
            "ask for a worker until the change is over, or, with spec.broker put back, until it is taken "
            "back; then ask for none."
        )
    text = f"{names} consumes from another broker than the spec names, and only that one is looked at: {way}"
    return Wait(ConditionReason.NO_WORKERS_WANTED, text)


def moving(
    previous: QueueWorkerStatus, target: Revision, stage: Stage, kept: Sequence[Kept] | None
) -> list[EmitEvent]:
    """The warning of a change that begins and leads to another broker than the stable revision's, where that
    one is known: from `kept`."""
    rollout, stable = previous.rollout, previous.stable
    if stable is None or stage is Stage.IDLE or stable.revision == target.name:
        return []
    if rollout is not None and rollout.target == target.name:
        return []
    serves = find(kept or (), stable.revision)
    if serves is None or broker_place(serves.revision.broker) == broker_place(target.broker):
        return []
    text = (
        f"{target.name} consumes from another broker than {stable.revision}. If that is another server, what "
        "is left on the former one stays there, whether it is ready, delayed or held by workers that died: "
        f"see with `queueworker inspect {target.queue}` on it. To have it done, let another QueueWorker "
        "consume there; to go back, put the spec back."
    )
    key = f"broker:{stable.revision}:{target.name}:{rollout.target if rollout else None}"
    return [EmitEvent(EventReason.BROKER_CHANGED, "Warning", text, key)]
