"""Which words of spec.revokedVersions are versions at all: one that names nothing revokes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queueworker_operator.api.types import QueueWorkerStatus, RevokedStatus

#: Of the versions that are known, as many are named for a person who looks for the right one.
_NAMED = 8


def revoked_versions(
    revoked: Iterable[str], known: Iterable[str], before: QueueWorkerStatus
) -> tuple[RevokedStatus, ...]:
    """Each version of the list once, and whether it was ever known here. `known` are those of this pass."""
    met = {*known, *_named(before), *(row.version for row in before.revoked if row.known)}
    return tuple(RevokedStatus(version=one, known=one in met) for one in dict.fromkeys(revoked))


def unknown_revoked(status: QueueWorkerStatus) -> tuple[str, ...]:
    """What the spec revokes and nobody has seen here."""
    return tuple(row.version for row in status.revoked if not row.known)


def told_unknown(unknown: Sequence[str], status: QueueWorkerStatus) -> str:
    """The warning: what is meant, which versions there are, and the way out."""
    known = _named(status)
    names = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
    what, it = ("is no version", "it") if len(unknown) == 1 else ("are no versions", "them")
    return (
        f"spec.revokedVersions has {', '.join(unknown)}, which {what} known here (known: {names or 'none'}). "
        f"Correct {it} if that is a typing mistake; a version that is still to come is kept out all the same."
    )


def _named(status: QueueWorkerStatus) -> list[str]:
    """The versions that a status names, each once, those that serve first."""
    rolled_back, rollout = status.rolled_back, status.rollout
    names = (
        *status.kept,
        status.previous,
        status.aborted,
        rolled_back.asked if rolled_back else None,
        rollout.target if rollout else None,
    )
    versions = [status.stable.version] if status.stable else []
    versions += [row.version for row in status.revisions]
    versions += [name.rpartition("-p")[0] for name in names if name]
    return list(dict.fromkeys(versions))
