"""Readings of queues on their brokers, as facts.

Each queue is read in the background of its own: a broker that does not answer costs one pass a fraction of a
second, those after it nothing, and no other broker anything. Queues of one broker share a connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from queueworker_operator.api.revisions import broker_identity
from queueworker_operator.api.sentences import inside
from queueworker_operator.api.types import QueueWorkerSpec
from queueworker_operator.observe.access import Access, opened
from queueworker_operator.plan.queue_facts import (
    FRESH,
    Books,
    LiveWorkers,
    NoBooks,
    QueueFacts,
    Restarts,
    Row,
    Unknown,
)
from worker_runtime.brokers.base import PROTOCOL, Inspector, QueueReading, Role, Timing, WorkerReading
from worker_runtime.brokers.connect import broker_from_url

#: A newer reading than this is used as it is.
NEW_ENOUGH = timedelta(seconds=0.5)
#: Seconds that a pass waits for a reading; later ones count for the next pass.
PATIENCE = 0.5
#: Seconds that one reading may take.
READ_SECONDS = 5.0
#: A connection of whose queues nobody asked for any since then is closed, and later all is forgotten of a
#: queue: how long it has been quiet, too.
IDLE, FORGOTTEN = timedelta(seconds=5), timedelta(minutes=5)
#: Between two looks for those.
FORGET_EVERY = timedelta(seconds=1)

#: Access, namespace, and for a queue its name.
_Place = tuple[Access, str]
_Key = tuple[Access, str, str]


@dataclass(slots=True)
class _Queue:
    asked_at: datetime
    reading: asyncio.Task[None] | None = None
    newest: QueueFacts | None = None
    marks: tuple[object, ...] | None = None
    quiet_since: datetime | None = None
    #: Since when no reading was missing for long, and since when each showed ready work.
    watched_since: datetime | None = None
    backlog_since: datetime | None = None
    error: str = "it has not been read yet"


@dataclass(slots=True)
class _UnderWay:
    """Readings at one broker, and since when none of them was answered, by the loop's clock."""

    silent_since: float
    number: int = 0


