"""All worker processes of one supervisor as one: status, liveness, readiness. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from worker_runtime.state import COUNTERS

GAUGES = ("coroutines", "prefetch", "waiting", "running", "unconfirmed", "deferred")
BUCKETS = ("durations", "latencies")
SUMS = ("durations_sum", "latencies_sum")
#: Seconds that a process has to run which took the place of one that ended unexpectedly, before its worker is
#: ready again. Longer than the three probes in a row that a kubelet needs to see that it was not.
STEADY_AFTER = 10.0


@dataclass(slots=True)
class ProcessView:
    """One worker process as its last report shows it."""

    index: int
    pid: int
    started_at: float
    #: How often one in its place ended unexpectedly before.
    restarts: int = 0
    alive: bool = True
    #: Monotonic time of the last report, or of the start before the first one.
    reported_at: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)


class Fleet:
    """Sums over processes. Counters of processes that ended are kept, so that no number goes back.
    `expiry` in seconds: a process that has been silent for longer is not alive."""

    def __init__(
        self, revision: str, processes: int, expiry: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.revision = revision
        self.stopping = False
        self._wanted = processes
        self._expiry = expiry
        self._clock = clock
        self._views: dict[int, ProcessView] = {}
        self._retired: dict[str, dict[str, Any]] = {}
        self._retired_cpu = 0.0

    def started(self, index: int, pid: int, restarts: int = 0) -> None:
        now = self._clock()
        self._views[index] = ProcessView(index, pid, now, restarts, reported_at=now)

    def reported(self, index: int, report: dict[str, Any]) -> None:
        view = self._views[index]
        view.report = report
        view.reported_at = self._clock()

    def ended(self, index: int) -> None:
        view = self._views[index]
        view.alive = False
        for queue, numbers in view.report.get("queues", {}).items():
            _add(self._retired.setdefault(queue, {}), numbers, (*COUNTERS, *BUCKETS, *SUMS))
        self._retired_cpu += view.report.get("cpu_seconds", 0.0)
        view.report = {}

    def others_receive(self, index: int) -> bool:
        """Whether another process than this one has begun to receive and lives."""
        return any(
            view.alive and view.report.get("phase") == "receiving"
            for view in self._views.values()
            if view.index != index
        )

    def alive(self) -> str:
        """Empty when every process shows life, else the reason why not."""
        now = self._clock()
        for view in self._views.values():
            silent = now - view.reported_at
            if silent > self._expiry and (view.alive or not self.stopping):
                return f"worker process {view.index} (pid {view.pid}) has not reported for {silent:.0f} s"
        return ""

    def ready(self) -> str:
        """Empty when every process receives, or would but for a fence or its prefetch; else the reason."""
        if self.stopping:
            return "stopping"
        if len(self._views) < self._wanted:
            return f"{len(self._views)} of {self._wanted} worker processes are started"
        for view in self._views.values():
            if not view.alive:
                return f"worker process {view.index} is down and will be restarted"
            if not view.report:
                return f"worker process {view.index} (pid {view.pid}) is starting"
            if view.report["problem"]:
                return f"worker process {view.index} (pid {view.pid}): {view.report['problem']}"
            if view.restarts and self._clock() - view.started_at < STEADY_AFTER:
                # A version that dies of its first message would be ready again and again for a moment.
                return (
                    f"worker process {view.index} ended unexpectedly, and the one in its place (pid "
                    f"{view.pid}) has not run for {STEADY_AFTER:g} s yet"
                )
        return ""

    def restarts(self) -> int:
        """How often a process ended unexpectedly and was started again."""
        return sum(view.restarts for view in self._views.values())

    def queues(self) -> dict[str, dict[str, Any]]:
        """Gauges of the living, counters and buckets of all that ever ran."""
        total: dict[str, dict[str, Any]] = {}
        for queue, numbers in self._retired.items():
            _add(total.setdefault(queue, {}), numbers, (*COUNTERS, *BUCKETS, *SUMS))
        for view in self._views.values():
            for queue, numbers in view.report.get("queues", {}).items():
                _add(total.setdefault(queue, {}), numbers, (*GAUGES, *COUNTERS, *BUCKETS, *SUMS))
        for numbers in total.values():
            for name in GAUGES:
                numbers.setdefault(name, 0)
        return total

    def cpu_seconds(self) -> float:
        """CPU time of all worker processes that ever ran, as they last reported it: what a process used
        after its last report and before it was killed is not in it."""
        living: float = sum(view.report.get("cpu_seconds", 0.0) for view in self._views.values())
        return self._retired_cpu + living

    def fences(self) -> dict[str, str]:
        return {
            queue: numbers["fence"]
            for view in self._views.values()
            for queue, numbers in view.report.get("queues", {}).items()
            if numbers["fence"]
        }

    def status(self) -> dict[str, Any]:
        """What /status answers."""
        views = sorted(self._views.values(), key=lambda view: view.index)
        reports = [view.report for view in views if view.alive]
        receiving = (
            not self.stopping
            and len(reports) == self._wanted
            and all(report.get("receiving", False) for report in reports)
        )
        if self.stopping:
            state = "stopping"
        elif len(reports) == self._wanted and all(r.get("phase") == "receiving" for r in reports):
            state = "receiving"
        else:
            state = "starting"
        return {
            "revision": self.revision,
            "state": state,
            "broker": next((r["broker"] for r in reports if r.get("broker")), ""),
            "receiving": receiving,
            "reason": self.ready(),
            "fences": self.fences(),
            "processes": [
                {"index": v.index, "pid": v.pid, "alive": v.alive, "restarts": v.restarts} for v in views
            ],
            "queues": {
                queue: {name: numbers[name] for name in (*GAUGES, *COUNTERS)}
                for queue, numbers in sorted(self.queues().items())
            },
        }


def _add(total: dict[str, Any], numbers: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        value = numbers[name]
        if isinstance(value, list):
            old = total.get(name, [0] * len(value))
            total[name] = [a + b for a, b in zip(old, value, strict=True)]
        else:
            total[name] = total.get(name, 0) + value
