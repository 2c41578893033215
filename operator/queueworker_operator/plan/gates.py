"""The gates: what two looks say of an arm beside the stable revision. Pure.

Two of them read what the broker counted, which is exact also for workers that were killed in between; two
read what workers said that lived through the window. Whoever lacks a number says so: nothing that was not
seen passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from queueworker_operator.api.gates import (
    MAX_PERCENT_OF_STABLE,
    MIN_PERCENT_OF_STABLE,
    BooksStatus,
    Counts,
    FoundStatus,
    Gate,
    GateType,
    Verdict,
)
from queueworker_operator.plan.queue_facts import Unknown
from queueworker_operator.plan.samples import (
    NotSampled,
    Samples,
    Sum,
    count,
    quantile_bound,
    surely_above,
)

#: What cannot be a coincidence: standard errors.
_SURE = 3.0
#: Of a hundred messages, this many more than the stable revision's may be rejected, or taken over.
_MORE = 1.0
#: Seconds of CPU a second for each worker that are not counted: polling, renewing, being asked.
_IDLE = 0.02
#: Seconds that are added to every limit: of a handler, and of a wait, which is known to a second only.
_SHORTEST, _COARSEST = 0.001, 1.0
#: Of all messages, the part that is compared: the middle one, and the slow ones.
_SHARES = (0.5, 0.95, 0.99)


#: Gates that read the broker's books of each revision.
NEED_BOOKS = (GateType.QUEUE_PROGRESS, GateType.USAGE_ACCOUNTING)


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
    #: Whether the broker keeps books of each revision.
    kept: bool
    canary: Side
    stable: Side
    #: Work waited at every look between `start` and `end`.
    backlogged: bool
    #: The most deliveries that one process of the arm owns, and the most that it may.
    most_owned: int
    bound: int
    #: What workers said since `start`.
    samples: Samples | Unknown | NotSampled
    now: datetime
    #: A worker of the canary was killed on purpose, so that others take over what it had.
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    verdict: Verdict
    #: What was read, and the limit.
    message: str
    #: Settled messages of the canary that it rests on.
    samples: int = 0
    #: What was measured, in percent of the stable revision's, and how many may be.
    percent: int | None = None
    limit: int | None = None

    def found(self, gate: Gate) -> FoundStatus:
        """As the status keeps it."""
        message = self.message[:512]
        return FoundStatus(
            type=gate.type,
            verdict=self.verdict,
            message=message,
            samples=self.samples,
            percent=self.percent,
            limit=self.limit,
        )

    @classmethod
    def of(cls, found: FoundStatus) -> Judged:
        """As the status kept it."""
        return cls(found.verdict, found.message, found.samples, found.percent, found.limit)


WITHOUT_BOOKS = Judged(
    Verdict.INCONCLUSIVE,
    "the broker keeps no books of each revision (JetStream): waive this gate, and say why.",
)


def judge(gate: Gate, measured: Measured) -> Judged:
    """What one gate makes of a window that is over."""
    if gate.waiver is not None:
        return Judged(Verdict.WAIVED, f"left out: {gate.waiver}")
    if gate.type in NEED_BOOKS and not measured.kept:
        return WITHOUT_BOOKS
    if gate.type in NEED_BOOKS and (lost := _lost(measured)):
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
    told = f"{_commits(canary, workers)}, {stable.committed} by {of_stable} of the stable revision"
    if not measured.backlogged:
        if not samples and measured.most_owned:
            return Judged(
                Verdict.INCONCLUSIVE,
                f"{measured.canary.revision} settled nothing, and one process of it owns "
                f"{measured.most_owned} deliveries: see what its handlers wait for (`queueworker inspect`), "
                "then request Retry or Abort.",
            )
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
    verdict = Verdict.FAILED if ratio + _SURE * error < least / 100 else Verdict.PASSED
    if verdict is Verdict.PASSED and ratio < least / 100:
        shown += "; among so few messages that can be chance"
    return Judged(verdict, f"{shown}.", samples, _whole_percent(ratio), least)


def _usage_accounting(gate: Gate, measured: Measured) -> Judged:
    """Whether the books balance over the whole window, a forced failure included, and whether what was taken
    is counted: committed, not rejected."""
    canary = _between(measured.began.canary, measured.end.canary)
    stable = _between(measured.began.stable, measured.end.stable)
    samples = _settled(canary)
    had, owned = _owned(measured.began.canary), _owned(measured.end.canary)
    told = (
        f"{canary.claimed} claimed{f' and {had} owned before' if had else ''}: "
        f"{canary.committed} committed, {canary.rejected} rejected, {canary.released} released, "
        f"{canary.taken_over} taken over, {owned} still owned"
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
    shown = f"{told}; {_percent(share)} rejected or unreadable, {_percent(usual)} beside"
    if _surely_more(uncounted, all_, others, of_stable):
        return Judged(Verdict.FAILED, f"{shown}.", samples)
    left, beside = canary.taken_over, stable.taken_over
    if not measured.killed and _surely_more(left, all_ + left, beside, of_stable + beside):
        text = (
            f"{told}: its workers died or fell silent, which a node may do to them as well. See why they "
            "stopped, then measure again, or abort."
        )
        return Judged(Verdict.INCONCLUSIVE, text, samples)
    return Judged(Verdict.PASSED, f"{shown}.", samples)


def _surely_more(some: int, all_: int, others: int, of_others: int) -> bool:
    """Whether a share is larger than another one by more than may be, and by no coincidence."""
    pooled = (some + others) / max(1, all_ + of_others)
    error: float = (pooled * (1 - pooled) * (1 / max(1, all_) + 1 / max(1, of_others))) ** 0.5
    more = some / max(1, all_) - others / max(1, of_others)
    return more > max(_MORE / 100, _SURE * error)


def _cpu_efficiency(gate: Gate, measured: Measured) -> Judged:
    """CPU time for each settled message. What an idle worker costs is not held against it."""
    sides = _sampled(gate, measured)
    if isinstance(sides, Judged):
        return sides
    canary, stable = sides
    most = _at_most(gate)
    own, usual = canary.cpu_seconds / canary.settled, stable.cpu_seconds / stable.settled
    shown = f"{_seconds(own)} of CPU for each message, {_seconds(usual)} of the stable revision's"
    shown += f": {_percent(own / usual)}, at most {most} %" if usual else ""
    shown += f" besides {_IDLE * 1000:g} ms a second for each worker"
    allowed = most / 100 * usual * canary.settled + _IDLE * canary.seconds
    verdict = Verdict.FAILED if canary.cpu_seconds > allowed else Verdict.PASSED
    shown += f"{_of_the_server(measured)}."
    if not usual:
        return Judged(verdict, shown, canary.settled)
    return Judged(verdict, shown, canary.settled, _whole_percent(own / usual), most)


def _of_the_server(measured: Measured) -> str:
    """What the broker spent, which all revisions share: it explains, and judges nothing. Empty where it is
    not known."""
    was, is_ = measured.start, measured.end
    settled = is_.settled - was.settled
    if was.server_cpu_ms is None or is_.server_cpu_ms is None or was.server != is_.server or settled <= 0:
        return ""
    spent = (is_.server_cpu_ms - was.server_cpu_ms) / 1000
    return f"; the broker spends {_seconds(spent / settled)} for each of {settled}" if spent >= 0 else ""


def _latency(gate: Gate, measured: Measured) -> Judged:
    """How long handlers take, and how long messages waited for them: the middle, and the slow ones."""
    sides = _sampled(gate, measured)
    if isinstance(sides, Judged):
        return sides
    canary, stable = sides
    told, slow = [], []
    for what, own, usual, least in (
        ("handlers take", canary.durations, stable.durations, _SHORTEST),
        ("messages wait", canary.latencies, stable.latencies, _COARSEST),
    ):
        if min(count(own), count(usual)) < gate.min_samples:
            return _too_few(f"{count(own)} and {count(usual)} measured", gate, canary.settled)
        for share in _SHARES:
            bound, beside = quantile_bound(own, share), quantile_bound(usual, share)
            limit = _at_most(gate) / 100 * beside + least
            above = surely_above(own, limit) / count(own)
            error = _SURE * (share * (1 - share)) ** 0.5 * (count(own) ** -0.5 + count(usual) ** -0.5)
            text = f"{what} up to {_seconds(bound)} at p{share * 100:.0f}, {_seconds(beside)} beside"
            told.append(text)
            if above > 1 - share + error:
                slow.append(text)
    if slow:
        text = "; ".join(slow)
        return Judged(Verdict.FAILED, f"{text}: at most {_at_most(gate)} %.", canary.settled)
    return Judged(Verdict.PASSED, f"{'; '.join(told[1::3])}.", canary.settled)


def _sampled(gate: Gate, measured: Measured) -> tuple[Sum, Sum] | Judged:
    """Both sides as their workers tell it, or why they cannot be compared."""
    samples = measured.samples
    if isinstance(samples, Unknown):
        return Judged(Verdict.ERROR, samples.reason)
    if isinstance(samples, NotSampled):
        return Judged(Verdict.ERROR, "nobody has asked the workers yet")
    sides = [samples.of(side.revision, measured.now) for side in (measured.canary, measured.stable)]
    for side, found in zip((measured.canary, measured.stable), sides, strict=True):
        if not found.workers:
            return Judged(
                Verdict.INCONCLUSIVE,
                f"no worker of {side.revision} could be asked for its metrics at both ends of the window "
                "(one that was restarted does not count; one of protocol Legacy has none): measure again, "
                "or waive this gate.",
            )
    canary, stable = sides
    if min(canary.settled, stable.settled) < gate.min_samples:
        text = f"{canary.settled} settled by the canary, {stable.settled} by the stable"
        return _too_few(text, gate, canary.settled)
    return canary, stable


def _at_most(gate: Gate) -> int:
    return MAX_PERCENT_OF_STABLE if gate.max_percent_of_stable is None else gate.max_percent_of_stable


_JUDGES: Mapping[GateType, Callable[[Gate, Measured], Judged]] = {
    GateType.QUEUE_PROGRESS: _queue_progress,
    GateType.CPU_EFFICIENCY: _cpu_efficiency,
    GateType.LATENCY: _latency,
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


def _owned(counts: Counts) -> int:
    """What its workers held when that was read."""
    ended = counts.committed + counts.rejected + counts.released + counts.taken_over
    return counts.claimed - ended - counts.unbooked


def _settled(counts: Counts) -> int:
    return counts.committed + counts.rejected


def _commits(counts: Counts, workers: int) -> str:
    return f"{counts.committed} commits by {workers} worker{'s' if workers != 1 else ''}"


def _seconds(value: float) -> str:
    if value == float("inf"):
        return "more than every bucket"
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _whole_percent(share: float) -> int:
    """What a status can hold of it."""
    return round(min(100 * share, 2**31 - 1))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 10 else f"{100 * share:,.0f} %"
