"""Whether the broker owes this process an answer for too long: one that is frozen or cut off refuses nothing
and closes nothing, and it takes longer until a connection is given up."""

from __future__ import annotations

#: Seconds beyond what an answer may take.
PATIENCE = 3.0
#: Seconds for which a receive that waits is a sign that the main thread turns.
SIGN = 2.5


class Silence:
    """Of one queue in one process. `block` is the longest wait of a receive, in seconds. The main thread
    marks, the background thread looks; any thread may read `text`."""

    __slots__ = ("_limits", "_seen", "_waited", "receive", "settle", "text")

    def __init__(self, block: float) -> None:
        #: When the call began that is under way, by a clock that grows; 0 when none is.
        self.receive = 0.0
        self.settle = 0.0
        #: Empty as long as the broker answers.
        self.text = ""
        self._limits = (block + PATIENCE, PATIENCE)
        self._seen = (0.0, 0.0)
        self._waited = [0.0, 0.0]

    def waits(self, now: float) -> bool:
        """Whether all that the broker owes is the answer to a receive, and that one began not long ago."""
        began = self.receive
        return not self.settle and bool(began) and now - began < SIGN

    def asks(self, now: float) -> bool:
        """Whether a receive is under way, and not for longer than one may take: its answer will be read."""
        began = self.receive
        return bool(began) and now - began <= self._limits[0]

    def look(self, passed: float) -> None:
        """`passed`: seconds since the last look in which this process could have read an answer."""
        seen, self._seen = self._seen, (self.receive, self.settle)
        for index, (before, now) in enumerate(zip(seen, self._seen, strict=True)):
            self._waited[index] = self._waited[index] + passed if now and now == before else 0.0
        longest = max(
            (waited for waited, limit in zip(self._waited, self._limits, strict=True) if waited > limit),
            default=0.0,
        )
        self.text = f"the broker has not answered for {longest:.0f} s" if longest else ""
