"""How long a resync takes: from its list until every key on it was looked at."""

from __future__ import annotations

import math
from collections.abc import Set

from queueworker_operator.run.queue import Key


class Round:
    """One resync at a time. One that begins before the last has ended is part of it. Times in seconds."""

    def __init__(self) -> None:
        self._left: set[Key] = set()
        self._began = -math.inf

    def begin(self, keys: Set[Key], now: float) -> None:
        """A list was asked for at `now` and named these keys."""
        # What is gone is not looked at any more.
        self._left &= keys
        if not self._left:
            self._left, self._began = set(keys), now

    def looked_at(self, key: Key, now: float) -> float | None:
        """A pass of this key has ended; the seconds of the round when it was the last."""
        if key not in self._left:
            return None
        self._left.remove(key)
        return None if self._left else now - self._began
