"""What workers say on /metrics, at the beginning of a window and since.

Each worker is asked by itself and has a bounded time: one that does not answer delays nobody and is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from queueworker_operator.api.sentences import inside
from queueworker_operator.api.types import QueueWorkerStatus
from queueworker_operator.observe.bodies import whole
from queueworker_operator.plan.queue_facts import FRESH, Unknown
from queueworker_operator.plan.samples import NOT_SAMPLED, NotSampled, Pair, Sample, Samples

#: Workers of each revision that are asked: more would tell nothing new.
AT_MOST = 10
#: Between two rounds.
PACE = timedelta(seconds=2)
#: Seconds that a pass waits for a round; what comes later counts for the next pass.
PATIENCE = 0.5
_ANSWER = aiohttp.ClientTimeout(total=5.0)
#: Longer answers are no worker's.
_LONGEST = 4_000_000

#: By revision and the name of a worker: where its /metrics is.
Workers = Mapping[str, Mapping[str, str]]
_Who = tuple[str, str]


def window_of(status: QueueWorkerStatus) -> datetime | None:
    """When the window began that is measured now; None while none is."""
    analysis = status.rollout.analysis if status.rollout else None
    if analysis is None or analysis.measured is None or analysis.verdict is not None:
        return None
    return analysis.measured.at


class NotAWorkerError(ValueError):
    """What answered does not say what a worker says."""


@dataclass(slots=True)
class _Window:
    began: datetime
    asked_at: datetime | None = None
    asking: asyncio.Task[None] | None = None
    first: dict[_Who, Sample] = field(default_factory=dict)
    last: dict[_Who, Sample] = field(default_factory=dict)
    error: str = "none has answered yet"


class WorkerSamples:
    """`clock` gives aware times. `close` ends all that is under way."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._session: aiohttp.ClientSession | None = None

    async def latest(
        self, key: str, status: QueueWorkerStatus, queue: str, workers: Workers
    ) -> Samples | Unknown | NotSampled:
        """What is known of the window that the status says is measured. `key` names the resource. Never
        raises."""
        now, began = self._clock(), window_of(status)
        if began is None:
            self.forget(key)
            return NOT_SAMPLED
        window = self._windows.get(key)
        if window is None or window.began != began:
            self.forget(key)
            window = self._windows[key] = _Window(began)
        due = window.asked_at is None or now - window.asked_at >= PACE
        if due and (window.asking is None or window.asking.done()):
            window.asked_at = now
            window.asking = asyncio.create_task(self._round(window, queue, workers))
        if window.asking is not None:
            await asyncio.wait({window.asking}, timeout=PATIENCE)
        lately = [one for one in window.last.values() if now - one.at <= FRESH]
        if not lately:
            return Unknown(f"no worker could be asked for its metrics: {inside(window.error)}", now)
        pairs: dict[str, list[Pair]] = {}
        for who, first in window.first.items():
            last = window.last[who]
            if last.started == first.started:
                pairs.setdefault(who[0], []).append(Pair(first, last))
        return Samples(began, {revision: tuple(some) for revision, some in pairs.items()})

    def forget(self, key: str) -> None:
        """Its analysis is over, or it is gone."""
        window = self._windows.pop(key, None)
        if window is not None and window.asking is not None:
            window.asking.cancel()

    async def close(self) -> None:
        """End what is under way."""
        asking = [window.asking for window in self._windows.values() if window.asking is not None]
        for task in asking:
            task.cancel()
        self._windows.clear()
        await asyncio.gather(*asking, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _round(self, window: _Window, queue: str, workers: Workers) -> None:
        chosen: list[tuple[_Who, str]] = []
        for revision, some in workers.items():
            # Those that were asked at the beginning, before others.
            known = [name for name in sorted(some) if (revision, name) in window.first]
            known += [name for name in sorted(some) if (revision, name) not in window.first]
            chosen += [((revision, name), some[name]) for name in known[:AT_MOST]]
        await asyncio.gather(*(self._ask(window, queue, who, url) for who, url in chosen))

    async def _ask(self, window: _Window, queue: str, who: _Who, url: str) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_ANSWER)
        try:
            async with self._session.get(url) as answer:
                text = (await whole(answer, _LONGEST)).decode()
            sample = read_sample(text, queue, self._clock())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            window.error = f"{who[1]}: {error or type(error).__name__}"
            return
        if who not in window.first and sample.at - window.began <= FRESH:
            window.first[who] = sample
        window.last[who] = sample


def read_sample(text: str, queue: str, at: datetime) -> Sample:
    """From the text of /metrics. Raises NotAWorkerError, ValueError."""
    numbers: dict[str, float] = {}
    buckets: dict[str, list[tuple[float, int]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.labels.get("queue", queue) != queue:
                continue
            if one.name.endswith("_bucket"):
                bucket = float(one.labels["le"]), int(one.value)
                buckets.setdefault(one.name, []).append(bucket)
            else:
                numbers[one.name] = one.value
    try:
        return Sample(
            at=at,
            started=numbers.get("process_start_time_seconds", 0.0),
            cpu_seconds=numbers["queueworker_cpu_seconds_total"],
            settled=int(numbers["queueworker_committed_total"] + numbers["queueworker_rejected_total"]),
            durations=tuple(sorted(buckets["queueworker_handler_duration_seconds_bucket"])),
            latencies=tuple(sorted(buckets["queueworker_publish_to_start_seconds_bucket"])),
        )
    except KeyError as missing:
        raise NotAWorkerError(f"its /metrics has no {missing.args[0]} of the queue {queue}") from None