class QueueReadings:
    """`clock` gives aware times. `close` ends all that is under way."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._queues: dict[_Key, _Queue] = {}
        #: Kept between readings, except where its files are not.
        self._inspectors: dict[_Place, Inspector] = {}
        self._under_way: dict[_Place, _UnderWay] = {}
        self._forgot = clock()
        self._closing: set[asyncio.Task[None]] = set()

    async def latest(
        self, access: Access, spec: QueueWorkerSpec, patience: float = PATIENCE
    ) -> QueueFacts | Unknown:
        """The newest reading of the queue of `spec`, or Unknown with the reason. Waits `patience` seconds for
        a new one, less where its broker has answered nobody for so long. Never raises."""
        now = self._clock()
        self._forget(now)
        key = (access, spec.broker.namespace, spec.queue.name)
        queue = self._queues.setdefault(key, _Queue(now))
        queue.asked_at = now
        if queue.newest is None or now - queue.newest.observed_at >= NEW_ENOUGH:
            if queue.reading is None or queue.reading.done():
                queue.reading = self._begin(key, queue)
            await asyncio.wait({queue.reading}, timeout=self._left(key[:2], patience))
        if queue.newest is None:
            return Unknown(f"the queue could not be read: {inside(queue.error)}", now)
        return replace(
            queue.newest, identity=broker_identity(spec.broker), has_registry=spec.broker.redis is not None
        )

    def _begin(self, key: _Key, queue: _Queue) -> asyncio.Task[None]:
        place = key[:2]
        at_broker = self._under_way.setdefault(place, _UnderWay(asyncio.get_running_loop().time()))
        at_broker.number += 1
        task = asyncio.create_task(self._read(key, queue))
        task.add_done_callback(lambda _: self._ended(place, at_broker))
        return task

    def _ended(self, place: _Place, at_broker: _UnderWay) -> None:
        at_broker.number -= 1
        if not at_broker.number:
            del self._under_way[place]

    def _left(self, place: _Place, patience: float) -> float:
        """Of the patience of all who wait for that broker."""
        at_broker = self._under_way.get(place)
        silent = asyncio.get_running_loop().time() - at_broker.silent_since if at_broker else 0.0
        return max(0.0, patience - silent)

    async def close(self) -> None:
        """Close every connection."""
        for place in {key[:2] for key in self._queues}:
            self._hang_up(place)
        self._queues.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _read(self, key: _Key, queue: _Queue) -> None:
        access, namespace, name = key
        began = self._clock()
        told: Callable[[str], str] = str
        try:
            with opened(access) as place:
                told = place.told
                inspector = self._inspectors.get((access, namespace))
                if inspector is None:
                    timing = Timing(command_timeout=READ_SECONDS)
                    inspector = broker_from_url(place.url, namespace, timing).inspector()
                    if not access.files:
                        self._inspectors[access, namespace] = inspector
                try:
                    async with asyncio.timeout(READ_SECONDS):
                        reading = await inspector.read(name)
                finally:
                    if access.files:
                        await inspector.close()
        except TimeoutError:
            queue.error = f"no answer within {READ_SECONDS:g} s"
        except Exception as error:  # a client library's own error too: it must not end a pass
            queue.error = told(str(error)) or type(error).__name__
        else:
            if (at_broker := self._under_way.get(key[:2])) is not None:
                at_broker.silent_since = asyncio.get_running_loop().time()
            marks = _marks(reading)
            if marks != queue.marks or _registry(reading):
                queue.quiet_since = None if _registry(reading) else self._clock()
            queue.marks = marks
            if queue.newest is None or began - queue.newest.observed_at > FRESH:
                queue.watched_since, queue.backlog_since = began, None
            if not reading.ready:
                queue.backlog_since = None
            elif queue.backlog_since is None:
                queue.backlog_since = began
            # Of the moment before it was asked: a reading never counts as newer than it is.
            facts = _facts(reading, began, queue.quiet_since)
            queue.newest = replace(
                facts, books=_books(reading, queue.backlog_since), watched_since=queue.watched_since
            )

    def _forget(self, now: datetime) -> None:
        if now - self._forgot < FORGET_EVERY:
            return
        self._forgot = now
        used = {key[:2] for key, queue in self._queues.items() if now - queue.asked_at <= IDLE}
        for place in self._inspectors.keys() - used:
            self._hang_up(place)
        for key in [key for key, queue in self._queues.items() if now - queue.asked_at > FORGOTTEN]:
            del self._queues[key]

    def _hang_up(self, place: _Place) -> None:
        readings = []
        for key, queue in self._queues.items():
            if key[:2] == place and queue.reading is not None:
                readings.append(queue.reading)
                queue.reading = None
        task = asyncio.create_task(_close(self._inspectors.pop(place, None), readings))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(inspector: Inspector | None, readings: list[asyncio.Task[None]]) -> None:
    for reading in readings:
        reading.cancel()
    await asyncio.gather(*readings, return_exceptions=True)
    if inspector is not None:
        with suppress(Exception):  # the connection is given up either way
            await inspector.close()


def _registry(reading: QueueReading) -> int:
    return reading.staging + reading.reserved + reading.owned


def _marks(reading: QueueReading) -> tuple[object, ...]:
    """What changes when anybody moves anything private, or lifts or sets a fence, also between two readings,
    and when another server answers."""
    ledger = tuple(sorted(reading.ledger.items(), key=str))
    fences = tuple(sorted(reading.fences.items()))
    return (reading.server, _registry(reading), reading.delayed, reading.poison, ledger, fences)


def _facts(reading: QueueReading, observed_at: datetime, quiet_since: datetime | None) -> QueueFacts:
    return QueueFacts(
        observed_at=observed_at,
        identity="",
        has_registry=True,
        primary=reading.role is Role.PRIMARY,
        staging=reading.staging,
        reserved=reading.reserved,
        owned=reading.owned,
        delayed=reading.delayed,
        owned_by={
            revision: owned
            for revision, row in reading.ledger.items()
            if (owned := row.claimed - row.committed - row.rejected - row.released - row.taken_over) > 0
        },
        fences=dict(reading.fences),
        live=_live(reading, observed_at),
        quiet_since=quiet_since,
    )


def _books(reading: QueueReading, backlog_since: datetime | None) -> Books | NoBooks:
    if reading.failures is None:
        return NoBooks()
    return Books(
        server=reading.server,
        rows={name: Row(**asdict(row)) for name, row in reading.ledger.items()},
        owned=reading.owned_by,
        committed=reading.success,
        failed=reading.failures,
        backlog_since=backlog_since,
        cpu_seconds=reading.cpu_seconds,
    )


def _live(reading: QueueReading, observed_at: datetime) -> dict[str, LiveWorkers]:
    capable: Counter[str] = Counter()
    receiving: Counter[str] = Counter()
    outstanding: Counter[str] = Counter()
    fallen: defaultdict[str, list[WorkerReading]] = defaultdict(list)
    for one in reading.workers:
        capable[one.revision] += one.protocol == PROTOCOL
        receiving[one.revision] += one.receiving
        outstanding[one.revision] += one.outstanding
        if one.restarts:
            fallen[one.revision].append(one)
    return {
        name: LiveWorkers(
            capable[name], receiving[name], outstanding[name], _restarts(fallen[name], observed_at)
        )
        for name in capable
    }


def _restarts(fallen: Sequence[WorkerReading], observed_at: datetime) -> Restarts | None:
    """One that ended stays on the list until it is missed, and the one in its place counts it too, so of each
    place the most is told. A worker of an older release names none: of those, the most of each host is told,
    which is never too many."""
    if not fallen:
        return None
    rising = sorted(fallen, key=lambda one: (one.restarts, one.worker))
    places, worst = {one.place or one.host or one.worker: one.restarts for one in rising}, rising[-1]
    how = f"with {worst.last_end}" if worst.last_end else "unexpectedly"
    message = (
        f"worker {worst.host or worst.worker}: a process of it ended {how} and was started again; its output "
        "says more."
    )
    # Of the youngest: a reading never says it was earlier than it was.
    last = observed_at - timedelta(seconds=min(one.uptime for one in fallen))
    return Restarts(sum(places.values()), last, message, tuple(sorted(places.items())))
