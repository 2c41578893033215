"""A broker's consumer under a test's control: it hands out what it is given and answers when it is told.

It knows nothing of Redis; transitions are tested on real servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from worker_runtime.brokers.base import Action, Delivery, OnResult, Outcome, Received, Settlement

_ASKED = {
    Action.COMMIT: Outcome.COMMITTED,
    Action.REJECT: Outcome.REJECTED,
    Action.RETRY: Outcome.REJECTED,
    Action.DEAD: Outcome.REJECTED,
    Action.RELEASE: Outcome.RELEASED,
}


def deliveries(count: int, start: int = 0) -> list[Delivery]:
    return [Delivery(f"p{n}", "q", b"{}", 0.0, 0, None) for n in range(start, start + count)]


class ScriptedConsumer:
    """`answer` decides each outcome; while `held` is set, settlements wait for `let_go`."""

    def __init__(self, available: Sequence[Delivery] = ()) -> None:
        self.available = list(available)
        self.asked: list[int] = []
        #: For each receive: what it may bring and what was handed out and not answered before.
        self.exposed: list[int] = []
        self._unanswered = 0
        self.settled: list[list[Settlement]] = []
        self.answer: Callable[[Settlement], Outcome] = lambda settlement: _ASKED[settlement.action]
        self._go = asyncio.Event()
        self._go.set()
        self._more = asyncio.Event()
        self._interrupted = False

    def hold(self) -> None:
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()

    def add(self, more: Sequence[Delivery]) -> None:
        self.available.extend(more)
        self._more.set()

    async def receive(self, limit: int) -> Received:
        self.asked.append(limit)
        self.exposed.append(limit + self._unanswered)
        while not self.available and not self._interrupted:
            self._more.clear()
            await self._more.wait()
        taken, self.available = self.available[:limit], self.available[limit:]
        self._unanswered += len(taken)
        return Received(taken)

    def interrupt(self) -> None:
        self._interrupted = True
        self._more.set()

    async def settle(self, settlements: Sequence[Settlement], on_result: OnResult) -> None:
        self.settled.append(list(settlements))
        await self._go.wait()
        for settlement in settlements:
            self._unanswered -= 1
            on_result(settlement, self.answer(settlement), "")

    async def close(self) -> None: ...
