"""What the operator counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class OperatorMetrics:
    """One set of metrics in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "queueworker_operator_"
        self.passes = Counter(prefix + "reconcile", "Passes, by result.", ["result"], registry=self.registry)
        for result in ("unchanged", "changed", "conflict", "unavailable", "refused", "error"):
            self.passes.labels(result)
        self.seconds = Histogram(
            prefix + "reconcile_seconds",
            "Duration of a pass.",
            buckets=(0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=self.registry,
        )
        self.writes = Counter(prefix + "writes", "Requests that changed something.", registry=self.registry)
        self.resources = Gauge(
            prefix + "queueworkers", "QueueWorkers at the last list.", registry=self.registry
        )
        self.resyncs = Counter(
            prefix + "resyncs", "Resyncs that went through every QueueWorker.", registry=self.registry
        )
        self.resync_seconds = Gauge(
            prefix + "resync_seconds",
            "Duration of the last resync: from the list until every QueueWorker was looked at and its broker "
            "had answered, or was known not to.",
            registry=self.registry,
        )
        self.waiting = Gauge(
            prefix + "queue_waiting", "Keys that are due and wait for a slot.", registry=self.registry
        )
        self.running = Gauge(prefix + "queue_running", "Passes under way.", registry=self.registry)
        self.lease_held = Gauge(prefix + "lease_held", "1 while this process acts.", registry=self.registry)
        self.lease_epoch = Gauge(prefix + "lease_epoch", "Epoch of the Lease.", registry=self.registry)
        self.list_age = Gauge(
            prefix + "last_list_age_seconds", "Since the last full list.", registry=self.registry
        )
        self.event_age = Gauge(
            prefix + "last_event_age_seconds", "Since the last watch event.", registry=self.registry
        )
        self.loop_lag = Gauge(
            prefix + "loop_lag_seconds", "How late the event loop woke up.", registry=self.registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
