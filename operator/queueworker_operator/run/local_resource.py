"""One QueueWorker in local mode: what an API server would keep of it, and its passes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import aiohttp

from queueworker_operator.act.audit_processes import LocalAudits
from queueworker_operator.act.broker import act_on_broker
from queueworker_operator.act.launch import TemplateRefusedError
from queueworker_operator.act.processes import Host, ProcessGroup
from queueworker_operator.api.kept import Kept, to_kept
from queueworker_operator.api.names import FINALIZER
from queueworker_operator.api.parse import parse_change
from queueworker_operator.api.revisions import Revision, broker_place, revision_of
from queueworker_operator.api.rollout import Strategy
from queueworker_operator.api.sentences import inside
from queueworker_operator.api.types import (
    Broker,
    InvalidQueueWorker,
    Problem,
    QueueWorker,
    QueueWorkerSpec,
    QueueWorkerStatus,
)
from queueworker_operator.observe.access import Access
from queueworker_operator.observe.priority import watches_closely
from queueworker_operator.observe.processes import metrics_of, observe_processes
from queueworker_operator.observe.queues import QueueReadings
from queueworker_operator.observe.samples import WorkerSamples
from queueworker_operator.plan.actions import (
    Action,
    AdoptRevision,
    ApplyRevision,
    BrokerAction,
    DeleteRevision,
    EmitEvent,
    EnsureFinalizer,
    FenceRevision,
    ForgetRevision,
    KeepRevision,
    KillWorker,
    OrphanRevision,
    PromoteDelayed,
    RecoverWork,
    RemoveAudit,
    RemoveFinalizer,
    RetireRevision,
    ReturnStaged,
    ScaleRevision,
    StartAudit,
    UnfenceRevision,
    WriteStatus,
    still_told,
)
from queueworker_operator.plan.facts import Facts, QueueFacts, Refusal, Unknown
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.samples import NotSampled, Samples
from queueworker_operator.run.local_broker import BrokerWatch, Located, Location
from queueworker_operator.run.local_file import Document, with_values
from queueworker_operator.run.local_memory import Remembered
from queueworker_operator.run.local_told import Event, Told, processes_of
from worker_runtime.brokers.base import BrokerError


class LocalResource:
    """A QueueWorker of the file, its workers and its status. It ends when `gone` is true."""

    def __init__(
        self,
        name: str,
        host: Host,
        clock: Callable[[], datetime],
        before: Remembered | None = None,
        groups: Mapping[str, ProcessGroup] | None = None,
        kept: Mapping[str, Kept] | None = None,
    ) -> None:
        """`before` is what an earlier run left; it counts where the change goes in steps. `groups` are
        workers that lived on when a resource of this name was deleted, `kept` revisions that served once."""
        self.name, self._host, self._clock, self._before = name, host, clock, before
        self.gone = False
        self.generation = 0
        self.status = QueueWorkerStatus()
        self._told = Told(name, host.say)
        self.groups: dict[str, ProcessGroup] = dict(groups or {})
        #: Those that live on without this resource.
        self.orphans: dict[str, ProcessGroup] = {}
        self.left_work = 0
        self.broker = BrokerWatch(clock, host.wake)
        self._queues, self._samples = QueueReadings(clock), WorkerSamples(clock)
        self._audits = LocalAudits(host, clock)
        #: Why the last action on the broker failed, until one succeeds.
        self._broker_failed = ""
        self._uid = str(uuid.uuid4())
        self._finalizers: tuple[str, ...] = ()
        self._deleted_at: datetime | None = None
        self._asked: QueueWorker | InvalidQueueWorker | None = None
        self._accepted: QueueWorker | None = None
        self._secrets: Mapping[str, Mapping[str, str]] = {}
        self._location: Location | None = None
        self._located: Located | None = None
        #: Where each broker was found that revisions consume from, by `broker_place`.
        self._found: dict[str, Located] = {}
        self._refusals: dict[str, str] = {}
        #: By revision: those that served and can be gone back to.
        self._kept: dict[str, Kept] = dict(kept or {})

    # -- what the file says --------------------------------------------------------------------------

    @property
    def deleting(self) -> bool:
        return self._deleted_at is not None

    @property
    def accepted(self) -> QueueWorker | None:
        """The last version of the resource that keeps every rule."""
        return self._accepted

    @property
    def broker_url(self) -> str:
        return self._located.url if self._located else ""

    @property
    def location(self) -> Location | None:
        return self._location

    def ask(self, document: Document, secrets: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
        """Take a document of the file. Returns the complaints about it, each once."""
        self._secrets = secrets
        parsed = document.parsed
        if isinstance(parsed, QueueWorker) and self._accepted is not None:
            parsed = parse_change(self._accepted, document.body)
            if isinstance(parsed, InvalidQueueWorker):
                parsed = with_values(parsed, document.body)
        return self._take(parsed, document.where)

    def refuse(self, where: str, text: str) -> tuple[str, ...]:
        """The file as a whole cannot be used: keep what runs and say why."""
        if self._asked is None:
            return ()
        return self._take(
            InvalidQueueWorker(self._asked.metadata, self.status, (Problem("", inside(text)),)), where
        )

    def delete(self) -> None:
        """The document is gone from the file: drain and let go."""
        if self._deleted_at is None:
            self._deleted_at = self._clock()
            # What could not be used in the end was never in force.
            self._asked = self._accepted or self._asked

    def reconsider(self, document: Document) -> None:
        """The document is back while its resource is still going: its word on the deletion counts."""
        parsed, asked = document.parsed, self._asked
        if isinstance(parsed, QueueWorker) and isinstance(asked, QueueWorker):
            self._asked = replace(
                asked, spec=asked.spec.model_copy(update={"deletion": parsed.spec.deletion})
            )

    def _take(self, parsed: QueueWorker | InvalidQueueWorker, where: str) -> tuple[str, ...]:
        if _content(parsed) == _content(self._asked):
            self._asked = parsed
            return ()
        self._asked = parsed
        self.generation += 1
        self._refusals.clear()
        if isinstance(parsed, QueueWorker):
            self._accepted = parsed
            return ()
        return tuple(
            f"{where}: {problem}" if problem.path else problem.message for problem in parsed.problems
        )

    # -- passes ------------------------------------------------------------------------------------

    def found(self, broker: Broker) -> Located | None:
        """Where this broker was found before; None where it was not."""
        return self._found.get(broker_place(broker))

    def knows(self, broker: Broker, located: Located) -> None:
        """Workers of revisions that consume from this broker find it there."""
        self._found[broker_place(broker)] = located

    async def use_broker(self, location: Location) -> None:
        """Workers that start from now on use this broker."""
        self._location = location
        if isinstance(location, Located):
            self._located = location
        if self._accepted is not None:
            await self.broker.ask(self._accepted.spec, location)
            if isinstance(location, Located):
                self.knows(self._accepted.spec.broker, location)
        if self._located is not None:
            self._resume()

    @property
    def served_before(self) -> QueueWorkerSpec | None:
        """What leads to the revision that an earlier run left stable, where it has to be started again: the
        file asks for another one, in steps, or one that a request took back or gave up."""
        before, accepted = self._before, self._accepted
        if before is None or accepted is None:
            return None
        spec, status, asked = accepted.spec, before.status, revision_of(self.name, accepted.spec).name
        taken_back = status.rolled_back is not None and status.rolled_back.asked == asked
        if before.stable.name == asked and not taken_back:
            return None
        if spec.strategy is Strategy.ROLLING and status.rolled_back is None and status.aborted != asked:
            return None
        kept = QueueWorkerSpec.model_validate(before.spec)
        return kept if kept.queue == spec.queue else None

    def _resume(self) -> None:
        """Start what served, and go on where the steps were: that `up` ended is no reason to skip them."""
        kept = self.served_before
        before, self._before = self._before, None
        if before is None or kept is None or self._accepted is None:
            return
        if self.found(kept.broker) is None:
            self._host.say(
                self.name,
                f"{before.stable.name} served before, and is not started again: the file does not say where "
                "its broker is",
            )
            return
        self.status = before.status
        self.generation += before.generation
        if self._apply(before.stable, self._accepted.spec.replicas):
            self.groups[before.stable.deployment].spec = before.spec
            self._host.say(self.name, f"{before.stable.name} served before and is started again")

    async def step(self, session: aiohttp.ClientSession, shared: frozenset[str] = frozenset()) -> None:
        """One pass: observe, plan, act, one write of the status. `shared` are revisions that another
        resource has workers of, on the same queue."""
        assert self._asked is not None
        refusals = [Refusal(name, message) for name, message in self._refusals.items()]
        workers = await observe_processes(
            self.groups.values(), refusals, session, self._clock(), self._asked.min_ready
        )
        workers = replace(workers, kept=tuple(self._kept.values()))
        metadata = self._asked.metadata.model_copy(
            update={
                "uid": self._uid,
                "generation": self.generation,
                "finalizers": self._finalizers,
                "deletion_timestamp": self._deleted_at,
            }
        )
        resource = replace(self._asked, metadata=metadata, status=self.status)
        self.broker.closely = isinstance(resource, QueueWorker) and watches_closely(resource)
        facts = Facts(
            workers,
            self.broker.answer,
            await self._queue(),
            shared,
            await self._sampled(),
            await self._audits.latest(resource, self._secrets),
        )
        left = list(plan(resource, facts, self._clock()).actions)
        try:
            while left:
                await self._act(left.pop(0))
        except BrokerError as error:
            for action in still_told(left):
                await self._act(action)
            if str(error) != self._broker_failed:
                self._host.say(self.name, f"{inside(error)}; the step is tried again")
            self._broker_failed = str(error)
        if self.deleting and not self._finalizers and not any(g.workers for g in self.groups.values()):
            self.gone = True
            self.broker.stop()
            await self._hang_up()
            self._host.say(self.name, "is gone")

    async def _queue(self) -> QueueFacts | Unknown:
        if self._located is None or self._accepted is None:
            return Unknown("the broker has not been found yet", self._clock())
        return await self._queues.latest(Access(self._located.url), self._accepted.spec)

    async def _sampled(self) -> Samples | Unknown | NotSampled:
        places = {group.revision.name: metrics_of(group) for group in self.groups.values()}
        queue = self._accepted.spec.queue.name if self._accepted else ""
        return await self._samples.latest(self.name, self.status, queue, places)

    async def _on_the_broker(self, action: BrokerAction) -> None:
        """Raises BrokerError."""
        if self._located is not None and self._accepted is not None:
            await act_on_broker(Access(self._located.url), self._accepted.spec, action)
            self._broker_failed = ""

    async def _act(self, action: Action) -> None:
        match action:
            case EnsureFinalizer():
                self._finalizers = (FINALIZER,)
            case RemoveFinalizer():
                self._finalizers = ()
            case ApplyRevision(revision, replicas):
                if not self._apply(revision, replicas):
                    return
            case OrphanRevision(_, deployment):
                self.orphans[deployment] = self.groups.pop(deployment)
            case ScaleRevision(_, deployment, replicas):
                self.groups[deployment].scale(replicas)
            case KillWorker(_, deployment):
                self.groups[deployment].kill_one()
            case StartAudit():
                self._start_audit(action)
            case RemoveAudit(name):
                await self._audits.remove(name)
            case RetireRevision(_, deployment):
                self.groups[deployment].scale(0)
            case DeleteRevision(_, deployment):
                group = self.groups.pop(deployment, None)
                self.left_work += group.left_work if group else 0
            case FenceRevision() | UnfenceRevision() | RecoverWork() | ReturnStaged() | PromoteDelayed():
                await self._on_the_broker(action)
            case KeepRevision(revision, number, spec):
                self._kept[revision.name] = Kept(revision, number, spec)
            case ForgetRevision(name, _):
                self._kept.pop(name, None)
            case AdoptRevision():
                pass  # a group of processes is ours or does not exist
            case EmitEvent(reason, type_, message, key):
                self._told.post(Event(reason.value, type_, message), key)
                return
            case WriteStatus(status):
                self._write(status)
                return
        self._host.wake()

    def _apply(self, revision: Revision, replicas: int) -> bool:
        group = self.groups.get(revision.deployment)
        if group is None:
            # Another broker than the file names, where it is started for what came before the file.
            place = self.found(revision.broker)
            try:
                group = ProcessGroup(
                    revision,
                    place.url if place else self.broker_url,
                    self._secrets,
                    self._asked.metadata.namespace or "default" if self._asked else "default",
                    self._clock().timestamp(),
                    self._host,
                )
            except TemplateRefusedError as refusal:
                self._refusals[revision.name] = str(refusal)
                return False
            self.groups[revision.deployment] = group
            if self._accepted is not None:
                kept = self._kept.get(revision.name)
                group.spec = kept.spec if kept else to_kept(self._accepted.spec, revision)
        self._refusals.pop(revision.name, None)
        group.scale(replicas)
        return True

    def _start_audit(self, action: StartAudit) -> None:
        assert self._accepted is not None, "only an accepted resource is analysed"
        told = {
            "QUEUEWORKER_BROKER_URL": self.broker_url,
            "QUEUEWORKER_NAMESPACE": self._accepted.spec.broker.namespace,
        }
        namespace = self._accepted.metadata.namespace or "default"
        self._audits.start(replace(action, variables={**told, **action.variables}), self._secrets, namespace)

    def _write(self, status: QueueWorkerStatus) -> None:
        self._told.conditions(self.status, status)
        self.status = status

    # -- the end -----------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Stop every worker: SIGTERM, their time, then SIGKILL."""
        self.broker.stop()
        await self._hang_up()
        for group in self.groups.values():
            group.scale(0)
        await asyncio.gather(*(group.ended() for group in self.groups.values()))

    async def _hang_up(self) -> None:
        await self._queues.close()
        await self._samples.close()
        await self._audits.close()

    def kill(self) -> None:
        """End every worker at once."""
        for group in self.groups.values():
            group.kill()

    @property
    def all_left_work(self) -> int:
        """Workers that were killed at their deadline, or that said that they left work."""
        return self.left_work + sum(group.left_work for group in self.groups.values())

    def processes(self) -> list[dict[str, Any]]:
        """Every process that runs, for up.json."""
        return processes_of(self.groups.values())

    def works_beside(self, other: LocalResource) -> frozenset[str]:
        """Revisions that it has workers of on the queue of another resource."""
        mine, its = self._accepted, other._accepted
        same = self is not other and mine is not None and its is not None and not self.deleting
        if not same or self.broker_url != other.broker_url:
            return frozenset()
        if mine and its and mine.spec.queue != its.spec.queue:
            return frozenset()
        return frozenset(group.revision.name for group in self.groups.values() if group.desired)

    def _stable_spec(self) -> Mapping[str, Any] | None:
        stable = self.status.stable.revision if self.status.stable else ""
        kept = self._kept.get(stable)
        known = (group.spec for group in self.groups.values() if group.revision.name == stable and group.spec)
        return next(known, kept.spec if kept else None)

    def to_state(self) -> dict[str, Any]:
        """This resource in up.json."""
        return {
            "spec_generation": self.generation,
            "queue": self._accepted.spec.queue.name if self._accepted else "",
            "deleting": self.deleting,
            "broker_url": self.broker_url,
            "status": self.status.to_body(),
            "stable_spec": self._stable_spec(),
            "kept": [
                {"revision": name, "number": one.number, "spec": one.spec} for name, one in self._kept.items()
            ],
            "processes": self.processes(),
            "events": self._told.events(),
        }


def _content(parsed: QueueWorker | InvalidQueueWorker | None) -> object:
    """What makes a new generation when it differs."""
    if isinstance(parsed, QueueWorker):
        return parsed.spec
    return parsed.problems if parsed else None
