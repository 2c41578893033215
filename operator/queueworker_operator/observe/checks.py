"""Checks of brokers, remembered for some seconds: a hundred resources on one broker ask it about once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
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
#: Seconds that one look at a broker may take before nobody waits for it any more.
PATIENCE = 2.0

_OF_THE_BROKER = frozenset(
    {BrokerVerdict.CONNECTION_FAILED, BrokerVerdict.TIMEOUT, BrokerVerdict.AUTHENTICATION_FAILED}
)

#: Access, queue, and the broker as the spec has it.
_Key = tuple[Access, str, str]
Look = Callable[[str, QueueWorkerSpec, datetime], Awaitable[BrokerCheck]]


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


class BrokerChecks:
    """`clock` gives aware times; `look` does one bounded check. `close` ends all that is under way.

    Each queue is checked in the background: a broker that does not answer costs a pass a fraction of a second
    at most, and no other broker anything.
    """

    def __init__(self, clock: Callable[[], datetime], look: Look = observe_broker) -> None:
        self._clock, self._look = clock, look
        self._brokers: dict[Access, _OneBroker] = {}
        self._found: dict[_Key, BrokerCheck] = {}
        self._checking: dict[_Key, asyncio.Task[None]] = {}
        self._priority: dict[_Key, PriorityWork] = {}
        self._forgot = clock()
        self._slots, self._silent = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(SILENT_AT_ONCE)

    async def check(
        self, access: Access, spec: QueueWorkerSpec, *, anew: bool = False
    ) -> BrokerCheck | Unknown:
        """The newest check of the broker for the queue of `spec`, some seconds old at most; with `anew` one
        that is made now, unless the broker failed just before. Waits for a new one as long as the broker
        answers within a moment; Unknown while there is none, which is for the time of one check at most, and
        of those that wait before it."""
        identity = broker_identity(spec.broker)
        key = (access, spec.queue.name, identity)
        broker = self._brokers.setdefault(access, _OneBroker(asyncio.Lock()))
        broker.asked_at = self._clock()
        known = None if anew else self._recent(self._found.get(key))
        if known is None and broker.calling is not None:
            known = broker.failed
        if known is None:
            task = self._checking.get(key)
            if task is None:
                task = self._checking[key] = asyncio.create_task(self._check(key, broker, spec))
                task.add_done_callback(lambda _: self._checking.pop(key, None))
            await self._wait(task, broker)
            known = self._found.get(key)
        self._forget_old()
        if known is None or self._clock() - known.observed_at > FRESH:
            return Unknown("the broker is being asked, and has not answered yet", self._clock())
        return replace(known, identity=identity)

    async def close(self) -> None:
        calling = [broker.calling for broker in self._brokers.values() if broker.calling is not None]
        tasks = [*self._checking.values(), *calling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, task: asyncio.Task[None], broker: _OneBroker) -> None:
        """Until the task has ended, or what it waits for takes too long."""
        loop = asyncio.get_running_loop()
        while not task.done():
            since = broker.looking_since
            left = PATIENCE if since is None else since + PATIENCE - loop.time()
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

    async def _call(self, key: _Key, broker: _OneBroker, spec: QueueWorkerSpec) -> None:
        """Look at a silent broker until it answers or nobody asks any more."""
        try:
            while broker.asked_at is not None and self._clock() - broker.asked_at < UNASKED:
                await asyncio.sleep(CALL_SECONDS)
                known = await self._ask(key, broker, spec)
                self._found[key] = known
                if known.verdict is not BrokerVerdict.TIMEOUT:
                    return
        finally:
            broker.calling = None

    async def _ask(self, key: _Key, broker: _OneBroker, spec: QueueWorkerSpec) -> BrokerCheck:
        silent = broker.failed is not None and broker.failed.verdict is BrokerVerdict.TIMEOUT
        async with self._silent if silent else self._slots:
            with opened(key[0]) as place:
                known = await self._look(place.url, spec, self._clock())
        priority = since(self._priority.get(key), known.priority)
        known = replace(known, message=place.told(known.message), priority=priority)
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
        in_use = {key[0] for key in self._found}
        for access in [
            a for a, b in self._brokers.items() if not (a in in_use or b.turn.locked() or b.calling)
        ]:
            del self._brokers[access]
        # Settled resources are looked at less often than a check is remembered.
        old = now - FORGOTTEN
        for key in [k for k, work in self._priority.items() if work.observed_at < old]:
            del self._priority[key]
