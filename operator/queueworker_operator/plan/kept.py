"""Which revisions are kept to go back to: those that served last, and the one that serves."""

from __future__ import annotations

from collections.abc import Sequence

from queueworker_operator.api.kept import Kept, to_kept
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import QueueWorkerSpec, StableStatus
from queueworker_operator.plan.actions import ForgetRevision, KeepRevision


def keeping(
    spec: QueueWorkerSpec, asked: Revision, stable: StableStatus, kept: Sequence[Kept]
) -> tuple[list[KeepRevision | ForgetRevision], tuple[str, ...]]:
    """What is to be kept and forgotten while `stable` serves alone, and the names that are kept then: the
    last first. `asked` is the revision of the spec, the only one whose template is known besides those kept.
    """
    actions: list[KeepRevision | ForgetRevision] = []
    last_first = sorted(kept, key=lambda one: -one.number)
    serves = next((one for one in kept if one.revision.name == stable.revision), None)
    if serves is None and asked.name == stable.revision:
        serves = Kept(asked, 0, to_kept(spec, asked))
    others = [one for one in last_first if serves is None or one.revision.name != serves.revision.name]
    newest = others[0].number if others else 0
    if serves is not None and serves.number <= newest:
        actions.append(KeepRevision(serves.revision, newest + 1, serves.spec))
    old = others[spec.keep_versions :]
    actions += [ForgetRevision(one.revision.name, one.revision.deployment) for one in old]
    names = [one.revision.name for one in (*([serves] if serves else []), *others[: spec.keep_versions])]
    return actions, tuple(names)


def find(kept: Sequence[Kept], revision: str | None) -> Kept | None:
    return next((one for one in kept if one.revision.name == revision), None)
