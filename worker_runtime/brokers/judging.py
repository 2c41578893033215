"""What a sweep does with one failed or dead message, on every broker: try it again, park it, or leave it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from worker_runtime.brokers.base import Swept

#: From how often a message was tried and its age in seconds to a letter (q retry, p park, "" keep) and, where
#: it is parked, why.
Judge = Callable[[int, float], tuple[str, str]]


def judge_of_retry(
    max_attempts: int | None, newer_than: float | None, older_than: float | None, dead: bool
) -> Judge:
    """The rule of `Maintenance.retry`."""

    def judge(attempts: int, age: float) -> tuple[str, str]:
        if newer_than is not None and age >= newer_than:
            return "", ""
        if older_than is not None and age <= older_than:
            return "", ""
        if max_attempts is not None and attempts >= max_attempts:
            return ("", "") if dead else ("p", f"tried {attempts} times")
        return "q", ""

    return judge


def judge_of_park(max_attempts: int | None, older_than: float | None) -> Judge:
    """The rule of `Maintenance.park`. Raises ValueError without a bound."""
    if max_attempts is None and older_than is None:
        raise ValueError("park needs a bound: give max_attempts, older_than (seconds) or both")

    def judge(attempts: int, age: float) -> tuple[str, str]:
        if max_attempts is not None and attempts >= max_attempts:
            return "p", f"tried {attempts} times"
        if older_than is not None and age > older_than:
            return "p", f"published {age:.0f} s ago"
        return "", ""

    return judge


@dataclass(slots=True)
class Counts:
    """`Swept` while it is being counted."""

    retried: int = 0
    parked: int = 0
    dropped: int = 0
    kept: int = 0
    unreadable: int = 0

    def frozen(self) -> Swept:
        return Swept(**asdict(self))
