"""Events: one for each transition, found by comparing the previous status with the new one."""

from __future__ import annotations

from collections.abc import Iterator

from queueworker_operator.api.reasons import (
    CANARY_STAGES,
    WAY_OUT,
    ConditionReason,
    ConditionType,
    EventReason,
    Stage,
)
from queueworker_operator.api.types import Condition, QueueWorkerStatus, Role
from queueworker_operator.plan.actions import EmitEvent
from queueworker_operator.plan.gate_words import gate_events
from queueworker_operator.plan.revoked import told_unknown, unknown_revoked
from queueworker_operator.plan.status import deletes

#: Stalled for these reasons is posted; what is wrong with the broker is posted from its own conditions.
_STALLED = {
    ConditionReason.INVALID_SPEC: EventReason.INVALID_SPEC,
    ConditionReason.INVALID_TEMPLATE: EventReason.INVALID_TEMPLATE,
    ConditionReason.NAME_CONFLICT: EventReason.NAME_CONFLICT,
    ConditionReason.FOREIGN_AUTOSCALER: EventReason.FOREIGN_AUTOSCALER,
    ConditionReason.QUEUE_NOT_PROVISIONED: EventReason.QUEUE_NOT_PROVISIONED,
    ConditionReason.QUEUE_UNUSABLE: EventReason.QUEUE_UNUSABLE,
    ConditionReason.PROGRESS_DEADLINE_EXCEEDED: EventReason.PROGRESS_DEADLINE_EXCEEDED,
    ConditionReason.DRAIN_OVERDUE: EventReason.DRAIN_OVERDUE,
    ConditionReason.PRODUCERS_PUBLISH: EventReason.PRODUCERS_PUBLISH,
    ConditionReason.PRIORITY_STUCK: EventReason.PRIORITY_STUCK,
}


def transitions(before: QueueWorkerStatus, after: QueueWorkerStatus) -> Iterator[EmitEvent]:
    """The events that lead from one status to the next; none between equal ones."""
    yield from _stages(before, after)
    yield from _retired(before, after)
    yield from _broker(before, after)
    yield from gate_events(before, after)
    yield from _revoked(before, after)
    stalled = _changed(before, after, ConditionType.STALLED)
    if stalled and (reason := _STALLED.get(ConditionReason(stalled.reason))):
        yield _event(reason, before, after, stalled)
    reconciling = _changed(before, after, ConditionType.RECONCILING)
    if reconciling and reconciling.reason == ConditionReason.WORKERS_FAILING:
        yield _event(EventReason.WORKERS_FAILING, before, after, reconciling)


def _stages(before: QueueWorkerStatus, after: QueueWorkerStatus) -> Iterator[EmitEvent]:
    old, new = before.rollout, after.rollout
    old_place = (old.stage, old.target) if old else None
    if new and deletes(new) and not deletes(old):
        text = "Deletion: all workers are fenced, finish and stop; ready messages stay on the broker."
        yield EmitEvent(EventReason.DRAIN_STARTED, "Normal", text, f"drain:{after.observed_generation}")
    if new and old_place != (new.stage, new.target):
        key = f"{after.observed_generation}:{new.target}"
        yield from _older(before, after, key)
        if new.stage is Stage.PROMOTING:
            beside = f" beside {after.stable.revision}" if after.stable else ""
            text = f"{new.target} is brought out{beside}: new workers first, then the old ones are drained."
            if after.stable and after.stable.revision == new.target:
                text = f"Back to {new.target}: the workers of other revisions are drained."
            elif old and old.target == new.target and old.stage in CANARY_STAGES:
                text = f"{new.target} takes over{beside}: its steps are over."
            yield EmitEvent(EventReason.ROLLOUT_STARTED, "Normal", text, f"started:{key}")
        elif new.stage in CANARY_STAGES and (
            old is None or old.target != new.target or old.stage not in CANARY_STAGES
        ):
            text = f"{new.target} is brought out as a canary, in steps."
            yield EmitEvent(EventReason.ROLLOUT_STARTED, "Normal", text, f"canary:{key}:{new.attempt}")
        elif new.stage in WAY_OUT:
            yield from _way_out(before, after, key)
    yield from _steps(before, after)
    was, is_ = before.stable, after.stable
    left = old.leaving if old and old.stage in WAY_OUT else None
    # An arm that still leaves while its change takes over is none of what is taken back.
    back = was is None or is_ is None or is_.revision == was.revision or left == was.revision
    back = back or before.previous == (is_ and is_.revision) or after.rolled_back is not None
    if is_ and new and new.stage is Stage.IDLE and left and left != is_.revision and back:
        text = f"{is_.revision} serves alone; {left} is retired, and nothing that it held is left behind."
        key = f"back:{after.observed_generation}:{is_.revision}:{left}"
        yield EmitEvent(EventReason.ROLLED_BACK, "Normal", text, key)
    elif is_ and (was is None or was.revision != is_.revision):
        text = f"{is_.revision} serves alone" + (f"; {was.revision} is retired." if was else ".")
        key = f"promoted:{after.observed_generation}:{is_.revision}"
        yield EmitEvent(EventReason.PROMOTED, "Normal", text, key)


