"""The Job that counts totals for an analysis: made once, and removed when it was judged."""

from __future__ import annotations

import copy
import logging

from queueworker_operator.act.children import broker_url_variable, owner_reference, secured
from queueworker_operator.api.audits import RESULT_VARIABLE, audit_container
from queueworker_operator.api.names import LABEL_PREFETCH, LABEL_VERSION, LABEL_WORKER
from queueworker_operator.api.types import Metadata, QueueWorkerSpec
from queueworker_operator.apiserver import (
    AlreadyExistsError,
    ApiServer,
    Body,
    NotFoundError,
    Permit,
    RefusedError,
    jobs,
)
from queueworker_operator.observe.audits import is_ours
from queueworker_operator.plan.actions import StartAudit

log = logging.getLogger(__name__)

#: Where a kubelet reads what a container says at its end, unless the template names another file.
_RESULT_FILE = "/dev/termination-log"
#: Should nobody be left to remove it.
_KEPT_SECONDS = 3600
#: They would make its pod a worker of the resource.
_NOT_ITS = (LABEL_WORKER, LABEL_VERSION, LABEL_PREFETCH)


def audit_body(owner: Metadata, spec: QueueWorkerSpec, action: StartAudit) -> Body:
    """The Job as it is created."""
    labels = {
        "app.kubernetes.io/name": "queueworker",
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/component": "audit",
        "app.kubernetes.io/managed-by": "queueworker-operator",
    }
    template: Body = copy.deepcopy(action.job.template)
    metadata = template.setdefault("metadata", {})
    own = {key: text for key, text in (metadata.get("labels") or {}).items() if key not in _NOT_ITS}
    metadata["labels"] = {**labels, **own}
    pod = template["spec"]
    pod["restartPolicy"] = "Never"
    secured(pod)
    name = audit_container(template)["name"]
    container = next(one for one in pod["containers"] if one["name"] == name)
    # What it wrote last is told where it fails without an answer.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    result = container.get("terminationMessagePath") or _RESULT_FILE
    told = {"QUEUEWORKER_NAMESPACE": spec.broker.namespace, **action.variables, RESULT_VARIABLE: result}
    ours = [broker_url_variable(spec.broker), *({"name": key, "value": text} for key, text in told.items())]
    taken = {one["name"] for one in ours}
    kept = [one for one in container.get("env") or () if one.get("name") not in taken]
    # First, so that the user's own variables may refer to them.
    container["env"] = [*ours, *kept]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": action.name,
            "namespace": owner.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": action.job.timeout_seconds,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": template,
        },
    }


async def start_audit(api: ApiServer, owner: Metadata, spec: QueueWorkerSpec, action: StartAudit) -> str:
    """Create it, or find that it is there. Returns why it was refused; empty when it was not. Raises
    ApiError, UnavailableError."""
    try:
        await api.create(jobs(owner.namespace), audit_body(owner, spec, action))
    except AlreadyExistsError:
        return ""
    except RefusedError as error:
        return error.message
    return ""


async def remove_audit(api: ApiServer, owner: Metadata, name: str, permit: Permit) -> bool:
    """Remove it with its pod, if it is ours. Returns whether anything was removed. Raises ApiError,
    UnavailableError."""
    path = jobs(owner.namespace, name)
    try:
        body = await api.find(path)
        if body is None or not is_ours(body, owner.uid):
            return False
        permit()
        options: Body = {"propagationPolicy": "Background", "preconditions": {"uid": body["metadata"]["uid"]}}
        await api.delete(path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
    except NotFoundError:
        return False
    except RefusedError as error:
        # A way back must not wait for it: it ends by its deadline, and goes by its age or with its owner.
        log.warning("a Job is left to its end", extra={"job": name, "error": error.message})
        return False
    return True
