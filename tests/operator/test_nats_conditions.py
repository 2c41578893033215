"""What conditions and events say of a queue on JetStream, and when the last older worker may go."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

import pytest

from queueworker_operator.api.reasons import ConditionReason as R
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.observe.priority import since
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import (
    BrokerCheck,
    BrokerVerdict,
    Facts,
    NoPriority,
    Priority,
    PriorityWork,
    Unknown,
    Workers,
)
from queueworker_operator.plan.guards import Fail, Pass, Wait
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.priority import priority_guard
from tests.operator.resources import (
    START,
    after,
    broker,
    facts,
    invalid,
    queue,
    seen,
    target_of,
    template,
    worker,
)

NATS = {"nats": {"url": "nats://nats:4222"}}


def mails(image: str = "demo:v1", **changes: object) -> QueueWorker:
    return worker(spec__broker=NATS, spec__template=template(image), **changes)


def priority(
    pending: int = 0,
    unacknowledged: int = 0,
    stored: int = 0,
    *,
    at: float = 0.0,
    empty_since: float | None = None,
    last: int = 9,
    stream: int = 9,
    published: float | None = None,
    consumed: bool = True,
) -> PriorityWork:
    stuck = max(0, stored - pending - unacknowledged) if consumed else 0
    empty = not (pending or unacknowledged or stored)
    began = at if empty and empty_since is None else empty_since
    return PriorityWork(
        subject="q.mails.priority",
        pending=pending,
        unacknowledged=unacknowledged,
        stored=stored,
        stuck=stuck,
        last_sequence=last,
        stream_sequence=stream,
        published_at=None if published is None else after(published),
        ack_wait=timedelta(seconds=30),
        consumed=consumed,
        observed_at=after(at),
        empty_since=None if began is None else after(began),
    )


#: What was found -> what the guard answers, and a part of what it says.
GUARDS: list[tuple[str, Priority, object, str]] = [
    ("a broker without such a subject", NoPriority(), Pass, ""),
    ("nobody could look", Unknown("nobody looked", START), Unknown, "nobody looked"),
    ("one waits", priority(1, 0, 1), R.PRIORITY_LEFT, "keep a worker of utopia-php/queue 4"),
    ("one is in work", priority(0, 1, 1), R.PRIORITY_LEFT, "keep a worker"),
    ("one is in work, and was deleted from the stream", priority(0, 1, 0), R.PRIORITY_LEFT, "keep a worker"),
    ("one was handed out too often", priority(1, 0, 2), R.PRIORITY_STUCK, "nobody will be given"),
    (
        "stored, and older workers never started",
        priority(2, 0, 2, consumed=False),
        R.PRIORITY_LEFT,
        "no consumer",
    ),
    ("empty at the first look", priority(), R.PRIORITY_QUIET, "longer than the ack wait of 30 s"),
    ("empty for the ack wait, not longer", priority(at=30, empty_since=0), R.PRIORITY_QUIET, ""),
    ("empty for longer than the ack wait", priority(at=31, empty_since=0), Pass, ""),
    ("empty, and older workers never started", priority(consumed=False), Pass, ""),
    (
        "somebody published at the last look, and it is done",
        priority(at=40, empty_since=40, published=40),
        R.PRODUCERS_PUBLISH,
        "publish to q.mails.normal",
    ),
    (
        "somebody published not longer than the ack wait ago",
        priority(1, 0, 1, at=40, published=10),
        R.PRODUCERS_PUBLISH,
        "undo the change",
    ),
    ("nobody published since, and work is left", priority(1, 0, 1, at=41, published=10), R.PRIORITY_LEFT, ""),
]


@pytest.mark.parametrize(
    ("found", "answer", "part"), [row[1:] for row in GUARDS], ids=[row[0] for row in GUARDS]
)
def test_the_guard_of_the_last_older_worker(found: Priority, answer: object, part: str) -> None:
    guard = priority_guard(found)
    if isinstance(guard, (Wait, Fail)):
        assert guard.reason is answer
        assert part in guard.message
    else:
        assert type(guard) is answer
        assert part in getattr(guard, "reason", "")


@pytest.mark.parametrize(
    ("found", "quiet", "started", "passes"),
    [
        (priority(at=100, empty_since=0), 0, 69, True),
        (priority(at=100, empty_since=0), 0, 70, False),
        (priority(at=100, empty_since=0), 0, 101, False),
        (priority(at=100, empty_since=50), 50, 0, False),
        (priority(at=101, empty_since=50), 50, 0, True),
        (priority(at=100, consumed=False, empty_since=0), 5, 96, False),
        (priority(at=100, consumed=False, empty_since=0), 50, 40, True),
    ],
    ids=[
        "started long ago",
        "started an ack wait ago",
        "started after the look",
        "not for as long as the spec asks",
        "for as long as the spec asks",
        "it may make its consumer yet",
        "it never made one",
    ],
)
def test_what_was_seen_before_an_older_worker_started_proves_nothing(
    found: PriorityWork, quiet: int, started: int, passes: bool
) -> None:
    guard = priority_guard(found, timedelta(seconds=quiet), after(started))
    assert isinstance(guard, Pass) is passes
    if not passes:
        assert isinstance(guard, Wait)
        assert guard.reason is R.PRIORITY_QUIET


@pytest.mark.parametrize(
    ("before", "found", "expected"),
    [
        (priority(4, 1, 5, last=3), priority(2, 1, 3, at=9, last=5), None),
        (priority(4, 1, 5, last=3), priority(5, 1, 6, at=9, last=3, stream=10), 9),
        (priority(), priority(at=9, last=10, stream=10), 9),
        (priority(published=0), priority(at=9), 0),
        (Unknown("nobody looked", START), priority(1, 0, 1, at=9), None),
    ],
    ids=["work gets less", "there is more", "it came and went", "remembered", "nothing to compare with"],
)
def test_whether_somebody_published(before: Priority, found: Priority, expected: float | None) -> None:
    known = since(before, found)
    assert isinstance(known, PriorityWork)
    assert known.published_at == (None if expected is None else after(expected))


@pytest.mark.parametrize(
    ("before", "found", "expected"),
    [
        (None, priority(at=40), 40),
        (priority(at=0), priority(at=40), 0),
        (priority(1, 0, 1), priority(at=40), 40),
        (priority(at=0), priority(1, 0, 1, at=40), None),
        (priority(at=0, last=8), priority(at=40), 40),
        (priority(at=0, consumed=False), priority(at=40), 40),
        (Unknown("nobody looked", START), priority(at=40), 40),
    ],
    ids=["first", "still", "emptied", "filled", "came and went", "a worker began", "unseen between"],
)
def test_since_when_nothing_is_there(
    before: Priority | None, found: Priority, expected: float | None
) -> None:
    known = since(before, found)
    assert isinstance(known, PriorityWork)
    assert known.empty_since == (None if expected is None else after(expected))


def found(resource: QueueWorker, **changes: object) -> BrokerCheck:
    check = broker(resource, BrokerVerdict.REACHABLE, "")
    return dataclasses.replace(check, **changes)  # type: ignore[arg-type]


def conditions(
    resource: QueueWorker, check: BrokerCheck | Unknown, now: datetime = START
) -> dict[str, tuple[str, str, str]]:
    there = Workers((seen(target_of(resource), 2),), now)
    status = plan(resource, Facts(there, check, queue(resource, now=now)), now).status
    return {c.type: (c.status, c.reason, c.message) for c in status.conditions}


def test_a_queue_that_is_as_it_should_be() -> None:
    said = conditions(mails(), found(mails(), priority=priority(at=31, empty_since=0)))
    assert said["QueueProvisioned"][:2] == ("True", R.PROVISIONED)
    assert said["PriorityDrained"][:2] == ("True", R.PRIORITY_EMPTY)
    assert said["PlacementValid"][:2] == ("True", R.NOT_CLUSTERED)
    assert "Stalled" not in said


def test_a_queue_that_differs_is_told_and_stops_nothing() -> None:
    said = conditions(mails(), found(mails(), differs="ack wait 30 s, not 60 s.", priority=priority(1, 0, 1)))
    assert said["QueueProvisioned"] == ("False", R.PROVISIONED_DIFFERENTLY, "ack wait 30 s, not 60 s.")
    assert said["PriorityDrained"][:2] == ("False", R.PRIORITY_LEFT)
    assert "Stalled" not in said
    created = plan(mails(), facts(mails(), check=found(mails(), differs="x")), START)
    assert any(isinstance(action, act.ApplyRevision) for action in created.actions)


@pytest.mark.parametrize("verdict", [BrokerVerdict.QUEUE_NOT_PROVISIONED, BrokerVerdict.QUEUE_UNUSABLE])
def test_a_queue_that_is_missing_or_strange_stops_new_workers_and_is_told_once(
    verdict: BrokerVerdict,
) -> None:
    check = broker(mails(), verdict, "No stream Q_MAILS: make it.")
    said = conditions(mails(), check)
    assert said["QueueProvisioned"] == ("False", verdict.value, "No stream Q_MAILS: make it.")
    assert said["BrokerReachable"][:2] == ("True", R.REACHABLE)
    assert said["PriorityDrained"][:2] == ("Unknown", R.NOT_PROBED)
    assert said["Stalled"][1] == verdict.value
    first = plan(mails(), facts(mails(), check=check), START)
    assert not any(isinstance(action, act.ApplyRevision) for action in first.actions)
    posted = [a.reason.value for a in first.actions if isinstance(a, act.EmitEvent)]
    assert posted == [verdict.value]
    again = plan(dataclasses.replace(mails(), status=first.status), facts(mails(), check=check), after(9))
    assert not any(isinstance(action, act.EmitEvent) for action in again.actions)


def test_what_nobody_could_see_is_unknown() -> None:
    for check in (Unknown("nobody looked", START), found(mails(), observed_at=after(-16))):
        said = conditions(mails(), check)
        assert said["QueueProvisioned"][:2] == ("Unknown", R.NOT_PROBED)
        assert said["PriorityDrained"][:2] == ("Unknown", R.NOT_PROBED)
    away = conditions(mails(), broker(mails(), BrokerVerdict.CONNECTION_FAILED, "nats:4222 refused."))
    assert away["QueueProvisioned"][:2] == ("Unknown", R.NOT_PROBED)
    unread = found(mails(), priority=Unknown("may not be read", START))
    assert conditions(mails(), unread)["PriorityDrained"] == ("Unknown", R.NOT_PROBED, "may not be read.")


def test_the_end_of_a_resource_says_what_is_left_as_before() -> None:
    ends = mails(metadata__deletionTimestamp="2026-01-01T00:00:00Z")
    said = conditions(ends, found(ends, priority=priority(1, 0, 1)))
    assert said["PriorityDrained"][:2] == ("False", R.PRIORITY_LEFT)


def test_a_redis_has_neither_condition() -> None:
    said = conditions(worker(), found(worker()))
    assert not {"QueueProvisioned", "PriorityDrained"} & set(said)


def test_an_invalid_spec_keeps_what_was_known() -> None:
    before = plan(mails(), facts(mails(), check=found(mails(), priority=priority())), START).status
    bad = dataclasses.replace(invalid(spec__broker=NATS, spec__prefetch=1), status=before)
    after_edit = plan(
        bad, Facts(Workers((), START), Unknown("not asked", START), Unknown("not asked", START)), START
    ).status
    assert after_edit.condition("QueueProvisioned") == before.condition("QueueProvisioned")


def test_how_the_queue_is_made_is_no_part_of_a_version() -> None:
    def version(**more: object) -> str:
        return target_of(worker(spec__broker={"nats": NATS["nats"] | more})).version

    assert version(stream={"replicas": 3}) == version()
    assert version(credentials={"token": {"name": "s"}}) != version()
