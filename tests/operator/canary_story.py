"""A canary, pass by pass: what a test asks of one, and what the world makes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.audit import NOT_AUDITED, AuditFact
from queueworker_operator.plan.facts import RevisionFacts, Unknown
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import Books, LiveWorkers, NoBooks, QueueFacts
from queueworker_operator.plan.samples import NOT_SAMPLED, NotSampled, Samples
from tests.operator.plan_words import steps
from tests.operator.resources import START, V1, after, facts, image_revision, on, queue, seen, wants

ONE: dict[str, Any] = {"setCanaryScale": {"replicas": 1}}
HALF: dict[str, Any] = {"setCanaryScale": {"percent": 50}}
PAUSE: dict[str, Any] = {"pause": {}}
MINUTE: dict[str, Any] = {"pause": {"durationSeconds": 60}}


def arm(prefetch: int) -> dict[str, Any]:
    return {"setPrefetch": prefetch}


P4, P8 = (image_revision("demo:v2", spec__prefetch=n) for n in (4, 8))
ARMS = (ONE, arm(4), MINUTE, arm(8), MINUTE, arm(100), HALF, PAUSE)


def canary(
    status: QueueWorkerStatus,
    *changes: dict[str, Any],
    image: str = "demo:v2",
    replicas: int = 4,
    **more: Any,
) -> QueueWorker:
    rollout = {"strategy": "Canary", "steps": list(changes or ARMS)}
    return wants(image, replicas, status, spec__rollout=rollout, **more)


class Story:
    """One QueueWorker, pass by pass. The world does at once what is asked, unless a test says otherwise."""

    def __init__(self, resource: QueueWorker, *revisions: RevisionFacts) -> None:
        self.resource = resource
        self.revisions = {r.name: r for r in revisions}
        self.fences: dict[str, str] = {}
        self.now: datetime = START
        self.events: list[str] = []
        #: Keys of events: one that is known is not posted again.
        self.posted: set[tuple[str, str]] = set()
        self.most = 0
        #: Workers of these never get available.
        self.broken: set[str] = set()
        self.books: Books | NoBooks = NoBooks()
        self.samples: Samples | Unknown | NotSampled = NOT_SAMPLED
        self.watched_since: datetime = START
        self.killed: list[str] = []
        self.audit: AuditFact = NOT_AUDITED
        #: Who counts totals, by name.
        self.audits: dict[str, act.StartAudit] = {}

    @property
    def status(self) -> QueueWorkerStatus:
        return self.resource.status

    @property
    def stage(self) -> Stage:
        assert self.status.rollout is not None
        return self.status.rollout.stage

    @property
    def step(self) -> str | None:
        assert self.status.rollout is not None
        return self.status.rollout.step

    def asks(self, **changes: Any) -> None:
        self.resource = replace(self.resource, **changes)

    def wants(self, resource: QueueWorker) -> None:
        self.resource = replace(resource, status=self.status)

    def wait(self, seconds: float) -> None:
        self.now = after((self.now - START).total_seconds() + seconds)

    def look(self, reading: QueueFacts | Unknown | None = None) -> list[str]:
        """One pass; what was done, in words."""
        self.wait(2)
        rows = tuple(self.revisions.values())
        live = {r.name: LiveWorkers(r.available, 0 if r.name in self.fences else r.available) for r in rows}
        read = queue(
            self.resource,
            *rows,
            now=self.now,
            fences=dict(self.fences),
            live=live,
            books=self.books,
            watched_since=self.watched_since,
        )
        found = facts(self.resource, *rows, reading=reading or read, now=self.now)
        decided = plan(self.resource, replace(found, samples=self.samples, audit=self.audit), self.now)
        for action in decided.actions:
            self.do(action)
        self.resource = replace(self.resource, status=decided.status)
        self.most = max(self.most, sum(r.desired for r in self.revisions.values()))
        return steps(decided)

    def do(self, action: act.Action) -> None:
        match action:
            case act.ApplyRevision(revision, number):
                self.made(revision, number)
            case act.ScaleRevision(name, _, number):
                self.sized(name, number)
            case act.RetireRevision(name, _):
                self.sized(name, 0)
            case act.DeleteRevision(name, _):
                del self.revisions[name]
            case act.FenceRevision(name, reason):
                self.fences[name] = reason
            case act.UnfenceRevision(name):
                del self.fences[name]
            case act.KillWorker(name, _):
                self.killed.append(name)
            case act.StartAudit(name):
                self.audits.setdefault(name, action)
            case act.RemoveAudit(name):
                self.audits.pop(name, None)
            case act.EmitEvent(reason, key=key) if (reason.value, key) not in self.posted:
                self.posted.add((reason.value, key))
                self.events.append(reason.value)

    def made(self, revision: Revision, number: int) -> None:
        available = 0 if revision.name in self.broken else number
        self.revisions[revision.name] = seen(revision, number, available, created=float(len(self.revisions)))

    def sized(self, name: str, number: int) -> None:
        available = 0 if name in self.broken else number
        r = self.revisions[name]
        self.revisions[name] = replace(r, desired=number, available=available, ready=available, alive=number)

    def until(self, stage: Stage, step: str | None = None) -> list[str]:
        """Look until it stands there; everything that was done."""
        done: list[str] = []
        for _ in range(40):
            done += self.look()
            if self.stage is stage and (step is None or self.step == step):
                return done
        raise AssertionError(f"{stage} {step} was not reached, but {self.stage} {self.step}: {done}")

    def said(self) -> tuple[str, str]:
        """The condition Ready: status and reason."""
        ready = self.status.condition("Ready")
        assert ready is not None
        return ready.status, ready.reason

    def numbers(self) -> dict[str, int]:
        return {name: r.desired for name, r in self.revisions.items()}


def begin(*changes: dict[str, Any], **more: Any) -> Story:
    return Story(canary(on("v1"), *changes, **more), seen(V1, more.get("replicas", 4)))