def _older(before: QueueWorkerStatus, after: QueueWorkerStatus, key: str) -> Iterator[EmitEvent]:
    """Work that only older workers take is waited for, or gone."""
    old, new = before.rollout, after.rollout
    drained = after.condition(ConditionType.PRIORITY_DRAINED)
    if new is None or after.stable is None or drained is None:
        return
    name = after.stable.revision
    if new.stage is Stage.DRAINING_LEGACY:
        text = f"{name} stays at full number until nothing is left that only it takes; then {new.target}."
        yield EmitEvent(EventReason.LEGACY_DRAIN_STARTED, "Normal", text, f"older:{key}")
    elif old and old.stage is Stage.DRAINING_LEGACY and old.target == new.target and drained.status == "True":
        text = f"Nothing is left that only {name} takes, so {new.target} may start."
        yield EmitEvent(EventReason.LEGACY_DRAINED, "Normal", text, f"older-drained:{key}")


def _steps(before: QueueWorkerStatus, after: QueueWorkerStatus) -> Iterator[EmitEvent]:
    """A canary got further, or began again."""
    old, new = before.rollout, after.rollout
    if old is None or new is None or old.step is None or new.step is None or old.target != new.target:
        return
    name = f"{new.target} (attempt {new.attempt})"
    if old.attempt != new.attempt:
        text = f"The steps were changed: {name} begins at the first again."
        key = f"restarted:{new.target}:{new.attempt}"
        yield EmitEvent(EventReason.STEPS_RESTARTED, "Normal", text, key)
    elif old.step != new.step or new.stage is Stage.PROMOTING is not old.stage:
        canary = next((r for r in after.revisions if r.role is Role.CANARY), None)
        serves = f" {canary.name} runs with {canary.replicas} of the workers." if canary else ""
        text = f"Step {old.step} of {name} is over.{serves}"
        # A second canary of the same version walks the same steps: when it began tells them apart.
        key = f"step:{new.target}:{new.attempt}:{old.step}:{new.stage}:{new.started_at:%Y%m%dT%H%M%S}"
        yield EmitEvent(EventReason.STEP_COMPLETED, "Normal", text, key)


