"""One loss of the broker is one line in the log, and its return another, however many loops notice it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from worker_runtime.brokers.base import BrokerError, BrokerUnavailableError


class Outage:
    """What the loops of one queue learn of the broker. `clock` is monotonic, in seconds."""

    def __init__(self, log: logging.Logger, extra: Mapping[str, object], clock: Callable[[], float]) -> None:
        self._log = log
        self._extra = dict(extra)
        self._clock = clock
        self._since = 0.0
        #: What told the loss. The others may need less of the broker than this, so only it tells the end.
        self._told_by = ""
        #: What fails for a reason of its own, told once until it works again.
        self._failing: set[str] = set()

    def failed(self, what: str, error: BrokerError) -> None:
        """The broker has not answered it, or has refused it."""
        if isinstance(error, BrokerUnavailableError):
            if not self._told_by:
                self._since, self._told_by = self._clock(), what
                self._log.warning("%s fails, the broker is lost: %s", what, error, extra=self._extra)
            return
        if what not in self._failing:
            self._failing.add(what)
            self._log.warning("%s fails: %s", what, error, extra=self._extra)

    def worked(self, what: str) -> None:
        """The broker has answered it."""
        if self._told_by == what:
            self._told_by = ""
            down = self._clock() - self._since
            self._log.info("%s works again after %.1f s", what, down, extra=self._extra)
        self._failing.discard(what)
