"""Checks of brokers, remembered for some seconds: a hundred resources on one broker ask it about once, and
are told when there is something new to know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from queueworker_operator.api.revisions import broker_identity
from queueworker_operator.api.types import QueueWorkerSpec
from queueworker_operator.observe.access import Access, opened
from queueworker_operator.observe.brokers import observe_broker
from queueworker_operator.observe.priority import since
from queueworker_operator.plan.facts import FRESH, BrokerCheck, BrokerVerdict, PriorityWork, Unknown

#: Well below the age at which a fact counts as Unknown, with room for a look that ends without an answer.
REMEMBERED = timedelta(seconds=6)
#: A look at a priority subject adds nothing to the next one after this.
FORGOTTEN = timedelta(minutes=5)
#: Between two looks for what is forgotten.
FORGET_EVERY = timedelta(seconds=2)
#: Checks under way at once: over brokers that answered, or were not asked yet, and over silent ones.
AT_ONCE, SILENT_AT_ONCE = 16, 16
#: A silent broker is looked at again after so many seconds, until nobody has asked for it for so long.
CALL_SECONDS, UNASKED = 2.0, timedelta(minutes=1)
#: Seconds that one look at a broker may take before nobody waits for it any more: whoever does has a slot
#: that others need, and is told what it says. A change that rests on a look of now waits longer.
PATIENCE, PATIENCE_ANEW = 0.5, 2.0

_OF_THE_BROKER = frozenset(
    {BrokerVerdict.CONNECTION_FAILED, BrokerVerdict.TIMEOUT, BrokerVerdict.AUTHENTICATION_FAILED}
)

#: Access, queue, and the broker as the spec has it.
_Key = tuple[Access, str, str]
Look = Callable[[str, QueueWorkerSpec, datetime], Awaitable[BrokerCheck]]
#: Namespace and name of the QueueWorker that asks.
Asker = tuple[str, str]
News = Callable[[Asker], None]


def _nobody(_: Asker) -> None:
    """Nobody waits for news."""


@dataclass(slots=True)
class _Told:
    """What the last answer to somebody was; `verdict` is None for Unknown."""

    key: _Key
    verdict: BrokerVerdict | None
    at: datetime


@dataclass(slots=True)
class _OneBroker:
    turn: asyncio.Lock
    #: A failure to reach it is true for every queue on it.
    failed: BrokerCheck | None = None
    #: When the look that is under way began, by the running loop's clock.
    looking_since: float | None = None
    #: While it is silent: looks again and again, so that nobody has to wait for the news.
    calling: asyncio.Task[None] | None = None
    asked_at: datetime | None = None
    #: Who does not wait for an answer now.
    told: dict[Asker, _Told] = field(default_factory=dict)


class BrokerChecks:
    """`clock` gives aware times; `look` does one bounded check. `close` ends all that is under way.

    Each queue is checked in the background: a broker that does not answer costs a pass a fraction of a second
    at most, and no other broker anything. `news` is called for whoever would be answered otherwise now: a
    check that nobody waited for has another verdict, a broker has fallen silent or is back.
    """

    def __init__(
        self, clock: Callable[[], datetime], look: Look = observe_broker, news: News = _nobody
    ) -> None:
        self._clock, self._look, self._news = clock, look, news
        self._brokers: dict[Access, _OneBroker] = {}
        self._found: dict[_Key, BrokerCheck] = {}
        self._checking: dict[_Key, asyncio.Task[None]] = {}
        self._priority: dict[_Key, PriorityWork] = {}
        self._forgot = clock()
        self._slots, self._silent = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(SILENT_AT_ONCE)

    async def check(
        self, access: Access, spec: QueueWorkerSpec, *, anew: bool = False, asker: Asker | None = None
    ) -> BrokerCheck | Unknown:
        """The newest check of the broker for the queue of `spec`, some seconds old at most; with `anew` one
        that is made now, unless the broker failed just before. Waits for a new one as long as the broker
        answers within a moment; Unknown while there is none, which is for the time of one check at most, and
        of those that wait before it. `asker` is told of news later."""
        key = (access, spec.queue.name, broker_identity(spec.broker))
        broker = self._brokers.setdefault(access, _OneBroker(asyncio.Lock()))
        if asker is not None:
            broker.told.pop(asker, None)
        found = await self._check_of(key, broker, spec, anew)
        if asker is not None:
            verdict = None if isinstance(found, Unknown) else found.verdict
            broker.told[asker] = _Told(key, verdict, self._clock())
        return found

    async def _check_of(
        self, key: _Key, broker: _OneBroker, spec: QueueWorkerSpec, anew: bool
    ) -> BrokerCheck | Unknown:
        broker.asked_at = self._clock()
        known = None if anew else self._recent(self._found.get(key))
        if broker.calling is not None:
            # Whatever else is remembered of it was seen before it fell silent.
            known = broker.failed or known
        if known is None:
            task = self._checking.get(key)
            if task is None:
                task = self._checking[key] = asyncio.create_task(self._check(key, broker, spec))
                task.add_done_callback(lambda _: self._checking.pop(key, None))
            await self._wait(task, broker, PATIENCE_ANEW if anew else PATIENCE)
            known = self._found.get(key)
        self._forget_old()
        if known is None or self._clock() - known.observed_at > FRESH:
            return Unknown("the broker is being asked, and has not answered yet", self._clock())
        return replace(known, identity=key[2])

    async def close(self) -> None:
        calling = [broker.calling for broker in self._brokers.values() if broker.calling is not None]
        tasks = [*self._checking.values(), *calling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, task: asyncio.Task[None], broker: _OneBroker, patience: float) -> None:
        """Until the task has ended, or what it waits for takes too long."""
        loop = asyncio.get_running_loop()
        while not task.done():
            since = broker.looking_since
            left = patience if since is None else since + patience - loop.time()
            if left <= 0:
                return
            await asyncio.wait({task}, timeout=left)
        if not task.cancelled():
            task.result()

    async def _check(self, key: _Key, broker: _OneBroker, spec: QueueWorkerSpec) -> None:
        async with broker.turn:
            known = self._recent(broker.failed)
            if known is None:
                broker.looking_since = asyncio.get_running_loop().time()
                try:
                    known = await self._ask(key, broker, spec)
                finally:
                    broker.looking_since = None
            self._found[key] = known
            if known.verdict is BrokerVerdict.TIMEOUT and broker.calling is None:
                broker.calling = asyncio.create_task(self._call(key, broker, spec))
                self._tell(broker, known.verdict)
            else:
                self._tell(broker, known.verdict, key)

    async def _call(self, key: _Key, broker: _OneBroker, spec: QueueWorkerSpec) -> None:
        """Look at a silent broker until it answers or nobody asks any more."""
        try:
            while broker.asked_at is not None and self._clock() - broker.asked_at < UNASKED:
                await asyncio.sleep(CALL_SECONDS)
                known = await self._ask(key, broker, spec)
                self._found[key] = known
                if known.verdict is not BrokerVerdict.TIMEOUT:
                    break
            else:
                return
        finally:
            broker.calling = None
        # What was known of its other queues is not true any more.
        for other, check in list(self._found.items()):
            if other[0] == key[0] and check.verdict is BrokerVerdict.TIMEOUT:
                del self._found[other]
        self._tell(broker, known.verdict)

    def _tell(self, broker: _OneBroker, verdict: BrokerVerdict, key: _Key | None = None) -> None:
        """Of all queues of the broker, or of that one."""
        for asker, told in broker.told.items():
            if told.verdict is not verdict and key in (None, told.key):
                self._news(asker)

    async def _ask(self, key: _Key, broker: _OneBroker, spec: QueueWorkerSpec) -> BrokerCheck:
        silent = broker.failed is not None and broker.failed.verdict is BrokerVerdict.TIMEOUT
        async with self._silent if silent else self._slots:
            with opened(key[0]) as place:
                known = await self._look(place.url, spec, self._clock())
        priority = since(self._priority.get(key), known.priority)
        known = replace(
            known,
            message=place.told(known.message),
            refuses_writes=place.told(known.refuses_writes),
            priority=priority,
        )
        if known.verdict is BrokerVerdict.TIMEOUT:
            # That it does not answer was still true at the end of the wait.
            known = replace(known, observed_at=self._clock())
        if isinstance(known.priority, PriorityWork):
            self._priority[key] = known.priority
        else:
            self._priority.pop(key, None)
        broker.failed = known if known.verdict in _OF_THE_BROKER else None
        return known

    def _recent(self, check: BrokerCheck | None) -> BrokerCheck | None:
        return check if check and self._clock() - check.observed_at < REMEMBERED else None

    def _forget_old(self) -> None:
        now = self._clock()
        if now - self._forgot < FORGET_EVERY:
            return
        self._forgot = now
        for key in [k for k, check in self._found.items() if now - check.observed_at > FRESH]:
            del self._found[key]
        for broker in self._brokers.values():
            for asker in [a for a, told in broker.told.items() if now - told.at > UNASKED]:
                del broker.told[asker]
        in_use = {key[0] for key in self._found}
        for access in [
            a for a, b in self._brokers.items() if not (a in in_use or b.turn.locked() or b.calling)
        ]:
            del self._brokers[access]
        # Settled resources are looked at less often than a check is remembered.
        old = now - FORGOTTEN
        for key in [k for k, work in self._priority.items() if work.observed_at < old]:
            del self._priority[key]
