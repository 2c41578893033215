"""What one queue holds in one process: the deliveries, the gauges and the counters.

Written by the main thread, except for the fields marked otherwise. The background thread reads it to renew
deliveries and to report; every value that it reads is one attribute or one C-level copy, so no lock is
needed and none is taken for a message.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any

from worker_runtime.brokers.base import Delivery, Presence
from worker_runtime.silence import Silence

#: Six bounds in each power of ten, so that what is half as slow again is told apart everywhere.
_SERIES = (1.0, 1.5, 2.2, 3.3, 4.7, 6.8)


def _bounds(first: int, last: int) -> tuple[float, ...]:
    """From 10 to the power of `first` to 10 to that of `last`."""
    powers = range(first, last)
    return (*(float(f"{step}e{power}") for power in powers for step in _SERIES), float(f"1e{last}"))


#: Upper bounds in seconds; the last bucket has none.
DURATION_BOUNDS = _bounds(-4, 3)
#: Publish to handler start. Producers write whole seconds, so nothing below one second can be told apart.
LATENCY_BOUNDS = _bounds(0, 5)

COUNTERS = (
    "received",
    "committed",
    "rejected",
    "released",
    "superseded",
    "missing",
    "unknown",
    "poisoned",
    "handler_errors",
    "retried",
    "dead_lettered",
)


class Histogram:
    """Counts in fixed buckets; one bisection and two additions an observation."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class QueueState:
    """One queue of one process. `expiry` and `block` in seconds; `clock` is monotonic."""

    __slots__ = (
        *COUNTERS,
        "broker_problem",
        "clock",
        "confirmed_at",
        "coroutines",
        "current",
        "deferred",
        "durations",
        "fence",
        "job_name",
        "latencies",
        "lost",
        "outstanding",
        "phase",
        "prefetch",
        "queue",
        "running",
        "silence",
        "suspect_since",
        "trust_window",
        "waiting",
        "wall_offset",
    )

    def __init__(
        self,
        queue: str,
        job_name: str,
        coroutines: int,
        prefetch: int,
        expiry: float,
        clock: Callable[[], float] = time.monotonic,
        block: float = 2.0,
    ) -> None:
        self.queue = queue
        self.job_name = job_name
        self.coroutines = coroutines
        self.prefetch = prefetch
        self.clock = clock
        #: Everything that counts against prefetch, by identity of the delivery.
        self.outstanding: dict[int, Delivery] = {}
        self.waiting: deque[Delivery] = deque()
        #: What each handler slot runs at this moment.
        self.current: list[Delivery | None] = [None] * coroutines
        self.running = 0
        #: Open commits of handlers that have returned; part of the unconfirmed.
        self.deferred: dict[int, Any] = {}
        self.phase = "starting"
        #: Why the broker cannot be used at the moment; empty when it can.
        self.broker_problem = ""
        self.silence = Silence(block)
        #: Why this revision may not receive; empty when it may. Written by both threads (`fenced`).
        self.fence = ""
        #: Start of the last renewal that the broker confirmed. Written by the background thread.
        self.confirmed_at = clock()
        #: Set when deliveries arrived so late that their ownership may have lapsed on the way.
        self.suspect_since = 0.0
        # A receive may be a third of the expiry old when its deliveries are registered; later than that
        # they are suspect. So a delivery that no renewal covers yet is safe for the other two thirds.
        self.trust_window = expiry * 2 / 3
        #: Deliveries that the broker said are no longer ours. Holding the object keeps its identity unique.
        #: Added to by the background thread.
        self.lost: dict[int, Delivery] = {}
        #: Wall clock minus monotonic clock, so that a message costs one clock reading, not two.
        self.wall_offset = time.time() - clock()
        self.durations = Histogram(DURATION_BOUNDS)
        self.latencies = Histogram(LATENCY_BOUNDS)
        self.received = 0
        self.committed = 0
        self.rejected = 0
        self.released = 0
        self.superseded = 0
        self.missing = 0
        self.unknown = 0
        self.poisoned = 0
        self.handler_errors = 0
        self.retried = 0
        self.dead_lettered = 0

    def trusted(self, now: float) -> bool:
        """Whether every waiting delivery is certainly still owned by this process."""
        return now <= self.confirmed_at + self.trust_window and self.confirmed_at >= self.suspect_since

    def held(self) -> list[Delivery]:
        """All outstanding deliveries, safe to call from another thread."""
        return list(self.outstanding.copy().values())

    def running_now(self) -> list[Delivery]:
        return [delivery for delivery in list(self.current) if delivery is not None]

    def gauges(self) -> tuple[int, int, int]:
        """Waiting, running and unconfirmed. Their sum is the number of outstanding deliveries at one moment,
        also when another thread asks in the middle of a transition."""
        outstanding = waiting = running = 0
        for _ in range(20):
            outstanding, waiting, running = len(self.outstanding), len(self.waiting), self.running
            again = (len(self.outstanding), len(self.waiting), self.running)
            if again == (outstanding, waiting, running):
                break
        waiting = min(waiting, outstanding)
        running = min(running, outstanding - waiting)
        return waiting, running, outstanding - waiting - running

    @property
    def problem(self) -> str:
        """What is wrong with the broker, as far as is known; empty when nothing is."""
        return self.broker_problem or self.silence.text

    @property
    def receiving(self) -> bool:
        return self.phase == "receiving" and not self.problem and not self.fence

    def presence(self) -> Presence:
        """What the broker's list of live workers says of this queue in this process."""
        if self.receiving:
            reason = ""
        elif self.phase != "receiving":
            reason = self.phase
        else:
            reason = f"fenced: {self.fence}" if self.fence else self.problem
        return Presence(self.receiving, len(self.outstanding), self.coroutines, self.prefetch, reason)

    def report(self) -> dict[str, Any]:
        """What goes to the supervisor. Numbers only grow, except for the gauges."""
        waiting, running, unconfirmed = self.gauges()
        return {
            "coroutines": self.coroutines,
            "prefetch": self.prefetch,
            "waiting": waiting,
            "running": running,
            "unconfirmed": unconfirmed,
            "deferred": len(self.deferred),
            **{name: getattr(self, name) for name in COUNTERS},
            "receiving": self.receiving,
            "broker_problem": self.problem,
            "fence": self.fence,
            "durations": list(self.durations.counts),
            "durations_sum": self.durations.total,
            "latencies": list(self.latencies.counts),
            "latencies_sum": self.latencies.total,
        }
