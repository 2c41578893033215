"""What a broker says of a queue and of one message: a part of the contract whose rest is in `base`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Deliveries of one revision. claimed = committed + rejected + released + taken_over + owned now."""

    claimed: int = 0
    committed: int = 0
    rejected: int = 0
    released: int = 0
    taken_over: int = 0
    poisoned: int = 0


@dataclass(frozen=True, slots=True)
class ReservationReading:
    id: str
    #: Seconds until anybody may recover it; negative when overdue.
    deadline_in: float
    size: int


@dataclass(frozen=True, slots=True)
class WorkerReading:
    """One live worker, as it last announced itself. Workers of older protocols do not announce themselves."""

    worker: str
    revision: str
    #: "Reservation" for every worker that can recover reservations.
    protocol: str
    host: str
    receiving: bool
    #: Why it does not receive; empty when it does.
    reason: str
    #: Its own count at its last beat; `QueueReading.owners` is exact and of the moment.
    outstanding: int
    coroutines: int
    prefetch: int
    #: Seconds since its first beat.
    uptime: float
    #: Seconds until it no longer counts as alive.
    expires_in: float
    #: How often a process in its place ended unexpectedly before and was started again.
    restarts: int = 0
    #: How the last of those ended, such as "exit code 1"; empty when there was none, or it does not say.
    last_end: str = ""
    #: The place that `restarts` counts for; empty for a worker of an older release.
    place: str = ""


class Role(Enum):
    """What the server that was read says of itself."""

    PRIMARY = "primary"
    REPLICA = "replica"
    #: The user may not ask.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class QueueReading:
    """What a broker says of one queue at one moment. Nothing may be concluded from a reading of a replica,
    which lags behind; `role` tells."""

    queue: str
    ready: int
    #: Seconds since the oldest ready message was published; None when nothing is ready or it cannot be read.
    oldest_ready_age: float | None
    staging: int
    reserved: int
    owned: int
    processing: int
    delayed: int
    failed: int
    dead: int
    poison: int
    total: int
    success: int
    #: Rejected deliveries and dead letters, of workers of every protocol; None where the broker counts none.
    failures: int | None = None
    reservations: Sequence[ReservationReading] = ()
    #: worker id -> deliveries that it owns.
    owners: Mapping[str, int] = field(default_factory=dict)
    #: revision or "*" -> reason.
    fences: Mapping[str, str] = field(default_factory=dict)
    ledger: Mapping[str, LedgerRow] = field(default_factory=dict)
    #: revision -> worker id -> deliveries that it owns, of the same moment as the ledger.
    owned_by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: Live workers only, by name.
    workers: Sequence[WorkerReading] = ()
    #: Seconds until the first delayed message is due, negative when it is overdue; None when none is delayed.
    next_delayed_in: float | None = None
    role: Role = Role.UNKNOWN
    #: The server that was read.
    server: str = ""
    #: Seconds of CPU that it has used since it started; None where it does not say.
    cpu_seconds: float | None = None
    #: The broker keeps failed messages among the dead ones and cannot count them apart: `dead` is both, and
    #: `failed` says nothing.
    failed_among_dead: bool = False

    @property
    def without_token(self) -> int:
        """Entries in processing that workers of an older protocol have or left."""
        return max(0, self.processing - self.owned)

    @property
    def private(self) -> int:
        """Messages in places that only this protocol can read. Zero means that nothing would be stranded."""
        return self.staging + self.reserved + self.owned + self.delayed


class Place(Enum):
    """Where one message is."""

    READY = "ready"
    STAGING = "staging"
    RESERVED = "reserved"
    OWNED = "owned"
    #: In processing without a token: a worker of an older protocol has it or left it.
    WITHOUT_TOKEN = "without-token"
    DELAYED = "delayed"
    FAILED = "failed"
    DEAD = "dead"
    POISON = "poison"
    #: In none of the places that were looked at.
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where one message is, and what is known of it there. None means that it does not apply to the place or
    could not be read; durations are in seconds."""

    pid: str
    place: Place
    #: Messages that will be taken before it (ready and staging).
    position: int | None = None
    published_ago: float | None = None
    attempts: int | None = None
    #: The reservation that holds it, and the time until anybody may recover that.
    reservation: str | None = None
    deadline_in: float | None = None
    #: Who owns it, and the time until anybody may take it over; negative when that is allowed by now.
    worker: str | None = None
    revision: str | None = None
    expires_in: float | None = None
    #: A delayed retry: the time until it is due.
    due_in: float | None = None
    #: How often an owner of it died or fell silent and others took it over. Too often, and it is given up.
    takeovers: int | None = None
    #: Why it was rejected, given up or put aside, where that was kept.
    reason: str | None = None
    #: Failed and dead messages: whether the record with the payload is still there.
    recorded: bool | None = None
    #: Entries of long lists that were looked at, and whether that was all of them.
    scanned: int = 0
    complete: bool = True


class Inspector(Protocol):
    async def read(self, queue: str) -> QueueReading: ...

    async def find(self, queue: str, pid: str, scan: int = 10_000) -> Whereabouts:
        """Where one message is. Looks at up to `scan` entries of each list that has to be searched, from the
        end that is taken next. Several messages of one pid: the one closest to its end is told."""
        ...

    async def close(self) -> None: ...
