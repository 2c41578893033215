"""One look at a QueueWorker in the cluster: the resource, its workers, its broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from queueworker_operator.api.names import selector
from queueworker_operator.api.revisions import Revision, arms_of, broker_identity, revision_of
from queueworker_operator.api.types import InvalidQueueWorker, Metadata, QueueWorker
from queueworker_operator.apiserver import ApiServer, Body, RefusedError, deployments, pods
from queueworker_operator.observe.access import Access
from queueworker_operator.observe.audits import JobAudits, RenderAudit
from queueworker_operator.observe.checks import BrokerChecks
from queueworker_operator.observe.children import Child, children_of
from queueworker_operator.observe.kept import kept_bodies, kept_of, needs_kept
from queueworker_operator.observe.pods import needed
from queueworker_operator.observe.priority import watches_closely
from queueworker_operator.observe.queues import PATIENCE, QueueReadings
from queueworker_operator.observe.samples import WorkerSamples
from queueworker_operator.observe.secrets import NoUrl, broker_access
from queueworker_operator.observe.shelf import Shelved
from queueworker_operator.plan.audit import NOT_AUDITED, AuditFact
from queueworker_operator.plan.facts import (
    BrokerCheck,
    BrokerVerdict,
    Facts,
    QueueFacts,
    Refusal,
    Unknown,
    Workers,
)
from queueworker_operator.plan.samples import NOT_SAMPLED, NotSampled, Samples

#: Renders the Deployment of a revision with that many workers, ready to be applied.
Render = Callable[[Metadata, Revision, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Look:
    """What the planner gets, and what whoever acts needs to know of the same moment."""

    facts: Facts
    #: By the name of the Deployment.
    children: Mapping[str, Child]
    #: What the spec asks for, by the name of the Deployment: the target and, in a change, the arms of its
    #: canary. Empty when the spec cannot be read.
    made: Mapping[str, Revision]
    #: By the name of the revision: what is kept of it, as it was read.
    kept: Mapping[str, Body] = field(default_factory=dict)
    #: How the broker is reached; None when that is not known.
    access: Access | None = field(default=None, repr=False)


async def look(
    api: ApiServer,
    checks: BrokerChecks,
    queues: QueueReadings,
    sampled: WorkerSamples,
    audits: JobAudits,
    resource: QueueWorker | InvalidQueueWorker,
    remembered: Refusal | None,
    render: Render,
    render_audit: RenderAudit,
    clock: Callable[[], datetime],
    shared: frozenset[str] = frozenset(),
) -> Look:
    """Observe one resource. Raises UnavailableError when the API server does not answer: nothing is decided
    then.

    `remembered` is the last refusal that only a real attempt showed. `shared` are revisions that another
    QueueWorker has, too.
    """
    usable = isinstance(resource, QueueWorker) and resource.metadata.deletion_timestamp is None
    target = revision_of(resource.metadata.name, resource.spec) if isinstance(resource, QueueWorker) else None
    made = made_of(resource)
    (children, unattached, observed_at), (broker, queue, access), bodies = await asyncio.gather(
        _workers(api, resource, made, clock),
        _broker(api, checks, queues, resource, clock),
        kept_bodies(api, resource) if needs_kept(resource) else _nothing(),
    )
    missing = {one.name for one in made.values() if one.deployment not in children}
    refusal = remembered if remembered and remembered.revision in missing else None
    if usable and target is not None and target.name in missing:
        assert isinstance(resource, QueueWorker)
        replicas = resource.spec.replicas
        tried = await _try(api, resource.metadata, target, render(resource.metadata, target, replicas))
        refusal = tried or refusal
    refusals = (refusal,) if usable and refusal else ()
    revisions = tuple(child.facts for child in children.values())
    kept = None if bodies is None else kept_of(resource.metadata, bodies)
    workers = Workers(revisions, observed_at, refusals, kept, unattached)
    samples: Samples | Unknown | NotSampled = NOT_SAMPLED
    audit: AuditFact = NOT_AUDITED
    if isinstance(resource, QueueWorker):
        places = {child.facts.name: child.metrics for child in children.values()}
        metadata = resource.metadata
        key = f"{metadata.namespace}/{metadata.name}"
        samples = await sampled.latest(key, resource.status, resource.spec.queue.name, places)
        audit = await audits.latest(api, resource, render_audit)
    facts = Facts(workers, broker, queue, shared, samples, audit)
    return Look(facts, children, made, bodies or {}, access)


async def _nothing() -> None:
    return None


async def look_at_shelf(
    api: ApiServer,
    checks: BrokerChecks,
    queues: QueueReadings,
    resource: QueueWorker | InvalidQueueWorker,
    shelved: Shelved,
    observed_at: datetime,
    clock: Callable[[], datetime],
    shared: frozenset[str] = frozenset(),
) -> Look | None:
    """The same from a list of everything, whose resource is calm, and from its broker. None when only a look
    of its own says enough: a Deployment is missing, or what is kept of earlier revisions counts."""
    made, children, unattached = shelved.children(made_of, observed_at)
    if made.keys() - children.keys() or needs_kept(resource):
        return None
    broker, queue, access = await _broker(api, checks, queues, resource, clock)
    revisions = tuple(child.facts for child in children.values())
    workers = Workers(revisions, observed_at, unattached=unattached)
    return Look(Facts(workers, broker, queue, shared), children, made, {}, access)


def made_of(resource: QueueWorker | InvalidQueueWorker) -> dict[str, Revision]:
    """What the spec asks for, by the name of the Deployment."""
    if not isinstance(resource, QueueWorker):
        return {}
    target = revision_of(resource.metadata.name, resource.spec)
    return {one.deployment: one for one in (target, *_arms(resource))}


def _arms(resource: QueueWorker | InvalidQueueWorker) -> tuple[Revision, ...]:
    """What the steps of a change may still ask for, while one is under way."""
    if not isinstance(resource, QueueWorker) or resource.metadata.deletion_timestamp is not None:
        return ()
    stable, wanted = resource.status.stable, revision_of(resource.metadata.name, resource.spec)
    if stable is not None and stable.revision == wanted.name:
        return ()
    return arms_of(resource.metadata.name, resource.spec)


async def _workers(
    api: ApiServer,
    resource: QueueWorker | InvalidQueueWorker,
    made: Mapping[str, Revision],
    clock: Callable[[], datetime],
) -> tuple[dict[str, Child], int, datetime]:
    """Children, and how many live pods belong to none of them. `made` are the revisions that we would make,
    by the name of the Deployment."""
    observed_at, owner = clock(), resource.metadata
    # Deployments first: a pod that is made in between counts as one too many, never as one too few.
    bodies = [body async for body in api.each(deployments(owner.namespace), selector(owner.name))]
    there = {body["metadata"]["name"] for body in bodies}
    for name in made.keys() - there:
        unlabelled = await api.find(deployments(owner.namespace, name))
        bodies += [unlabelled] if unlabelled else []
    running = [needed(pod) async for pod in api.each(pods(owner.namespace), selector(owner.name))]
    children = children_of(bodies, owner, made, running, observed_at, resource.min_ready)
    return *children, observed_at


async def _broker(
    api: ApiServer,
    checks: BrokerChecks,
    queues: QueueReadings,
    resource: QueueWorker | InvalidQueueWorker,
    clock: Callable[[], datetime],
) -> tuple[BrokerCheck | Unknown, QueueFacts | Unknown, Access | None]:
    """The check of the broker, the reading of the queue, and the access."""
    nobody = Unknown("the broker was not checked", clock())
    if not isinstance(resource, QueueWorker):
        return nobody, nobody, None
    metadata = resource.metadata
    access = await broker_access(api, metadata.namespace, resource.spec)
    if isinstance(access, NoUrl):
        wrong = BrokerCheck(access.verdict, access.message, clock(), broker_identity(resource.spec.broker))
        return wrong, nobody, None
    asker = (metadata.namespace, metadata.name)
    check = await checks.check(access, resource.spec, anew=watches_closely(resource), asker=asker)
    # One that does not answer is not waited for a second time.
    patience = 0.0 if isinstance(check, Unknown) or check.verdict is BrokerVerdict.TIMEOUT else PATIENCE
    queue = await queues.latest(access, resource.spec, patience)
    return check, queue, access


async def _try(api: ApiServer, owner: Metadata, target: Revision, body: Mapping[str, Any]) -> Refusal | None:
    """A dry run of what is about to be created, so that a template that cannot be used is known before."""
    try:
        await api.apply(deployments(owner.namespace, target.deployment), body, dry_run=True)
    except RefusedError as error:
        return Refusal(target.name, error.message)
    return None
