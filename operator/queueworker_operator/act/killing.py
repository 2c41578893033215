"""A failure that is made on purpose: one worker ends without any time to stop."""

from __future__ import annotations

import logging

from queueworker_operator.apiserver import ApiServer, Body, NotFoundError, Permit, pods
from queueworker_operator.observe.pods import is_ready

log = logging.getLogger(__name__)


async def kill_one(api: ApiServer, deployment: Body, permit: Permit) -> bool:
    """End the first of those workers of a Deployment that serve. Whether one was there. Raises
    UnavailableError, ApiError."""
    namespace, labels = deployment["metadata"]["namespace"], deployment["spec"]["selector"]["matchLabels"]
    wanted = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    serving = [pod["metadata"] async for pod in api.each(pods(namespace), wanted) if is_ready(pod)]
    if not serving:
        return False
    pod = min(serving, key=lambda one: str(one["name"]))
    permit()
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["uid"]}}
    try:
        await api.delete(
            pods(namespace, pod["name"]), {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        )
    except NotFoundError:
        return False
    log.info("killed, as forceFailure asks", extra={"pod": pod["name"]})
    return True
