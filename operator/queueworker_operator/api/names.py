"""Every name that the operator puts into a cluster or reads from one."""

from __future__ import annotations

GROUP = "queueworker.dev"
API_VERSION = "v1alpha1"
GROUP_VERSION = f"{GROUP}/{API_VERSION}"
KIND = "QueueWorker"
PLURAL = "queueworkers"

#: Holds a deleted QueueWorker until its last worker has stopped.
FINALIZER = f"{GROUP}/drain"
#: The one field manager of everything that the operator applies.
FIELD_MANAGER = "queueworker-operator"
#: That of what a person writes by `kubectl queueworker`.
PLUGIN_MANAGER = "kubectl-queueworker"

#: On each child and pod: which QueueWorker, version and prefetch. A Deployment's selector is these three.
LABEL_WORKER = f"{GROUP}/worker"
LABEL_VERSION = f"{GROUP}/version"
LABEL_PREFETCH = f"{GROUP}/prefetch"
#: On a child whose workers speak another protocol than Reservation. Absent counts as Reservation.
LABEL_PROTOCOL = f"{GROUP}/protocol"


def selector(worker: str) -> str:
    """The label selector of all pods of one QueueWorker, as the scale subresource wants it."""
    return f"{LABEL_WORKER}={worker}"
