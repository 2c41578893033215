"""Revisions that served, kept as ControllerRevisions to go back to."""

from __future__ import annotations

from queueworker_operator.act.children import kept_body
from queueworker_operator.api.types import Metadata
from queueworker_operator.apiserver import ApiServer, Body, NotFoundError, Permit, controllerrevisions
from queueworker_operator.plan.actions import ForgetRevision, KeepRevision


async def keep(
    api: ApiServer, owner: Metadata, action: KeepRevision, there: Body | None, permit: Permit
) -> None:
    """Its content never changes; its number does, unless anybody wrote it since it was read. `there` is what
    was read. Raises ConflictError, UnavailableError, ApiError."""
    path = controllerrevisions(owner.namespace, action.revision.deployment)
    permit()
    if there is None:
        await api.apply(path, kept_body(owner, action))
    else:
        version = {"resourceVersion": there["metadata"]["resourceVersion"]}
        await api.merge(path, {"metadata": version, "revision": action.number})


async def forget(
    api: ApiServer, owner: Metadata, action: ForgetRevision, there: Body, permit: Permit
) -> bool:
    """Whether it was there to be deleted. Raises ConflictError, UnavailableError, ApiError."""
    condition = {key: there["metadata"][key] for key in ("uid", "resourceVersion")}
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": condition}
    permit()
    try:
        await api.delete(controllerrevisions(owner.namespace, action.deployment), options)
    except NotFoundError:
        return False
    return True
