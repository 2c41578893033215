"""The gates: what two readings of the books say of an arm beside the stable revision. Pure.

Each reads what the broker counted, which is exact also for workers that were killed in between. Whoever lacks
a number says so: nothing that was not seen passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from queueworker_operator.api.gates import (
    MIN_PERCENT_OF_STABLE,
    BooksStatus,
    Counts,
    Gate,
    GateType,
    Verdict,
)
from queueworker_operator.plan.queue_facts import Unknown

#: What cannot be a coincidence: standard errors.
_SURE = 3.0
#: Of a hundred settled messages, this many more than the stable revision rejects may be rejected.
_MORE_REJECTED = 1.0


@dataclass(frozen=True, slots=True)
class Side:
    """The workers of one side."""

    revision: str
    workers: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One window: the books at its beginning, after the warm-up and now."""

    began: BooksStatus
    start: BooksStatus
    end: BooksStatus
    canary: Side
    stable: Side
    #: Work waited at every look between `start` and `end`.
    backlogged: bool
    #: The most deliveries that one process of the arm owns, and the most that it may.
    most_owned: int
    bound: int


@dataclass(frozen=True, slots=True)
class Judged:
    verdict: Verdict
    #: What was read, and the limit.
    message: str
    #: Settled messages of the canary that it rests on.
    samples: int = 0


def judge(gate: Gate, measured: Measured | Unknown) -> Judged:
    """What one gate makes of a window that is over."""
    if gate.waiver is not None:
        return Judged(Verdict.WAIVED, f"left out: {gate.waiver}")
    if isinstance(measured, Unknown):
        return Judged(Verdict.ERROR, measured.reason)
    if lost := _lost(measured):
        return Judged(Verdict.INCONCLUSIVE, lost)
    return _JUDGES[gate.type](gate, measured)


def _lost(measured: Measured) -> str:
    """Why the books of the window are not one piece; empty when they are."""
    for before, after in ((measured.began, measured.start), (measured.start, measured.end)):
        if before.server != after.server:
            return (
                f"{after.server} answers now, and {before.server} did before: a failover can lose entries of "
                "the books."
            )
        for was, is_ in ((before.canary, after.canary), (before.stable, after.stable)):
            if any(now < then for then, now in _grown(was, is_)):
                return "the counts went backwards: the books were lost or written by somebody else."
    return ""


def _grown(was: Counts, is_: Counts) -> list[tuple[int, int]]:
    names = ("claimed", "committed", "rejected", "released", "taken_over", "poisoned")
    return [(getattr(was, name), getattr(is_, name)) for name in names]


def _queue_progress(gate: Gate, measured: Measured) -> Judged:
    """What one worker commits while work waits, and whether the bound of the prefetch holds."""
    canary = _between(measured.start.canary, measured.end.canary)
    stable = _between(measured.start.stable, measured.end.stable)
    samples = _settled(canary)
    if measured.most_owned > measured.bound:
        text = f"one process of {measured.canary.revision} owns {measured.most_owned} deliveries"
        return Judged(Verdict.FAILED, f"{text}, and prefetch and coroutines allow {measured.bound}.", samples)
    workers, of_stable = measured.canary.workers, measured.stable.workers
    told = f"{canary.committed} commits by {workers} workers, {stable.committed} by {of_stable} of the stable"
    if not measured.backlogged:
        if samples < gate.min_samples:
            return _too_few(f"{samples} settled", gate, samples)
        return Judged(Verdict.PASSED, f"{told}; the queue ran empty, so no rate is compared.", samples)
    # What it should have settled: a canary that does nothing at all has no samples of its own.
    expected = _settled(stable) * workers / of_stable
    if _settled(stable) < gate.min_samples or max(expected, samples) < gate.min_samples:
        return _too_few(f"{samples} settled by the canary, {_settled(stable)} by the stable", gate, samples)
    if not stable.committed:
        return Judged(
            Verdict.INCONCLUSIVE, f"{told}: the stable revision commits nothing to compare with.", samples
        )
    least = MIN_PERCENT_OF_STABLE if gate.min_percent_of_stable is None else gate.min_percent_of_stable
    ratio = (canary.committed / workers) / (stable.committed / of_stable)
    error = ratio * (1 / max(1, canary.committed) + 1 / stable.committed) ** 0.5
    shown = f"{told}: {_percent(ratio)} for each worker, at least {least} %"
    if ratio + _SURE * error < least / 100:
        return Judged(Verdict.FAILED, f"{shown}.", samples)
    return Judged(Verdict.PASSED, f"{shown}.", samples)


def _usage_accounting(gate: Gate, measured: Measured) -> Judged:
    """Whether the books balance over the whole window, a forced failure included, and whether what was taken
    is counted: committed, not rejected."""
    canary = _between(measured.began.canary, measured.end.canary)
    stable = _between(measured.began.stable, measured.end.stable)
    samples = _settled(canary)
    told = (
        f"{canary.claimed} claimed: {canary.committed} committed, {canary.rejected} rejected, "
        f"{canary.released} released, {canary.taken_over} taken over"
    )
    astray = measured.end.canary.unbooked - measured.began.canary.unbooked
    if astray:
        what = f"{astray} are nowhere" if astray > 0 else f"{-astray} ended twice"
        return Judged(Verdict.FAILED, f"{told}; {what}: the books do not balance.", samples)
    uncounted, all_ = canary.rejected + canary.poisoned, samples + canary.poisoned
    others, of_stable = stable.rejected + stable.poisoned, _settled(stable) + stable.poisoned
    if all_ < gate.min_samples:
        return _too_few(f"{all_} settled", gate, samples)
    if uncounted and of_stable < gate.min_samples:
        return _too_few(f"{of_stable} settled by the stable", gate, samples)
    share, usual = uncounted / all_, others / max(1, of_stable)
    pooled = (uncounted + others) / (all_ + of_stable)
    error = (pooled * (1 - pooled) * (1 / all_ + 1 / max(1, of_stable))) ** 0.5
    shown = f"{told}; {_percent(share)} not counted, {_percent(usual)} of the stable revision's"
    if share - usual > max(_MORE_REJECTED / 100, _SURE * error):
        return Judged(Verdict.FAILED, f"{shown}.", samples)
    return Judged(Verdict.PASSED, f"{shown}.", samples)


_JUDGES: Mapping[GateType, Callable[[Gate, Measured], Judged]] = {
    GateType.QUEUE_PROGRESS: _queue_progress,
    GateType.USAGE_ACCOUNTING: _usage_accounting,
}


def _too_few(what: str, gate: Gate, samples: int) -> Judged:
    return Judged(
        Verdict.INCONCLUSIVE,
        f"{what}, and minSamples is {gate.min_samples}: measure for longer, or with more work.",
        samples,
    )


def _between(was: Counts, is_: Counts) -> Counts:
    return Counts(
        claimed=is_.claimed - was.claimed,
        committed=is_.committed - was.committed,
        rejected=is_.rejected - was.rejected,
        released=is_.released - was.released,
        taken_over=is_.taken_over - was.taken_over,
        poisoned=is_.poisoned - was.poisoned,
    )


def _settled(counts: Counts) -> int:
    return counts.committed + counts.rejected


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
