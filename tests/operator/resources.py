"""Resources, facts and times for the tests of the planner."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from queueworker_operator.api.names import FINALIZER, GROUP_VERSION, KIND
from queueworker_operator.api.parse import parse
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.revisions import Revision, broker_identity, broker_place, revision_of
from queueworker_operator.api.types import (
    InvalidQueueWorker,
    Protocol,
    QueueWorker,
    QueueWorkerStatus,
    RolloutStatus,
    StableStatus,
)
from queueworker_operator.plan.facts import (
    BrokerCheck,
    BrokerVerdict,
    Facts,
    PriorityWork,
    QueueFacts,
    RevisionFacts,
    Unknown,
    Workers,
)
from queueworker_operator.plan.queue_facts import LiveWorkers

START = datetime(2026, 1, 1, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def body(name: str = "stats-usage", **changes: Any) -> dict[str, Any]:
    """A valid resource. A change is a dotted path with `__` for dots: spec__replicas=3; None removes."""
    resource: dict[str, Any] = {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": "workers",
            "uid": "u1",
            "generation": 1,
            "finalizers": [FINALIZER],
        },
        "spec": {
            "queue": {"name": "stats-usage"},
            "broker": {"redis": {"url": "redis://redis:6379/0"}},
            "replicas": 2,
            "coroutines": 4,
            "prefetch": 100,
            "minReadySeconds": 0,
            "template": {"spec": {"containers": [{"name": "worker", "image": "demo:v1"}]}},
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = resource
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = copy.deepcopy(value)
    return resource


def template(image: str, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", "image": image}], **spec}}


def worker(**changes: Any) -> QueueWorker:
    parsed = parse(body(**changes))
    assert isinstance(parsed, QueueWorker), parsed
    return parsed


def invalid(**changes: Any) -> InvalidQueueWorker:
    parsed = parse(body(**changes))
    assert isinstance(parsed, InvalidQueueWorker), parsed
    return parsed


def target_of(resource: QueueWorker) -> Revision:
    return revision_of(resource.metadata.name, resource.spec)


def image_revision(image: str, **changes: Any) -> Revision:
    return target_of(worker(spec__template=template(image), **changes))


def seen(
    revision: Revision,
    desired: int,
    available: int | None = None,
    alive: int | None = None,
    created: float = 0.0,
    **more: Any,
) -> RevisionFacts:
    """A revision that exists; every worker that is wanted is available unless said otherwise."""
    available = desired if available is None else available
    return RevisionFacts(
        name=revision.name,
        version=revision.version,
        prefetch=revision.prefetch,
        deployment=revision.deployment,
        desired=desired,
        ready=available,
        available=available,
        alive=max(desired, available) if alive is None else alive,
        created=created,
        protocol=revision.protocol,
        broker=broker_place(revision.broker),
        **more,
    )


def reachable(resource: QueueWorker, now: datetime = START) -> BrokerCheck:
    return broker(resource, BrokerVerdict.REACHABLE, "", now)


def broker(resource: QueueWorker, verdict: BrokerVerdict, message: str, now: datetime = START) -> BrokerCheck:
    return BrokerCheck(verdict, message, now, broker_identity(resource.spec.broker))


def priority_work(left: int, empty_since: datetime, now: datetime = START, **changes: Any) -> PriorityWork:
    """`left` messages wait on the priority subject; where none do, none did since then."""
    content: dict[str, Any] = {
        "subject": "q.stats-usage.priority",
        "pending": left,
        "unacknowledged": 0,
        "stored": left,
        "stuck": 0,
        "last_sequence": 7,
        "stream_sequence": 9,
        "ack_wait": timedelta(seconds=30),
        "consumed": True,
        "observed_at": now,
        "empty_since": None if left else empty_since,
    }
    return PriorityWork(**(content | changes))


def queue(
    resource: QueueWorker, *revisions: RevisionFacts, now: datetime = START, **changes: Any
) -> QueueFacts:
    """A reading of an empty queue on which every available worker has announced itself."""
    live = {
        r.name: LiveWorkers(capable=r.available, receiving=r.available)
        for r in revisions
        if r.protocol is Protocol.RESERVATION and r.available
    }
    content: dict[str, Any] = {
        "observed_at": now,
        "identity": broker_identity(resource.spec.broker),
        "has_registry": True,
        "primary": True,
        "staging": 0,
        "reserved": 0,
        "owned": 0,
        "delayed": 0,
        "live": live,
        "quiet_since": now - timedelta(seconds=600),
    }
    return QueueFacts(**(content | changes))


def facts(
    resource: QueueWorker,
    *revisions: RevisionFacts,
    check: BrokerCheck | Unknown | None = None,
    reading: QueueFacts | Unknown | None = None,
    now: datetime = START,
    **more: Any,
) -> Facts:
    return Facts(
        Workers(revisions, now, **more),
        check or reachable(resource, now),
        reading or queue(resource, *revisions, now=now),
    )


def stable_status(revision: Revision, **more: Any) -> QueueWorkerStatus:
    stable = StableStatus(
        revision=revision.name,
        version=revision.version,
        deployment=revision.deployment,
        prefetch=revision.prefetch,
    )
    return QueueWorkerStatus(stable=stable, **more)


#: A worker that speaks an older protocol.
OLD = image_revision("demo:old", spec__protocol="Legacy")
V1, V2, V3 = (image_revision(f"demo:v{n}") for n in (1, 2, 3))
GONE = {"metadata__deletionTimestamp": "2026-01-01T00:00:00Z"}


def wants(image: str, replicas: int, status: QueueWorkerStatus | None = None, **more: object) -> QueueWorker:
    changes = {"spec__template": template(image), "spec__replicas": replicas, **more}
    if status is not None:
        changes["status"] = status.to_body()
    return worker(**changes)


def on(stable: str, target: str | None = None, stage: Stage = Stage.PROMOTING) -> QueueWorkerStatus:
    """A previous status: that revision is stable; with a target, the change to it is under way."""
    revisions = {"v1": V1, "v2": V2, "v3": V3, "old": OLD}
    rollout = RolloutStatus(target=(revisions[target or stable]).name, stage=stage if target else Stage.IDLE)
    return stable_status(revisions[stable], rollout=rollout)


ANY = worker()


def down(resource: QueueWorker, *revisions: object) -> Facts:
    check = broker(resource, BrokerVerdict.CONNECTION_FAILED, "redis:6379 refused the connection.")
    return facts(resource, *revisions, check=check)  # type: ignore[arg-type]


NOBODY_LOOKED = Unknown("nobody looked", START)

FIRST = wants("demo:v1", 3, metadata__finalizers=[])
ROLL = wants("demo:v2", 4, on("v1"))
MID = wants("demo:v2", 4, on("v1", "v2"))
MID_3 = wants("demo:v3", 4, on("v1", "v2"))
BACK = wants("demo:v1", 4, on("v1", "v2"))
IDLE = wants("demo:v1", 4, on("v1"))
