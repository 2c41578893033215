"""Who gets the next free slot: those in a hurry before those who are patient, each in the order of coming."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable


class Slots:
    """So many at once. A name waits once at a time."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._hurried: dict[Hashable, asyncio.Future[None]] = {}
        self._patient: dict[Hashable, asyncio.Future[None]] = {}

    async def take(self, name: Hashable, *, patient: bool) -> None:
        """Wait for a slot. Each that was taken is given back."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._patient if patient else self._hurried)[name] = turn
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            self._hurried.pop(name, None)
            self._patient.pop(name, None)
            raise

    def hurry(self, name: Hashable) -> None:
        """Whoever waits under that name is patient no more."""
        turn = self._patient.pop(name, None)
        if turn is not None:
            self._hurried[name] = turn

    def give_back(self) -> None:
        for line in (self._hurried, self._patient):
            while line:
                turn = line.pop(next(iter(line)))
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1
