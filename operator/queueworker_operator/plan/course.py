"""Which way a change goes: whether it goes on at all, and what serves meanwhile.

A change that may not go on leads back to the stable revision, or leaves it alone: aborted, revoked, held, not
promoted yet, nothing wanted, or another one not yet taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from queueworker_operator.api.reasons import CANARY_STAGES, WAY_OUT, ConditionReason, Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.rollout import Strategy
from queueworker_operator.api.types import Protocol, QueueWorkerSpec, QueueWorkerStatus, StableStatus
from queueworker_operator.plan.evidence import aborted
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.guards import Fail, Guard, Pass, Wait
from queueworker_operator.plan.requests import Heard

#: In these a change has begun.
_BEGUN = (*CANARY_STAGES, Stage.PROMOTING, *WAY_OUT)


def remembered(
    spec: QueueWorkerSpec,
    wanted: Revision,
    previous: QueueWorkerStatus,
    revisions: Sequence[RevisionFacts],
    leaving: Sequence[str],
) -> QueueWorkerStatus:
    """The status, where it names no stable revision but workers of others run: with the one that serves most,
    else the oldest. It was lost then, and what waits for steps or for a person must not go on without them.
    So the wanted one counts as stable only where it is both the largest and the oldest: a canary is younger.

    `leaving` are the revisions that are fenced: they serve nothing.
    """
    if previous.stable is not None or spec.strategy is Strategy.ROLLING:
        return previous
    running = [r for r in revisions if r.desired and r.name not in leaving]
    others = [r for r in running if r.name != wanted.name]
    serves = min(others, key=lambda r: (r.version == wanted.version, -r.desired, r.created), default=None)
    if serves is None:
        return previous
    current = next((r for r in running if r.name == wanted.name), None)
    if current and all(current.desired > r.desired and current.created < r.created for r in others):
        serves = current
    stable = StableStatus(
        revision=serves.name,
        version=serves.version,
        deployment=serves.deployment,
        prefetch=serves.prefetch,
    )
    return previous.model_copy(update={"stable": stable})


def is_forward(wanted: Revision, previous: QueueWorkerStatus) -> bool:
    """Another revision than the stable one, and not one that served before: that is a way back, which neither
    steps nor a hold are asked of. Nor of a Legacy one, which leaves by the guarded way whatever is there."""
    stable = previous.stable
    return (
        stable is not None
        and stable.revision != wanted.name
        and previous.previous != wanted.name
        and wanted.protocol is Protocol.RESERVATION
    )


def has_begun(wanted: Revision, previous: QueueWorkerStatus, running: Mapping[str, str]) -> bool:
    """Workers of the change are wanted, or the status says so. `running` has the version of each revision of
    which workers are wanted, by its name."""
    rollout, stable = previous.rollout, previous.stable
    if rollout is not None and rollout.target == wanted.name and rollout.stage in _BEGUN:
        return True
    name = stable.revision if stable else None
    return any(version == wanted.version and one != name for one, version in running.items())


def superseded(
    wanted: Revision, previous: QueueWorkerStatus, revisions: Sequence[RevisionFacts]
) -> list[RevisionFacts]:
    """Revisions of an earlier change that are still there."""
    stable = previous.stable.revision if previous.stable else None
    return [r for r in revisions if r.name != stable and r.version != wanted.version]


def held(
    spec: QueueWorkerSpec, wanted: Revision, previous: QueueWorkerStatus, revisions: Sequence[RevisionFacts]
) -> Pass | Wait:
    """Whether the hold of the spec keeps this change from beginning."""
    if spec.hold is None or has_begun(wanted, previous, {r.name: r.version for r in revisions if r.desired}):
        return Pass()
    return Wait(
        ConditionReason.HELD,
        f"No change may begin ({spec.hold.reason}): remove spec.hold to bring out {wanted.name}.",
    )


def revoked(spec: QueueWorkerSpec, wanted: Revision, previous: QueueWorkerStatus) -> Pass | Wait:
    """Whether the spec asks for a version that it revokes."""
    if wanted.version not in spec.revoked_versions:
        return Pass()
    serves = previous.stable is not None and previous.stable.revision == wanted.name
    text = f"{wanted.version} is in spec.revokedVersions" + (" and serves" if serves else "")
    return Wait(ConditionReason.VERSION_REVOKED, f"{text}: ask for another version, or take it off the list.")


def serves_revoked(spec: QueueWorkerSpec, stable: StableStatus, why: Wait | Fail) -> Wait | Fail:
    """`why` a change does not go on, and that what serves meanwhile is revoked, where it is."""
    if stable.version not in spec.revoked_versions:
        return why
    text = f"{stable.version}, which serves, is in spec.revokedVersions, too."
    return replace(why, message=f"{why.message} {text}")


def rolled_back(serves: str, asked: str) -> Wait:
    """Why what the spec asks for is not brought out after a request Rollback."""
    return Wait(
        ConditionReason.ROLLED_BACK,
        f"{serves or 'the stable revision'} serves in the place of {asked}, as asked: change the spec, or "
        "request Retry.",
    )


def kept_back(
    spec: QueueWorkerSpec,
    wanted: Revision,
    heard: Heard,
    previous: QueueWorkerStatus,
    revisions: Sequence[RevisionFacts],
) -> Pass | Wait:
    """Why the stable revision is kept and the change does not go on; Pass when it does. There is a stable
    revision, and it is another one."""
    if heard.aborted is not None:
        return aborted(heard.aborted, previous.gates)
    if heard.rolled_back is not None:
        return rolled_back(previous.stable.revision if previous.stable else "", heard.rolled_back.asked)
    if isinstance(revocation := revoked(spec, wanted, previous), Wait):
        return revocation
    if not is_forward(wanted, previous):
        return Pass()
    if isinstance(hold := held(spec, wanted, previous, revisions), Wait):
        return hold
    promoted = heard.promoted == wanted.name
    if spec.strategy is Strategy.MANUAL and not promoted and not _was_promoting(wanted, previous):
        return Wait(
            ConditionReason.WAITING_FOR_PROMOTION,
            f"The strategy is Manual: request Promote to bring out {wanted.name}.",
        )
    if spec.strategy is not Strategy.CANARY or promoted:
        return Pass()
    if not spec.replicas:
        return Wait(
            ConditionReason.NO_WORKERS_WANTED,
            f"Nothing can be seen of a canary of no workers: set spec.replicas to bring out {wanted.name}.",
        )
    if earlier := superseded(wanted, previous, revisions):
        names = ", ".join(r.name for r in earlier)
        return Wait(ConditionReason.SUPERSEDED, f"{names} is taken back before {wanted.name} is brought out.")
    return Pass()


def _was_promoting(wanted: Revision, previous: QueueWorkerStatus) -> bool:
    rollout = previous.rollout
    return rollout is not None and rollout.target == wanted.name and rollout.stage is Stage.PROMOTING


def kept_guard(stable: StableStatus, child: RevisionFacts | None, why: Guard) -> Pass | Fail:
    """Whether the stable revision can be kept without its template."""
    if child is not None:
        return Pass()
    manual = isinstance(why, Wait) and why.reason is ConditionReason.WAITING_FOR_PROMOTION
    way = "Promote" if manual else "Retry" if _is_aborted(why) else ""
    return Fail(
        ConditionReason.STABLE_MISSING,
        f"{stable.deployment} is gone, and its template is not known any more: put the spec back to it"
        + (f", or request {way}." if way else "."),
    )


def _is_aborted(why: Guard) -> bool:
    return isinstance(why, Wait) and why.reason is ConditionReason.ROLLOUT_ABORTED
