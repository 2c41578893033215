"""Who gets the next free slot: three times of four those in a hurry before those who are patient, and of each
the one that has not had one for the longest time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Hashable
from dataclasses import dataclass

#: Of so many slots that become free one goes to the patient first: they are late then, and not forgotten.
ONE_IN = 4

#: Since when it has had none, the order of coming, and the name.
_Place = tuple[float, int, Hashable]


@dataclass(frozen=True, slots=True)
class _Wait:
    turn: asyncio.Future[None]
    place: _Place
    patient: bool


class Slots:
    """So many at once. A name waits once at a time."""

    def __init__(self, number: int) -> None:
        self._free, self._given = number, 0
        self._numbers = itertools.count()
        self._waiting: dict[Hashable, _Wait] = {}
        #: Heaps. A place that its name does not have any more counts for nothing.
        self._hurried: list[_Place] = []
        self._patient: list[_Place] = []

    async def take(self, name: Hashable, *, patient: bool, since: float = -math.inf) -> None:
        """Wait for a slot. Each that was taken is given back. `since` is when this name had the last one."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(name, turn, since, patient=patient)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            self._waiting.pop(name, None)
            raise

    def hurry(self, name: Hashable) -> None:
        """Whoever waits under that name is patient no more."""
        wait = self._waiting.get(name)
        if wait is not None and wait.patient:
            self._queue(name, wait.turn, wait.place[0], patient=False)

    def give_back(self) -> None:
        self._given += 1
        lines = (self._hurried, self._patient)
        for line in reversed(lines) if self._given % ONE_IN == 0 else lines:
            while line:
                place = heapq.heappop(line)
                wait = self._waiting.get(place[2])
                if wait is None or wait.place != place:
                    continue
                del self._waiting[place[2]]
                if not wait.turn.done():
                    wait.turn.set_result(None)
                    return
        self._free += 1

    def _queue(self, name: Hashable, turn: asyncio.Future[None], since: float, *, patient: bool) -> None:
        place = (since, next(self._numbers), name)
        self._waiting[name] = _Wait(turn, place, patient)
        heapq.heappush(self._patient if patient else self._hurried, place)
