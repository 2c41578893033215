"""What is done with messages that no worker handles: a part of the contract whose rest is in `base`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one pass of maintenance gave back to the queue."""

    reservations: int = 0
    deliveries: int = 0
    #: Messages that lost too many owners and went to the dead letters; not among `deliveries`.
    crash_loops: int = 0


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep over failed (or dead) messages did."""

    #: Published again, attempts plus one.
    retried: int = 0
    #: Moved to the dead letters.
    parked: int = 0
    #: Entries that were cleared because their record is gone.
    dropped: int = 0
    #: Looked at and left where they were.
    kept: int = 0
    #: Of the kept ones, those whose record is not an envelope.
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Retained:
    """One failed or dead message. Fields of a record that cannot be read are None."""

    pid: str
    timestamp: float | None
    attempts: int | None
    payload: bytes | None
    #: One stable word, empty when no reason was kept.
    why: str = ""
    reason: str = ""
    #: When it was rejected, seconds since the epoch by the broker's clock.
    at: float | None = None
    #: Whether its record, and with it the payload, is still there.
    recorded: bool = True
    #: Seconds until the record is dropped; None when it is kept for ever or gone.
    expires_in: float | None = None


#: Called with the counts so far, after each bounded step.
OnSwept = Callable[[Swept], None]


class Maintenance(Protocol):
    """What a person or a scheduled job does with messages that no worker handles any more. Every step is
    bounded and happens whole; killed between two steps, nothing is lost and a second run goes on."""

    async def retry(
        self,
        queue: str,
        *,
        limit: int | None = None,
        max_attempts: int | None = None,
        newer_than: float | None = None,
        older_than: float | None = None,
        dead: bool = False,
        on_step: OnSwept = ...,
    ) -> Swept:
        """Publish failed messages again, oldest first, each as a new message with one more attempt.
        `limit` bounds how many are retried. One that was tried `max_attempts` times is parked instead (or
        stays, with `dead`). Only those published less than `newer_than` and more than `older_than` seconds
        ago are touched. `dead` takes the dead letters. What fails again meanwhile waits for the next one."""
        ...

    async def park(
        self,
        queue: str,
        *,
        limit: int | None = None,
        max_attempts: int | None = None,
        older_than: float | None = None,
        on_step: OnSwept = ...,
    ) -> Swept:
        """Move failed messages to the dead letters that were tried `max_attempts` times or were published
        more than `older_than` seconds ago. Their records are kept. Raises ValueError without a bound."""
        ...

    async def recover(self, queue: str, on_step: Callable[[Recovered], None] = ...) -> Recovered:
        """Run the recovery transitions until nothing is due."""
        ...

    async def promote(self, queue: str, *, everything: bool = False) -> int:
        """Make delayed retries ready; with `everything` also those that are not due. How many were."""
        ...

    async def unstage(self, queue: str) -> int:
        """Return what blocking waits moved into staging to the head of ready, in order. How many were. For a
        queue whose workers of this protocol are all fenced or gone: nobody else would take it from there."""
        ...

    async def retained(self, queue: str, *, limit: int = 100, dead: bool = True) -> Sequence[Retained]:
        """The newest dead (or failed) messages, with the reasons that were kept."""
        ...

    async def close(self) -> None: ...
