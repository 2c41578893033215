"""How many workers each revision gets while one takes over from others."""

from __future__ import annotations

from collections.abc import Sequence

from queueworker_operator.plan.facts import RevisionFacts


def serving(revision: RevisionFacts) -> int:
    """Workers that serve and are meant to stay: a status may still count those that were told to stop."""
    return min(revision.available, revision.desired)


def young(*revisions: RevisionFacts) -> str:
    """What explains why fewer are available than anybody sees ready; empty where all that are ready are."""
    number = sum(r.ready - r.available for r in revisions)
    return f" ({number} more: ready, but not for minReadySeconds yet)" if number > 0 else ""


def hold(
    desired: int, taken_over: int, leaving: Sequence[RevisionFacts], fallback: str | None
) -> dict[str, int]:
    """Workers that each leaving revision still has to hold, by name.

    `taken_over` workers of the target serve already, so `desired - taken_over` are needed from the others.
    They come from those that serve, in the order given; what is missing is asked of `fallback`, if it is
    among them. So serving capacity never falls below `desired` by our doing, and all together never exceed
    twice `desired`.
    """
    needed = max(0, desired - taken_over)
    shares: dict[str, int] = {}
    for revision in leaving:
        shares[revision.name] = min(serving(revision), needed)
        needed -= shares[revision.name]
    if fallback in shares:
        shares[fallback] += needed
    return shares


def is_empty(revision: RevisionFacts) -> bool:
    """Proven: no worker is wanted, none is alive, and none is about to be started."""
    return revision.desired == 0 and revision.alive == 0 and revision.caught_up


def is_out_of_reach(revision: RevisionFacts) -> bool:
    """No worker is wanted, and all that are left should be gone since a while: the cluster has lost sight of
    them. They may run, so only what stops them elsewhere, as a fence does, makes this as good as empty."""
    return revision.desired == 0 and revision.caught_up and 0 < revision.alive <= revision.overdue
