"""How often something may be done: some at once, then at a steady rate, each at a time of its own."""

from __future__ import annotations

import math


class Pace:
    """`at_once` may be done at any time after a rest, then `per_second` more. Times in seconds, of any clock
    that only goes forward."""

    def __init__(self, at_once: float, per_second: float) -> None:
        self._every = 1.0 / per_second
        self._ahead = (at_once - 1.0) * self._every
        self._next = -math.inf

    def turn(self, now: float) -> float:
        """When it may be done by whoever asks, who is the last to ask for that turn: nobody has to ask a
        second time."""
        found = max(now, self._next - self._ahead)
        self._next = max(now, self._next) + self._every
        return found
