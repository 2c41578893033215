"""The contract between the runtime and a broker.

A broker offers four things, each with its own connections: a `Consumer` (receive, settle), a `Renewer`
(extend, recover; it lives on another thread's event loop), a `Publisher` and an `Inspector`. The worker
knows nothing else of a broker, and a broker knows nothing of handlers.

What every implementation promises, and what the conformance suite in `tests/brokers` checks:

- `receive` never waits to fill a batch, and once it has taken work it never loses track of it: cancelling
  or interrupting it leaves each message with the broker or in the list that it returns.
- `settle` gives exactly one outcome for each settlement, through `on_result`, as soon as that one is known;
  one failure never taints its neighbours. It never replays: a lost answer is `Outcome.UNKNOWN`.
- ownership and liveness are two facts. A late owner may settle as long as nobody took over; a superseded
  owner never can.
- payload bytes pass through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import msgspec

from worker_runtime.brokers.errors import (
    BrokerError as BrokerError,
    BrokerFullError as BrokerFullError,
    BrokerRefusedError as BrokerRefusedError,
    BrokerUnavailableError as BrokerUnavailableError,
    BrokerUsageError as BrokerUsageError,
    CredentialsUnusableError as CredentialsUnusableError,
    NotProvisionedError as NotProvisionedError,
    PayloadRefusedError as PayloadRefusedError,
    QueueUnusableError as QueueUnusableError,
    TakenBackTooSoonError as TakenBackTooSoonError,
    UnsafePlacementError as UnsafePlacementError,
)
from worker_runtime.brokers.maintenance import (
    Maintenance as Maintenance,
    OnSwept as OnSwept,
    Recovered as Recovered,
    Retained as Retained,
    Swept as Swept,
)
from worker_runtime.brokers.reading import (
    Inspector as Inspector,
    LedgerRow as LedgerRow,
    Place as Place,
    QueueReading as QueueReading,
    ReservationReading as ReservationReading,
    Role as Role,
    Whereabouts as Whereabouts,
    WorkerReading as WorkerReading,
)


class Outcome(Enum):
    """What the broker said of one settlement."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    RELEASED = "released"
    #: Another owner took the message; this delivery no longer decides anything.
    SUPERSEDED = "superseded"
    #: The broker knows nothing of the message (settled before, or its record is gone).
    MISSING = "missing"
    #: The broker's answer was lost. Neither success nor failure; never replayed.
    UNKNOWN = "unknown"


class Action(Enum):
    """What a worker asks of the broker for one delivery."""

    COMMIT = "commit"
    REJECT = "reject"
    #: Give back work that never started: to the head of the queue, in order, attempts untouched.
    RELEASE = "release"
    #: Reject, and publish again as a new message with one more attempt, `Settlement.delay` seconds later.
    #: One step for the broker: nothing is lost between the rejection and the retry.
    RETRY = "retry"
    #: Reject for good: to the dead letters.
    DEAD = "dead"


#: What the workers of this package speak: they reserve, and recover what others reserved.
PROTOCOL = "Reservation"
#: Characters of `WorkerIdentity.last_end` that are kept.
LONGEST_END = 100


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who receives. `revision` and `worker` appear in the broker's books; both are free of spaces."""

    #: The revision that the operator gave (QUEUEWORKER_REVISION), or "local".
    revision: str
    #: Unique for one incarnation of one process: host, process id and a random suffix.
    worker: str
    #: The machine or pod it runs on, for people.
    host: str = ""
    #: How often a process in its place ended unexpectedly and was started again.
    restarts: int = 0
    #: How the last of those ended, such as "exit code 1"; empty when there was none.
    last_end: str = ""
    #: That place: the same for every process that follows another there, and of no other supervisor.
    place: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """Every duration of the delivery protocol, in seconds."""

    #: A delivery that nobody renewed for this long may be taken over.
    expiry: float = 60.0
    #: How long a reservation may wait for its claim before anybody may recover it.
    reservation: float = 30.0
    #: The longest blocking wait on an empty queue.
    block: float = 2.0
    #: How long one command may take before its answer counts as lost.
    command_timeout: float = 10.0
    #: Processing entries without a token (older workers) are recovered when published this long ago.
    legacy_age: float = 90_000.0
    #: How long the record of a rejected message is kept; 0 keeps it for ever.
    job_ttl: float = 0.0

    @property
    def renewal_period(self) -> float:
        """A third of the expiry: two missed renewals in a row still leave a delivery alive."""
        return self.expiry / 3


class Delivery(msgspec.Struct, gc=False):
    """One message handed to one worker once."""

    pid: str
    queue: str
    #: The payload's raw JSON bytes, exactly as published.
    payload: bytes
    #: When it was published, seconds since the epoch as the producer wrote them.
    timestamp: float
    #: How often the message was tried before this delivery.
    attempts: int
    #: Opaque to everybody but the broker that made it.
    receipt: Any
    #: Set by the worker when it learns that another one has taken the message over.
    superseded: bool = False


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """One request to settle one delivery. `reason` is kept with rejected messages where the broker can;
    `why` is one stable word for it (docs/retries.md has the list). RETRY and DEAD count as REJECTED."""

    delivery: Delivery
    action: Action
    reason: str = ""
    #: Seconds until a RETRY may be taken.
    delay: float = 0.0
    why: str = "handler"


#: Called once for each settlement, as soon as its outcome is known. The text is empty or explains an
#: outcome that was not the one asked for. Must not raise and must not block.
OnResult = Callable[[Settlement, Outcome, str], None]


