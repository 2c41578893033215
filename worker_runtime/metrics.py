"""Prometheus text from the fleet's numbers, made when it is asked for and never for a message."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from worker_runtime.fleet import Fleet
from worker_runtime.state import COUNTERS, DURATION_BOUNDS, LATENCY_BOUNDS

_COUNTER_HELP = {
    "received": "Deliveries taken from the broker",
    "committed": "Messages whose commit the broker confirmed",
    "rejected": "Messages whose rejection the broker confirmed",
    "released": "Messages given back before they started",
    "superseded": "Deliveries that another worker had taken over",
    "missing": "Settlements of messages that the broker does not know",
    "unknown": "Settlements whose answer was lost",
    "poisoned": "Messages that could not be decoded",
    "handler_errors": "Handlers that raised, payloads that did not fit, deferred commits that failed",
    "retried": "Rejected messages that were scheduled again",
    "dead_lettered": "Rejected messages that became dead letters",
}
_GAUGE_HELP = {
    "waiting": "Deliveries that wait for a handler",
    "running": "Deliveries that a handler works on",
    "unconfirmed": "Finished deliveries whose settlement is not confirmed",
    "deferred": "Unconfirmed deliveries whose handler has returned and has not decided yet",
    "prefetch": "Upper bound of outstanding deliveries",
    "coroutines": "Handlers that run at once",
}
_LABELS = ("queue", "revision")


class FleetCollector(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        revision = self._fleet.revision
        queues = self._fleet.queues()
        for name in COUNTERS:
            counter = CounterMetricFamily(f"queueworker_{name}", _COUNTER_HELP[name], labels=_LABELS)
            for queue, numbers in queues.items():
                counter.add_metric((queue, revision), numbers[name])
            yield counter
        for name, text in _GAUGE_HELP.items():
            gauge = GaugeMetricFamily(f"queueworker_{name}", text, labels=_LABELS)
            for queue, numbers in queues.items():
                gauge.add_metric((queue, revision), numbers[name])
            yield gauge
        for metric, key, bounds, text in (
            ("handler_duration_seconds", "durations", DURATION_BOUNDS, "Time from handler start to its end"),
            (
                "publish_to_start_seconds",
                "latencies",
                LATENCY_BOUNDS,
                "Time from publish to handler start; producers write whole seconds",
            ),
        ):
            histogram = HistogramMetricFamily(f"queueworker_{metric}", text, labels=_LABELS)
            for queue, numbers in queues.items():
                histogram.add_metric(
                    (queue, revision), _buckets(bounds, numbers[key]), sum_value=numbers[f"{key}_sum"]
                )
            yield histogram
        status = self._fleet.status()
        for name, text, on in (
            ("receiving", "1 while every process of this worker receives", status["receiving"]),
            ("ready", "1 while /readyz answers 200", not status["reason"]),
        ):
            gauge = GaugeMetricFamily(f"queueworker_{name}", text, labels=("revision",))
            gauge.add_metric((revision,), float(on))
            yield gauge
        alive = GaugeMetricFamily("queueworker_processes", "Worker processes alive", labels=("revision",))
        alive.add_metric((revision,), sum(process["alive"] for process in status["processes"]))
        yield alive
        restarts = CounterMetricFamily(
            "queueworker_process_restarts",
            "Worker processes that ended unexpectedly and were started again",
            labels=("revision",),
        )
        restarts.add_metric((revision,), self._fleet.restarts())
        yield restarts
        cpu = CounterMetricFamily(
            "queueworker_cpu_seconds",
            "CPU time of the supervisor and of every worker process that it ever started",
            labels=("revision",),
        )
        cpu.add_metric((revision,), time.process_time() + self._fleet.cpu_seconds())
        yield cpu


def _buckets(bounds: tuple[float, ...], counts: Sequence[int]) -> list[tuple[str, float]]:
    cumulative, result = 0, []
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        cumulative += count
        result.append((bound, float(cumulative)))
    return result


def registry_of(fleet: Fleet) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(FleetCollector(fleet))
    ProcessCollector(registry=registry)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    text: bytes = generate_latest(registry)
    return text
