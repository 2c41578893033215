"""What a sweep does with one failed or dead message, on every broker: try it again, park it, or leave it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass

from worker_runtime.brokers.base import OnSwept, Swept

#: From how often a message was tried and its age in seconds to a letter (q retry, p park, "" keep) and, where
#: it is parked, why.
Judge = Callable[[int, float], tuple[str, str]]


def _judge_of_retry(
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


def _judge_of_park(max_attempts: int | None, older_than: float | None) -> Judge:
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


class Sweeps(ABC):
    """What retries and parks on every broker: a rule for each message, and one sweep that follows it."""

    async def retry(
        self,
        queue: str,
        *,
        limit: int | None = None,
        max_attempts: int | None = None,
        newer_than: float | None = None,
        older_than: float | None = None,
        dead: bool = False,
        on_step: OnSwept = lambda _: None,
    ) -> Swept:
        """See `Maintenance.retry`."""
        judge = _judge_of_retry(max_attempts, newer_than, older_than, dead)
        return await self._sweep(queue, judge, limit, dead, on_step)

    async def park(
        self,
        queue: str,
        *,
        limit: int | None = None,
        max_attempts: int | None = None,
        older_than: float | None = None,
        on_step: OnSwept = lambda _: None,
    ) -> Swept:
        """See `Maintenance.park`."""
        judge = _judge_of_park(max_attempts, older_than)
        return await self._sweep(queue, judge, limit, False, on_step)

    @abstractmethod
    async def _sweep(
        self, queue: str, judge: Judge, limit: int | None, of_dead: bool, on_step: OnSwept
    ) -> Swept:
        """Do with each failed (or dead) message what `judge` says, until `limit` of them were retried or
        parked."""
