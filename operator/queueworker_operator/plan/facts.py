"""What was observed, each with the time of the observation. What could not be seen is Unknown, not empty.

Texts in facts end up in conditions. They must say the same thing while the same thing is true (no counters,
times or names that change with each look), otherwise each pass would write the status again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from queueworker_operator.api.kept import Kept
from queueworker_operator.api.types import Protocol
from queueworker_operator.plan.audit import NOT_AUDITED, AuditFact
from queueworker_operator.plan.queue_facts import (
    FRESH as FRESH,
    QueueFacts as QueueFacts,
    Restarts as Restarts,
    Unknown as Unknown,
)
from queueworker_operator.plan.samples import NOT_SAMPLED, NotSampled, Samples


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """Why workers of a revision do not get ready, as the cluster or the process reports it."""

    #: One word: ImagePullBackOff, CrashLoopBackOff, CreateContainerConfigError, FailedCreate, ...
    reason: str
    #: Names the pod or process, the image or command, what was reported, and the way out.
    message: str


@dataclass(frozen=True, slots=True)
class RevisionFacts:
    """One revision that exists: a Deployment, or a group of processes."""

    #: `<version>-p<prefetch>`, from the child's labels.
    name: str
    version: str
    prefetch: int
    #: Name of the Deployment or group.
    deployment: str
    #: Workers asked for (`spec.replicas` of the Deployment).
    desired: int
    #: Ready workers, and those of them that are for spec.minReadySeconds; those that are stopping left out.
    ready: int
    available: int
    #: Workers that exist in any form and have not ended, those that are stopping included.
    alive: int
    #: Order of creation, such as the creation timestamp in seconds.
    created: float
    coroutines: int | None = None
    failure: WorkerFailure | None = None
    #: False while the controller has not seen the last change of `desired`: `alive == 0` proves nothing then.
    caught_up: bool = True
    #: False when the child carries our labels but no controller: it is adopted.
    owned: bool = True
    #: Not empty when somebody else controls a child with our name or labels; the text names the owner.
    #: Such a child is never touched.
    conflict: str = ""
    protocol: Protocol = Protocol.RESERVATION
    #: When the youngest of its workers started; None when none is there.
    started_at: datetime | None = None
    #: Of those alive: told to stop, and should be gone since a while, as on a node that the cluster lost.
    overdue: int = 0
    #: None when every worker that is there has run from its first start on. Those of its processes, which a
    #: worker starts again by itself, are on the broker.
    restarts: Restarts | None = None
    #: Not empty when an autoscaler wrote `desired` last; names it for people.
    scaled_by: str = ""
    #: `api.revisions.broker_place` of where its workers consume; None where nobody knows.
    broker: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server (or the local starter) refused to create a revision: its template cannot be used."""

    revision: str
    #: What the server said.
    message: str


@dataclass(frozen=True, slots=True)
class Workers:
    """All revisions of one QueueWorker. Empty means: looked, and there are none."""

    revisions: tuple[RevisionFacts, ...]
    observed_at: datetime
    #: Remembered by whoever acts, until the resource's generation changes or a later try is accepted.
    refusals: tuple[Refusal, ...] = ()
    #: Revisions that served and can be made again; None where nobody looked, since nothing needs them.
    kept: tuple[Kept, ...] | None = None
    #: Workers of ours that are alive although their revision is not there any more.
    unattached: int = 0


class BrokerVerdict(StrEnum):
    """What a check of the broker in `spec.broker` found."""

    REACHABLE = "Reachable"
    #: Wrong user or password, or commands that are not permitted.
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    CONNECTION_FAILED = "ConnectionFailed"
    TIMEOUT = "Timeout"
    #: It answers, but the keys of the namespace do not share one slot of a Redis Cluster.
    UNSAFE_PLACEMENT = "UnsafePlacement"
    #: The Secret or its key is missing.
    SECRET_NOT_FOUND = "SecretNotFound"
    #: The URL cannot be read or has another scheme.
    INVALID_URL = "InvalidURL"
    #: Files of spec.broker.nats.credentials or tls contradict each other or cannot be read as what they are.
    INVALID_CREDENTIALS = "InvalidCredentials"
    #: It answers, and the queue has not been made there; or what has its names cannot be used for it.
    QUEUE_NOT_PROVISIONED = "QueueNotProvisioned"
    QUEUE_UNUSABLE = "QueueUnusable"


