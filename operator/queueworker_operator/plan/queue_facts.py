"""What the broker says of a queue, as far as a rollout has to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

#: Older observations count as Unknown.
FRESH = timedelta(seconds=15)
#: The name under which a fence holds for every revision.
EVERY_REVISION = "*"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody could look, or looked too long ago. Never lets anything pass."""

    reason: str
    observed_at: datetime


@dataclass(frozen=True, slots=True)
class Restarts:
    """Workers that ended without being told to, and were started again."""

    #: Of the workers that are there.
    number: int
    last_at: datetime
    #: Names the pod or process and how it ended the last time.
    message: str
    #: By place (a container of a pod, a process of a worker): how many of them each one had. A place that has
    #: another process now is the same place. Empty where nobody tells them apart.
    places: tuple[tuple[str, int], ...] = ()

    @property
    def told(self) -> str:
        """How often and how, behind the name of those workers."""
        times = f"{self.number} time{'s' if self.number > 1 else ''}"
        return f"were restarted {times} by now; {self.message}"


def together(*some: Restarts | None) -> Restarts | None:
    """All of them, told by the last."""
    known = [one for one in some if one is not None]
    if not known:
        return None
    last = max(known, key=lambda one: one.last_at)
    places = tuple(sorted(place for one in known for place in one.places))
    return Restarts(sum(one.number for one in known), last.last_at, last.message, places)


@dataclass(frozen=True, slots=True)
class LiveWorkers:
    """Workers of one revision that announced themselves on the broker and have not fallen silent."""

    #: Those that can recover reservations.
    capable: int = 0
    #: Those that said that they take work. A worker that stands still is counted until it falls silent.
    receiving: int = 0
    #: What they said they hold; older than the books.
    outstanding: int = 0
    #: Processes of theirs that ended and were started again by the worker itself.
    restarts: Restarts | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One revision in the broker's ledger. Numbers only grow, unless the books are lost."""

    claimed: int = 0
    committed: int = 0
    rejected: int = 0
    released: int = 0
    taken_over: int = 0
    poisoned: int = 0

    @property
    def unfinished(self) -> int:
        """Claimed, and by the books not ended in any way."""
        return self.claimed - self.committed - self.rejected - self.released - self.taken_over


@dataclass(frozen=True, slots=True)
class NoBooks:
    """The broker counts nothing for each revision (JetStream)."""


@dataclass(frozen=True, slots=True)
class Books:
    """What the broker counted, all at one moment."""

    #: The server that was read.
    server: str
    #: By revision.
    rows: Mapping[str, Row]
    #: By revision and worker process, dead ones included: deliveries that it owns.
    owned: Mapping[str, Mapping[str, int]]
    #: Of all workers, those of protocol Legacy included: commits, and rejections with dead letters.
    committed: int
    failed: int
    #: Since when every reading showed ready work; None while none waits.
    backlog_since: datetime | None
    #: CPU time of the server since it started, in seconds, for whatever it does; None where it does not say.
    cpu_seconds: float | None = None

    def row(self, revision: str) -> Row:
        """What the ledger has of a revision; zeros where its workers never took anything."""
        return self.rows.get(revision, Row())

    def legacy(self) -> Row:
        """What workers did that the ledger does not know: those of protocol Legacy."""
        rows = self.rows.values()
        committed = max(0, self.committed - sum(row.committed for row in rows))
        rejected = max(0, self.failed - sum(row.rejected for row in rows))
        return Row(committed + rejected, committed, rejected)

    def unbooked(self, revision: str) -> int:
        """How far the ledger and what is owned are apart; 0 where the books balance."""
        return self.row(revision).unfinished - sum(self.owned.get(revision, {}).values())

    def most_owned(self, revision: str) -> int:
        """The most that one worker process owns."""
        return max(self.owned.get(revision, {}).values(), default=0)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One reading of one queue."""

    observed_at: datetime
    #: `api.revisions.broker_identity(spec.broker)` of the spec whose queue was read.
    identity: str
    #: False for a broker that hands out again by itself what nobody confirmed, to any worker (JetStream).
    has_registry: bool
    #: Whether the server is known to be the primary: only its word proves that something is not there.
    primary: bool
    #: What a blocking wait moved out of ready.
    staging: int
    #: Messages in reservations: taken, not yet claimed.
    reserved: int
    #: Deliveries that a worker owns, and by the ledger for each revision.
    owned: int
    delayed: int
    owned_by: Mapping[str, int] = field(default_factory=dict)
    #: Revision or EVERY_REVISION -> reason.
    fences: Mapping[str, str] = field(default_factory=dict)
    live: Mapping[str, LiveWorkers] = field(default_factory=dict)
    #: Since when every reading showed an empty registry and no movement; None while something is there.
    quiet_since: datetime | None = None
    books: Books | NoBooks = NoBooks()
    #: Since when the queue was read without a long gap; None where nobody keeps track.
    watched_since: datetime | None = None

    @property
    def private(self) -> int:
        """Messages in places that only workers of protocol Reservation can read."""
        return self.staging + self.reserved + self.owned + self.delayed

    @property
    def registry(self) -> int:
        """What only a worker of protocol Reservation, or the operator, can return to the queue at once."""
        return self.staging + self.reserved + self.owned

    def is_fenced(self, revision: str) -> bool:
        return revision in self.fences or EVERY_REVISION in self.fences

    def of(self, revision: str) -> LiveWorkers:
        return self.live.get(revision, LiveWorkers())

    def outstanding(self, revision: str) -> int:
        """What workers of a revision own, dead ones included where the broker keeps books of it. Never more
        than is owned at all: a failover can lose entries of the books."""
        if not self.has_registry:
            return self.of(revision).outstanding
        return min(self.owned, self.owned_by.get(revision, 0))

    def capable_besides(self, revisions: frozenset[str]) -> int:
        """Live workers of other revisions, of whatever QueueWorker, that can recover reservations. Those of a
        fenced revision are on their way out themselves and do not count."""
        return sum(
            live.capable
            for name, live in self.live.items()
            if name not in revisions and not self.is_fenced(name)
        )
