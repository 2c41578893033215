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
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict, PriorityWork

#: Well below the age at which a fact counts as Unknown.
REMEMBERED = timedelta(seconds=8)
#: A look at a priority subject adds nothing to the next one after this.
FORGOTTEN = timedelta(minutes=5)
#: Checks under way at once, over all brokers.
AT_ONCE = 8

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


class BrokerChecks:
    """`clock` gives aware times; `look` does one bounded check."""

    def __init__(self, clock: Callable[[], datetime], look: Look = observe_broker) -> None:
        self._clock, self._look = clock, look
        self._brokers: dict[Access, _OneBroker] = {}
        self._found: dict[_Key, BrokerCheck] = {}
        self._priority: dict[_Key, PriorityWork] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def check(self, access: Access, spec: QueueWorkerSpec, *, anew: bool = False) -> BrokerCheck:
        """A check of the broker for the queue of `spec`, some seconds old at most; with `anew` one that is
        made now, unless the broker failed just before."""
        key = (access, spec.queue.name, broker_identity(spec.broker))
        broker = self._brokers.setdefault(access, _OneBroker(asyncio.Lock()))
        async with broker.turn:
            known = (None if anew else self._recent(self._found.get(key))) or self._recent(broker.failed)
            if known is None:
                async with self._slots:
                    with opened(access) as place:
                        known = await self._look(place.url, spec, self._clock())
                known = replace(
                    known,
                    message=place.told(known.message),
                    priority=since(self._priority.get(key), known.priority),
                )
                self._found[key] = known
                if isinstance(known.priority, PriorityWork):
                    self._priority[key] = known.priority
                else:
                    self._priority.pop(key, None)
                broker.failed = known if known.verdict in _OF_THE_BROKER else None
        self._forget_old()
        return replace(known, identity=broker_identity(spec.broker))

    def _recent(self, check: BrokerCheck | None) -> BrokerCheck | None:
        return check if check and self._clock() - check.observed_at < REMEMBERED else None

    def _forget_old(self) -> None:
        for key in [k for k, check in self._found.items() if self._recent(check) is None]:
            del self._found[key]
        in_use = {key[0] for key in self._found}
        for access in [a for a, b in self._brokers.items() if a not in in_use and not b.turn.locked()]:
            del self._brokers[access]
        # Settled resources are looked at less often than a check is remembered.
        old = self._clock() - FORGOTTEN
        for key in [k for k, work in self._priority.items() if work.observed_at < old]:
            del self._priority[key]