@dataclass(frozen=True, slots=True)
class Fenced:
    """A mark on the broker stops this revision from receiving."""

    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """What one `receive` brought. Empty with no fence means: nothing came within the blocking time."""

    deliveries: Sequence[Delivery] = ()
    #: Messages that could not be decoded and were put aside in this call, raw bytes kept.
    poisoned: int = 0
    fenced: Fenced | None = None
    #: Messages that were handed out too often without being settled, and went to the dead letters in this
    #: call. Only brokers that count deliveries by themselves judge this when they receive.
    crash_loops: int = 0


class Consumer(Protocol):
    """Receives and settles for one queue on the event loop that created it."""

    async def receive(self, limit: int) -> Received:
        """Take up to `limit` deliveries. Returns at once when anything is there; otherwise waits at most
        `Timing.block` seconds for the first. Does not wait at all while fenced.
        Raises BrokerUnavailableError or BrokerRefusedError; then nothing is held by the caller."""
        ...

    def interrupt(self) -> None:
        """End a wait in `receive` early, now and from then on: `receive` no longer blocks.
        What it has already taken is still returned."""
        ...

    async def settle(self, settlements: Sequence[Settlement], on_result: OnResult) -> None:
        """Settle many deliveries, each on its own merits. Never raises for a broker's fault: what could not
        be learned is `Outcome.UNKNOWN`. Releases of one call come back in the given order. May wait
        for a broker that is away, as long as nothing was sent; after `interrupt` not for longer than
        `Timing.command_timeout`."""
        ...

    async def close(self) -> None:
        """Close the connections. Work still owned stays with the broker and is recoverable."""
        ...


@dataclass(frozen=True, slots=True)
class Presence:
    """What a worker says of itself in the list of live workers."""

    receiving: bool
    outstanding: int
    coroutines: int
    prefetch: int
    #: Why it does not receive; empty when it does.
    reason: str = ""


#: A message that lost its owner this often is a dead letter, where a job says nothing else.
MAX_TAKEOVERS = 10


@dataclass(frozen=True, slots=True)
class Promoted:
    """What became of delayed retries. `next_due` is in seconds, None when nothing is delayed."""

    moved: int = 0
    next_due: float | None = None


class Renewer(Protocol):
    """Keeps deliveries alive and returns what dead workers left. Created and used on its own event loop, so
    that a handler that blocks the main loop cannot stop it."""

    async def extend(self, deliveries: Collection[Delivery]) -> Collection[Delivery]:
        """Renew liveness of all of them. Returns those that this worker no longer owns."""
        ...

    async def recover(self) -> Recovered:
        """One bounded pass over expired reservations and expired deliveries of the queue."""
        ...

    async def promote(self) -> Promoted:
        """Make delayed retries ready whose time has come by the broker's clock."""
        ...

    async def fence(self) -> str:
        """Why this worker's revision may not receive; empty when it may. For a worker that makes no receive,
        which would tell."""
        ...

    async def announce(self, presence: Presence) -> None:
        """Stand in the broker's list of live workers for another `Timing.expiry` seconds. Clears away some
        of those that have not been heard of for that long."""
        ...

    async def sign_off(self) -> None:
        """Leave the list of live workers."""
        ...

    async def close(self) -> None: ...


class Publisher(Protocol):
    """Publishes messages; `publish_many` returns when the broker has confirmed."""

    def verify(self, queue: str) -> None:
        """Raises BrokerError when nothing can ever be published to this queue: its name or the placement of
        its keys (UnsafePlacementError). Asks nobody."""
        ...

    async def publish_many(self, queue: str, payloads: Sequence[bytes]) -> Sequence[str]:
        """Publish raw JSON payloads in order and return their pids, in the same order."""
        ...

    async def close(self) -> None: ...


class Fences(Protocol):
    """Marks that stop revisions from receiving. All calls may be repeated at will. The revision "*" stands
    for every revision. Raises BrokerError."""

    async def fence(self, queue: str, revision: str, reason: str) -> bool:
        """Stop a revision from receiving, from this moment on, wherever its workers are (where a broker
        cannot refuse, within seconds: `brokers.nats.fences` says how). They go on settling, renewing and
        recovering. False when it was fenced for this very reason before."""
        ...

    async def unfence(self, queue: str, revision: str) -> bool:
        """Let it receive again; its workers notice within about a second. False when it was not fenced. A
        fence on "*" stays, and holds for the revision too."""
        ...

    async def fences(self, queue: str) -> Mapping[str, str]:
        """Revision or "*" -> reason."""
        ...

    async def close(self) -> None: ...


class Broker(Protocol):
    """A place where queues live. Creating one opens no connection."""

    #: What to show to people: the URL without its password.
    display_url: str

    async def check(self, queue: str) -> None:
        """Reach the broker, authenticate, and verify that this queue may be used safely (placement, key
        types). Raises a BrokerError whose text says what was read and what to do."""
        ...

    def timing(self, queue: str) -> Timing:
        """The durations that hold for this queue. A broker that keeps an expiry of its own knows it after
        `check`."""
        ...

    def consumer(self, queue: str, identity: WorkerIdentity, *, max_tries: int = MAX_TAKEOVERS) -> Consumer:
        """`max_tries`: a message that was handed out this often without being settled is a dead letter, 0 is
        never. Only for brokers that count deliveries by themselves, retries included; the others count
        takeovers, see `renewer`."""
        ...

    def renewer(self, queue: str, identity: WorkerIdentity, *, max_takeovers: int = MAX_TAKEOVERS) -> Renewer:
        """`max_takeovers` is the takeover that a message does not survive; 0 is none."""
        ...

    def publisher(self) -> Publisher: ...

    def inspector(self) -> Inspector: ...

    def maintenance(self, *, max_takeovers: int = MAX_TAKEOVERS) -> Maintenance: ...

    def fences(self) -> Fences: ...
