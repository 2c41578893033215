"""What workers said of themselves at the two ends of a window. Only whoever lived through it is counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from queueworker_operator.plan.queue_facts import FRESH

#: Upper bounds in seconds and how many observations were not above: (0.1, 7), ..., (inf, 9).
Histogram = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one worker, the supervisor with all its processes. Numbers only grow while it lives."""

    at: datetime
    #: Tells this worker from the one that takes its place: when its supervisor started.
    started: float
    cpu_seconds: float
    settled: int
    #: From the start of a handler to its end, and from publishing to that start; in seconds.
    durations: Histogram
    latencies: Histogram


@dataclass(frozen=True, slots=True)
class Pair:
    first: Sample
    last: Sample


@dataclass(frozen=True, slots=True)
class Samples:
    #: The beginning of the window that they belong to.
    window: datetime
    #: By revision: workers that answered at both ends and were not restarted in between.
    pairs: Mapping[str, tuple[Pair, ...]]

    def of(self, revision: str, now: datetime) -> Sum:
        """All workers of a revision that answered lately, as one."""
        return summed(pair for pair in self.pairs.get(revision, ()) if now - pair.last.at <= FRESH)


@dataclass(frozen=True, slots=True)
class NotSampled:
    """No analysis asks for it."""


NOT_SAMPLED = NotSampled()


@dataclass(frozen=True, slots=True)
class Sum:
    """What the workers of one side did between the two ends."""

    workers: int
    #: Seconds, added up over the workers.
    seconds: float
    cpu_seconds: float
    settled: int
    durations: Histogram
    latencies: Histogram


def summed(pairs: Iterable[Pair]) -> Sum:
    """Differences, added up. A histogram that changed its buckets is left out."""
    all_ = tuple(pairs)
    return Sum(
        workers=len(all_),
        seconds=sum((pair.last.at - pair.first.at).total_seconds() for pair in all_),
        cpu_seconds=sum(pair.last.cpu_seconds - pair.first.cpu_seconds for pair in all_),
        settled=sum(pair.last.settled - pair.first.settled for pair in all_),
        durations=_added(_between(pair.first.durations, pair.last.durations) for pair in all_),
        latencies=_added(_between(pair.first.latencies, pair.last.latencies) for pair in all_),
    )


def _between(was: Histogram, is_: Histogram) -> Histogram:
    if [bound for bound, _ in was] != [bound for bound, _ in is_]:
        return ()
    return tuple((bound, n - before) for (_, before), (bound, n) in zip(was, is_, strict=True))


def _added(some: Iterable[Histogram]) -> Histogram:
    total: Histogram = ()
    for one in some:
        if not total:
            total = one
        elif [bound for bound, _ in one] == [bound for bound, _ in total]:
            total = tuple((bound, n + more) for (bound, n), (_, more) in zip(total, one, strict=True))
    return total


def count(histogram: Histogram) -> int:
    """How many observations it has."""
    return histogram[-1][1] if histogram else 0


def quantile_bound(histogram: Histogram, share: float) -> float:
    """The smallest bound that this share of all observations was not above; infinite where none is."""
    wanted = share * count(histogram)
    return next((bound for bound, n in histogram if n >= wanted), float("inf"))


def surely_above(histogram: Histogram, limit: float) -> int:
    """How many observations were above the limit, for certain."""
    within = next((n for bound, n in histogram if bound >= limit), count(histogram))
    return count(histogram) - within
