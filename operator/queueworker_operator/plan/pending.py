"""What a person could ask for now, as the pass that answers and whoever offers to ask see it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.rollout import Strategy, steps_hash
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.plan.course import has_begun, is_forward
from queueworker_operator.plan.requests import Pending
from queueworker_operator.plan.steps import Place, resume


def place_of(
    resource: QueueWorker, wanted: Revision, previous: QueueWorkerStatus, now: datetime
) -> Place | None:
    """How far the steps are, where the change has steps to walk."""
    steps = resource.spec.steps
    if not steps or not is_forward(wanted, previous):
        return None
    aborted = previous.aborted == wanted.name
    return resume(previous.rollout, wanted.name, len(steps), steps_hash(steps), now, aborted=aborted)


def pending_of(
    resource: QueueWorker,
    wanted: Revision,
    previous: QueueWorkerStatus,
    place: Place | None,
    there: bool,
    versions: Mapping[str, str],
    running: Mapping[str, str],
) -> Pending:
    """What a request could bring on. `there`: the stable revision is; `versions`: those of kept revisions,
    and `running` those of revisions that are to have workers, by their names."""
    spec, rollout, stable = resource.spec, previous.rollout, previous.stable
    waits = place is not None and not place.restarted and not place.done and not spec.steps[place.index].sets
    begun = rollout is not None and rollout.target == wanted.name
    return Pending(
        wanted=wanted.name,
        promotable=spec.strategy is not Strategy.ROLLING
        and is_forward(wanted, previous)
        and wanted.version not in spec.revoked_versions,
        waiting_step=place.shown if place is not None and waits and begun else None,
        stable_is_there=there or bool(stable and stable.revision in versions),
        kept=versions,
        revoked=spec.revoked_versions,
        forgotten=resource.status.stable is None and previous.stable is not None,
        analysed=bool(rollout and rollout.analysis and rollout.analysis.verdict),
        held=spec.hold is not None and not has_begun(wanted, previous, running),
    )
