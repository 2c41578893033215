"""How often something may be done: some at once, then at a steady rate."""

from __future__ import annotations


class Pace:
    """`at_once` may be done at any time after a rest, then `per_second` more. Times in seconds, of any clock
    that only goes forward."""

    def __init__(self, at_once: float, per_second: float) -> None:
        self._at_once, self._per_second = at_once, per_second
        self._left, self._asked = at_once, 0.0

    @property
    def wait_seconds(self) -> float:
        """For whoever was refused: so many may be done again then, that all who wait get a turn."""
        return self._at_once / self._per_second

    def take(self, now: float) -> bool:
        """Whether it may be done now."""
        self._left = min(self._at_once, self._left + (now - self._asked) * self._per_second)
        self._asked = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
