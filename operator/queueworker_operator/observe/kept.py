"""The revisions that are kept of a QueueWorker, one ControllerRevision each."""

from __future__ import annotations

from collections.abc import Mapping

from queueworker_operator.api.kept import Kept, kept_from
from queueworker_operator.api.names import LABEL_PREFETCH, LABEL_VERSION, selector
from queueworker_operator.api.revisions import revision_name, revision_of
from queueworker_operator.api.types import InvalidQueueWorker, Metadata, QueueWorker
from queueworker_operator.apiserver import ApiServer, Body, controllerrevisions
from queueworker_operator.observe.children import labels_of


def needs_kept(resource: QueueWorker | InvalidQueueWorker) -> bool:
    """Whether a decision may rest on them. A resource that serves what it asks for costs no look."""
    if not isinstance(resource, QueueWorker) or resource.metadata.deletion_timestamp is not None:
        return False
    status, spec = resource.status, resource.spec
    stable = status.stable.revision if status.stable else None
    return (
        stable != revision_of(resource.metadata.name, spec).name
        or status.kept[:1] != (stable,)
        or status.rolled_back is not None
        or len(status.kept) > 1 + spec.keep_versions
        or (spec.request is not None and spec.request.id != status.handled_request)
    )


async def kept_bodies(api: ApiServer, resource: QueueWorker | InvalidQueueWorker) -> Mapping[str, Body]:
    """By the name of the revision. What an earlier QueueWorker of the name owns is about to be collected."""
    owner = resource.metadata
    path = controllerrevisions(owner.namespace)
    return {
        _revision(body): body async for body in api.each(path, selector(owner.name)) if _is_ours(body, owner)
    }


def kept_of(owner: Metadata, bodies: Mapping[str, Body]) -> tuple[Kept, ...]:
    """Those that can be read."""
    rows = (
        (name, int(body.get("revision") or 0), (body.get("data") or {}).get("spec"))
        for name, body in bodies.items()
    )
    found = (kept_from(owner.name, *row) for row in rows)
    return tuple(one for one in found if one is not None)


def _revision(body: Body) -> str:
    version, prefetch = labels_of(body).get(LABEL_VERSION, ""), labels_of(body).get(LABEL_PREFETCH, "0")
    return revision_name(version, int(prefetch)) if prefetch.isdigit() else version


def _is_ours(body: Body, owner: Metadata) -> bool:
    references = body["metadata"].get("ownerReferences") or ()
    return any(one["uid"] == owner.uid for one in references)
