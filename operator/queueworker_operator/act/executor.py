"""From a plan to requests. Every write carries what was read: if anybody wrote in between, it is refused.

That is also the fence against an operator that lost its Lease without knowing: before the first change of a
resource, its successor marks all children with its own epoch, and whatever the old one still sends names an
older version of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from queueworker_operator.act.audits import remove_audit, start_audit
from queueworker_operator.act.broker import act_on_broker
from queueworker_operator.act.children import owner_reference, render
from queueworker_operator.act.events import post
from queueworker_operator.act.kept import forget, keep
from queueworker_operator.act.killing import kill_one
from queueworker_operator.act.status import status_patch
from queueworker_operator.api.names import FINALIZER
from queueworker_operator.api.revisions import Revision
from queueworker_operator.api.types import InvalidQueueWorker, QueueWorker, QueueWorkerStatus
from queueworker_operator.apiserver import (
    ApiServer,
    Body,
    ConflictError,
    NotFoundError,
    RefusedError,
    deployments,
    queueworkers,
)
from queueworker_operator.observe.children import (
    ANNOTATION_EPOCH,
    ANNOTATION_RENDERED,
    Child,
    annotations_of,
)
from queueworker_operator.observe.cluster import Look
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
from queueworker_operator.plan.facts import Refusal
from queueworker_operator.run.lease import Lease
from worker_runtime.brokers.base import BrokerError

log = logging.getLogger(__name__)


class SupersededError(Exception):
    """A child carries a later epoch than ours: another operator acts, and this one has to stop."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A Deployment that was found as we made it: which one, and its generation then."""

    uid: str
    generation: int