@dataclass(frozen=True, slots=True)
class NoPriority:
    """The broker knows no such subject."""


@dataclass(frozen=True, slots=True)
class PriorityWork:
    """What one look found on the subject that only older workers take from. Counts are of that moment."""

    subject: str
    pending: int
    unacknowledged: int
    #: What the stream holds on the subject, and what of it nobody will be given.
    stored: int
    stuck: int
    #: Grows when a message is handed out: what came and went between two looks shows here.
    last_sequence: int
    #: The last message of the whole stream: what is handed out behind it was published later.
    stream_sequence: int
    #: After this long without a sign a message comes back to be handed out again.
    ack_wait: timedelta
    #: Whether a consumer of older workers is there.
    consumed: bool
    observed_at: datetime
    #: Since which look nothing was there and nothing moved; None while something is.
    empty_since: datetime | None = None
    #: The last look that showed that somebody had published since the look before it.
    published_at: datetime | None = None

    @property
    def empty(self) -> bool:
        return not (self.pending or self.unacknowledged or self.stored)


Priority = PriorityWork | NoPriority | Unknown


@dataclass(frozen=True, slots=True)
class BrokerCheck:
    """One check of the broker."""

    verdict: BrokerVerdict
    #: What was read and the way out; never a password. May be empty when reachable.
    message: str
    observed_at: datetime
    #: `api.revisions.broker_identity(spec.broker)` of the spec that was checked; another broker's is Unknown.
    identity: str
    #: Whether the server is a Redis Cluster, where keys have slots.
    clustered: bool = False
    #: How a queue that can be used differs from what the spec says, and the way out; empty when it does not.
    differs: str = ""
    #: Why a broker that answers takes no writes, with the way out; empty where it does, or nobody can tell.
    refuses_writes: str = ""
    priority: Priority = NoPriority()


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the planner sees besides the resource itself (its metadata and its previous status)."""

    workers: Workers | Unknown
    broker: BrokerCheck | Unknown
    #: What the broker says of the queue.
    queue: QueueFacts | Unknown
    #: Revisions that another QueueWorker has workers of, on the same queue.
    shared: frozenset[str] = frozenset()
    #: What workers say of themselves, while an analysis is under way.
    samples: Samples | Unknown | NotSampled = NOT_SAMPLED
    #: What is known of whoever counts totals, while an analysis is under way that wants it.
    audit: AuditFact = NOT_AUDITED


def fresh_workers(facts: Facts, now: datetime) -> Workers | Unknown:
    """The workers, or Unknown when the look is too old."""
    return _too_old("the workers", facts.workers.observed_at, now) or facts.workers


def fresh_broker(facts: Facts, identity: str, now: datetime) -> BrokerCheck | Unknown:
    """The check of the broker with that identity, or Unknown when it is too old or about another broker."""
    check = facts.broker
    if isinstance(check, BrokerCheck) and check.identity != identity:
        return Unknown("the broker in the spec has not been checked yet", check.observed_at)
    return _too_old("the broker", check.observed_at, now) or check


def fresh_queue(facts: Facts, identity: str, now: datetime) -> QueueFacts | Unknown:
    """The reading of the queue, or Unknown when it is too old or about another broker."""
    queue = facts.queue
    if isinstance(queue, QueueFacts) and queue.identity != identity:
        return Unknown("the queue has not been read on the broker in the spec yet", queue.observed_at)
    return _too_old("the queue", queue.observed_at, now) or queue


def _too_old(what: str, observed_at: datetime, now: datetime) -> Unknown | None:
    if now - observed_at <= FRESH:
        return None
    return Unknown(f"{what} could not be observed in the last {FRESH.seconds} seconds", observed_at)
