"""Settlements that did not end as they were asked for, told in one line for all that came together."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from worker_runtime.brokers.base import Outcome

#: Ids that one log line names at most.
NAMED = 100

log = logging.getLogger("queueworker.worker")


def named(pids: Sequence[str]) -> str:
    """Ids for a log line, not more than a person reads."""
    some = ", ".join(pids[:NAMED])
    return f"{some} and {len(pids) - NAMED} more" if len(pids) > NAMED else some or "none"


class Surprises:
    """Of one queue in one process."""

    def __init__(self, queue: str) -> None:
        self._extra = {"queue": queue}
        self._pids: dict[Outcome, list[str]] = {}
        #: Of the first one of each kind, where the consumer said it.
        self._why: dict[Outcome, str] = {}

    def note(self, outcome: Outcome, pid: str, why: str) -> None:
        """`why` is what the consumer said of it."""
        self._pids.setdefault(outcome, []).append(pid)
        if why:
            self._why.setdefault(outcome, why)

    def tell(self) -> None:
        """Say what was noted since the last time."""
        if not self._pids:
            return
        unknown, superseded, missing = (
            self._pids.get(outcome, []) for outcome in (Outcome.UNKNOWN, Outcome.SUPERSEDED, Outcome.MISSING)
        )
        why, self._pids, self._why = self._why, {}, {}
        if unknown:
            log.warning(
                "the broker's answer was lost for %d settlements, or it was no confirmation (%s); they count "
                "as unknown and are not sent again. If one was not applied, its message is recovered when "
                "its ownership expires. Ids: %s",
                len(unknown),
                why.get(Outcome.UNKNOWN, "no reason was given"),
                named(unknown),
                extra=self._extra,
            )
        if superseded or missing:
            parts = [
                f"{len(pids)} {outcome.value} ({why.get(outcome, usual)})"
                for outcome, pids, usual in (
                    (Outcome.SUPERSEDED, superseded, "another worker had taken the message over"),
                    (Outcome.MISSING, missing, "it was settled before, or the broker has lost it"),
                )
                if pids
            ]
            log.warning(
                "%d settlements came too late to count: %s. Ids: %s",
                len(superseded) + len(missing),
                ", ".join(parts),
                named(superseded + missing),
                extra=self._extra,
            )