@dataclass(slots=True)
class Executor:
    """Does what the plan of one pass says. Made anew for each pass."""

    api: ApiServer
    lease: Lease
    clock: Callable[[], datetime]
    instance: str
    #: The resource as it was read.
    body: Body
    resource: QueueWorker | InvalidQueueWorker
    look: Look
    #: The template that the API server refused in this pass, if any.
    refusal: Refusal | None = None
    #: A Job that it refused, and why.
    audit_refused: tuple[str, str] | None = None
    #: Whether any request changed something, apart from events.
    wrote: int = 0
    #: Deployments as this pass applied them, by name.
    _applied: dict[str, Verified] = field(default_factory=dict)
    _versions: dict[str, str] = field(default_factory=dict)
    _stamped: bool = False

    async def run(self, actions: tuple[Action, ...]) -> None:
        """All actions in order; the first failure ends it, but where it is the broker's, what is seen is told
        all the same. Raises ConflictError, UnavailableError, ApiError, BrokerError, LeaseLostError,
        SupersededError."""
        for number, action in enumerate(actions, 1):
            try:
                await self._do(action)
            except BrokerError:
                for one in still_told(actions[number:]):
                    await self._do(one)
                raise

    async def put_back(self, verified: Mapping[str, Verified]) -> dict[str, Verified]:
        """Undo what somebody else changed in the template or the labels of a Deployment that the spec asks
        for: the target's, and those of the arms of a canary.

        `verified` says, by Deployment, when it was last found as we made it, so that a child nobody touched
        costs nothing; the answer is what to pass next time. A child that another version of the operator
        rendered is left as it is: a template is never changed under running pods.
        """
        found = {name: await self._put_back(one, verified.get(name)) for name, one in self.look.made.items()}
        return {name: one for name, one in found.items() if one is not None}

    async def _put_back(self, target: Revision, verified: Verified | None) -> Verified | None:
        child = self.look.children.get(target.deployment)
        if child is None:
            # To apply once more what was just applied would change nothing: nobody need ask.
            return self._applied.get(target.deployment, verified)
        if child.facts.conflict or not child.facts.owned:
            return verified
        now = _verified(child.body)
        if verified == now and not child.mislabelled:
            return verified
        ours = render(self.resource.metadata, target, child.facts.desired, child.epoch)
        rendered = annotations_of(child.body).get(ANNOTATION_RENDERED)
        if rendered not in (None, ours["metadata"]["annotations"][ANNOTATION_RENDERED]):
            return now
        path = deployments(self.resource.metadata.namespace, target.deployment)
        try:
            would_be = await self.api.apply(path, ours, dry_run=True)
        except RefusedError as error:
            log.warning("cannot be put back", extra={"deployment": target.deployment, "error": error.message})
            return now
        if would_be["spec"] == child.body["spec"] and not child.mislabelled:
            return now
        if self._versions.get(child.uid):
            return verified  # this pass wrote it: what was compared is out of date, the next pass sees more
        log.info("puts back what somebody changed", extra={"deployment": target.deployment})
        await self._stamp_children()
        ours["metadata"]["annotations"][ANNOTATION_EPOCH] = str(self.lease.epoch)
        ours["metadata"]["resourceVersion"] = self._version(child)
        self._permit()
        written = await self.api.apply(path, ours)
        self._wrote(child, written)
        return _verified(written)

    async def _do(self, action: Action) -> None:
        match action:
            case EnsureFinalizer():
                await self._add_finalizer()
            case RemoveFinalizer():
                await self._remove_finalizer()
            case ApplyRevision():
                await self._apply(action)
            case AdoptRevision():
                await self._adopt(action)
            case OrphanRevision():
                await self._orphan(action)
            case ScaleRevision():
                await self._scale(action.deployment, action.replicas)
            case KillWorker():
                await self._kill(action)
            case StartAudit():
                await self._start_audit(action)
            case RemoveAudit():
                await self._stamp_children()
                owner = self.resource.metadata
                self.wrote += await remove_audit(self.api, owner, action.name, self._permit)
            case RetireRevision():
                await self._scale(action.deployment, 0)
            case DeleteRevision():
                await self._delete(action)
            case KeepRevision():
                await self._keep(action)
            case ForgetRevision():
                await self._forget(action)
            case FenceRevision() | UnfenceRevision() | RecoverWork() | ReturnStaged() | PromoteDelayed():
                await self._on_the_broker(action)
            case EmitEvent():
                self._permit()
                await post(self.api, self.resource.metadata, action, self.instance, self.clock())
            case WriteStatus():
                await self._write_status(action.status)

    async def _on_the_broker(self, action: BrokerAction) -> None:
        """Raises BrokerError. The children are marked first: an earlier operator decides nothing then."""
        assert isinstance(self.resource, QueueWorker), "only a usable resource acts on its broker"
        assert self.look.access is not None, "an action follows from a reading of this broker"
        await self._stamp_children()
        self._permit()
        await act_on_broker(self.look.access, self.resource.spec, action)
        log.info(
            "done on the broker", extra={"queueworker": self.resource.metadata.name, "what": str(action)}
        )

    async def _apply(self, action: ApplyRevision) -> None:
        revision, namespace = action.revision, self.resource.metadata.namespace
        if revision.deployment in self.look.children:
            await self._scale(revision.deployment, action.replicas)
            return
        await self._stamp_children()
        body = render(self.resource.metadata, revision, action.replicas, self.lease.epoch)
        self._permit()
        try:
            made = await self.api.apply(deployments(namespace, revision.deployment), body)
        except RefusedError as error:
            self.refusal = Refusal(revision.name, error.message)
            return
        self._applied[revision.deployment] = _verified(made)
        self.wrote += 1
        log.info("created", extra={"deployment": revision.deployment, "replicas": action.replicas})

    async def _adopt(self, action: AdoptRevision) -> None:
        child = await self._child(action.deployment)
        references = child.body["metadata"].get("ownerReferences")
        ours = owner_reference(self.resource.metadata)
        path = "/metadata/ownerReferences"
        add: Body = {"op": "add", "path": path, "value": [ours]}
        if references:
            add = {"op": "add", "path": f"{path}/-", "value": ours}
        await self._patch(child, [add])

    async def _orphan(self, action: OrphanRevision) -> None:
        child = await self._child(action.deployment)
        references: list[Body] = child.body["metadata"].get("ownerReferences") or []
        ours = self.resource.metadata.uid
        for index, one in reversed(list(enumerate(references))):
            if one["uid"] == ours:
                await self._patch(child, [{"op": "remove", "path": f"/metadata/ownerReferences/{index}"}])
                log.info("orphaned", extra={"deployment": action.deployment})

    async def _scale(self, deployment: str, replicas: int) -> None:
        child = await self._child(deployment)
        await self._patch(child, [{"op": "replace", "path": "/spec/replicas", "value": replicas}])
        log.info("scaled", extra={"deployment": deployment, "replicas": replicas})

    async def _kill(self, action: KillWorker) -> None:
        child = await self._child(action.deployment)
        self.wrote += await kill_one(self.api, child.body, self._permit)

    async def _start_audit(self, action: StartAudit) -> None:
        assert isinstance(self.resource, QueueWorker), "only a usable resource is analysed"
        await self._stamp_children()
        self._permit()
        owner = self.resource.metadata
        why = await start_audit(self.api, owner, self.resource.spec, action)
        if why:
            self.audit_refused = action.name, why
            return
        self.wrote += 1
        log.info("has totals counted", extra={"queueworker": owner.name, "job": action.name})

    async def _delete(self, action: DeleteRevision) -> None:
        child = await self._child(action.deployment)
        self._permit()
        try:
            await self.api.delete(
                deployments(self.resource.metadata.namespace, action.deployment),
                {
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "propagationPolicy": "Background",
                    "preconditions": {"uid": child.uid, "resourceVersion": self._version(child)},
                },
            )
        except NotFoundError:
            return
        self.wrote += 1
        log.info("deleted", extra={"deployment": action.deployment})

    async def _keep(self, action: KeepRevision) -> None:
        await self._stamp_children()
        there = self.look.kept.get(action.revision.name)
        await keep(self.api, self.resource.metadata, action, there, self._permit)
        self.wrote += 1

    async def _forget(self, action: ForgetRevision) -> None:
        there = self.look.kept.get(action.revision)
        if there is not None:
            await self._stamp_children()
            self.wrote += await forget(self.api, self.resource.metadata, action, there, self._permit)

    async def _add_finalizer(self) -> None:
        metadata = self.body["metadata"]
        if FINALIZER in (metadata.get("finalizers") or ()):
            return
        add: Body = {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}
        if metadata.get("finalizers"):
            add = {"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}
        await self._patch_resource([self._test_resource(), add])

    async def _remove_finalizer(self) -> None:
        finalizers = self.body["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        path = f"/metadata/finalizers/{finalizers.index(FINALIZER)}"
        try:
            await self._patch_resource(
                [
                    self._test_resource(),
                    {"op": "test", "path": path, "value": FINALIZER},
                    {"op": "remove", "path": path},
                ]
            )
        except NotFoundError:
            return

    async def _write_status(self, status: QueueWorkerStatus) -> None:
        patch = status_patch(self.body.get("status") or {}, status.to_body())
        if not patch:
            return
        metadata = self.body["metadata"]
        self._permit()
        path = queueworkers(metadata["namespace"], metadata["name"]) + "/status"
        try:
            await self.api.merge(
                path, {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": patch}
            )
        except NotFoundError:
            return
        self.wrote += 1

    async def _child(self, deployment: str) -> Child:
        """A child that may be written, after all children carry our epoch."""
        child = self.look.children.get(deployment)
        if child is None:
            raise ConflictError(404, "NotFound", "it was there a moment ago", f"Deployment {deployment}")
        if child.facts.conflict:
            raise ConflictError(409, "Conflict", child.facts.conflict, f"Deployment {deployment}")
        await self._stamp_children()
        return child

    async def _stamp_children(self) -> None:
        """Mark every child with our epoch before the first change: no earlier operator can write it then."""
        if self._stamped:
            return
        self._stamped = True
        for child in self.look.children.values():
            if child.epoch > self.lease.epoch:
                self.lease.give_up()
                raise SupersededError(
                    f"Deployment {child.facts.deployment} was written by an operator of epoch {child.epoch}, "
                    f"this one has epoch {self.lease.epoch}"
                )
            if child.epoch < self.lease.epoch and not child.facts.conflict:
                await self._patch(child, [])

    async def _patch(self, child: Child, operations: list[Body]) -> None:
        """Change one child, and mark it with our epoch, unless anybody wrote it since it was read."""
        epoch = str(self.lease.epoch)
        mark: Body = {"op": "add", "path": "/metadata/annotations", "value": {ANNOTATION_EPOCH: epoch}}
        if annotations_of(child.body):
            escaped = ANNOTATION_EPOCH.replace("/", "~1")
            mark = {"op": "add", "path": f"/metadata/annotations/{escaped}", "value": epoch}
        test: Body = {"op": "test", "path": "/metadata/resourceVersion", "value": self._version(child)}
        self._permit()
        path = deployments(self.resource.metadata.namespace, child.facts.deployment)
        self._wrote(child, await self.api.json_patch(path, [test, mark, *operations]))

    def _version(self, child: Child) -> str:
        return self._versions.get(child.uid, child.resource_version)

    def _wrote(self, child: Child, written: Body) -> None:
        self._versions[child.uid] = str(written["metadata"]["resourceVersion"])
        self.wrote += 1

    def _test_resource(self) -> Body:
        version = self.body["metadata"]["resourceVersion"]
        return {"op": "test", "path": "/metadata/resourceVersion", "value": version}

    async def _patch_resource(self, operations: list[Body]) -> None:
        metadata: dict[str, Any] = self.body["metadata"]
        self._permit()
        path = queueworkers(metadata["namespace"], metadata["name"])
        self.body = await self.api.json_patch(path, operations)
        self.wrote += 1

    def _permit(self) -> None:
        self.lease.permit()


def _verified(deployment: Body) -> Verified:
    metadata = deployment["metadata"]
    return Verified(metadata["uid"], int(metadata["generation"]))