def _way_out(before: QueueWorkerStatus, after: QueueWorkerStatus, key: str) -> Iterator[EmitEvent]:
    """One event for each stage of the guarded way that ends, and one for its beginning."""
    old, new = before.rollout, after.rollout
    if new is None or new.leaving is None:
        return
    name = new.leaving
    first = WAY_OUT.index(old.stage) if old and old.stage in WAY_OUT and old.leaving == name else -1
    since = "since no worker is wanted"
    if new.target is None:
        since = "since the resource is deleted"
    elif new.target != name:
        since = f"as soon as {new.target} serves"
    texts = {
        Stage.STOP_RECEIVING: (
            EventReason.ROLLBACK_STARTED,
            f"{name} leaves: it is fenced on the broker {since}.",
        ),
        Stage.DRAIN_OUTSTANDING: (
            EventReason.RECEIVING_STOPPED,
            f"{name} is fenced: none of its workers can take work any more, wherever it is.",
        ),
        Stage.RECOVER_RESERVATIONS: (EventReason.WORK_DRAINED, f"Workers of {name} own nothing any more."),
        Stage.RETIRE: (
            EventReason.REGISTRY_EMPTY,
            f"Nothing that {name} held can be stranded, so its workers are stopped ({new.evidence}).",
        ),
    }
    # A quick world may pass several stages between two looks: each is told.
    for stage in WAY_OUT[first + 1 : WAY_OUT.index(new.stage) + 1]:
        if stage in texts:
            reason, text = texts[stage]
            yield EmitEvent(reason, "Normal", text, f"{reason}:{key}:{name}")


def _retired(before: QueueWorkerStatus, after: QueueWorkerStatus) -> Iterator[EmitEvent]:
    """Superseded revisions that are gone. (The retirement of the stable one is part of Promoted.)"""
    there = {r.name for r in after.revisions} | {after.rollout.target if after.rollout else None}
    there.add(before.stable.revision if before.stable else None)
    if deletes(after.rollout):
        return
    for r in before.revisions:
        if r.name not in there:
            text = f"{r.name} was superseded and has no worker left; {r.deployment} is deleted."
            key = f"retired:{after.observed_generation}:{r.name}"
            yield EmitEvent(EventReason.REVISION_RETIRED, "Normal", text, key)


def _revoked(before: QueueWorkerStatus, after: QueueWorkerStatus) -> Iterator[EmitEvent]:
    was = unknown_revoked(before)
    if new := [one for one in unknown_revoked(after) if one not in was]:
        key = f"revoked:{after.observed_generation}:{','.join(new)}"
        yield EmitEvent(EventReason.REVOKED_VERSION_UNKNOWN, "Warning", told_unknown(new, after), key)


def _broker(before: QueueWorkerStatus, after: QueueWorkerStatus) -> Iterator[EmitEvent]:
    reachable = _changed(before, after, ConditionType.BROKER_REACHABLE)
    if reachable and reachable.status == "False":
        missing = reachable.reason == ConditionReason.SECRET_NOT_FOUND
        reason = EventReason.SECRET_NOT_FOUND if missing else EventReason.BROKER_UNREACHABLE
        yield _event(reason, before, after, reachable)
    elif reachable and reachable.status == "True":
        was = before.condition(ConditionType.BROKER_REACHABLE)
        if reachable.reason == ConditionReason.WRITES_REFUSED:
            yield _event(EventReason.WRITES_REFUSED, before, after, reachable)
        elif was and (was.status == "False" or was.reason == ConditionReason.WRITES_REFUSED):
            yield _event(EventReason.BROKER_RECOVERED, before, after, reachable, warning=False)
    placement = _changed(before, after, ConditionType.PLACEMENT_VALID)
    if placement and placement.status == "False":
        yield _event(EventReason.PLACEMENT_REFUSED, before, after, placement)


def _changed(before: QueueWorkerStatus, after: QueueWorkerStatus, type_: ConditionType) -> Condition | None:
    """The new condition, when its status or reason differs from the previous one's."""
    was, is_ = before.condition(type_), after.condition(type_)
    if is_ is None or (was and (was.status, was.reason) == (is_.status, is_.reason)):
        return None
    return is_


def _event(
    reason: EventReason,
    before: QueueWorkerStatus,
    after: QueueWorkerStatus,
    condition: Condition,
    *,
    warning: bool = True,
) -> EmitEvent:
    # The state that was left names the transition: after a crash the same event gets the same key.
    was = before.condition(condition.type)
    left = f"{was.status}/{was.reason}@{was.last_transition_time:%Y%m%dT%H%M%S}" if was else "nothing"
    key = f"{condition.type}:{condition.reason}:{after.observed_generation}:{left}"
    return EmitEvent(reason, "Warning" if warning else "Normal", condition.message, key)
