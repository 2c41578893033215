"""QueueWorkers as somebody outside the operator sees them: in a cluster, or in the state of a
`queueworker up`."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from queueworker_operator.api.names import LABEL_PREFETCH, LABEL_VERSION, LABEL_WORKER, selector
from queueworker_operator.api.types import QueueWorkerStatus, RevisionStatus
from queueworker_operator.apiserver import ApiServer, Body, NotFoundError, pods, queueworkers

_NO_OPERATOR = "Look whether the operator runs: kubectl get pods -A -l app.kubernetes.io/name=queueworker."
_NO_UP = "Look at the terminal in which queueworker up runs."


class NotSeenError(Exception):
    """What was asked for is not there or cannot be read. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod or a local process of one revision."""

    name: str
    #: ready, starting, stopping, or the reason why it waits.
    state: str
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One QueueWorker. `namespace` is empty in local mode."""

    namespace: str
    name: str
    generation: int
    queue: str
    deleting: bool
    status: QueueWorkerStatus
    #: By the name of the revision.
    members: Mapping[str, tuple[Member, ...]]
    look_for_it: str
    #: Why nobody works on it; empty when somebody may.
    abandoned: str = ""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def _status(body: Any, what: str) -> QueueWorkerStatus:
    try:
        return QueueWorkerStatus.model_validate(body or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NotSeenError(
            f"{what}: status.{where} cannot be read ({first['msg']}); this plugin and the operator are of "
            "different versions, use the plugin of the operator's version"
        ) from None


# -- in a cluster ------------------------------------------------------------------------------------


async def in_cluster(api: ApiServer, namespace: str, name: str = "") -> list[Seen]:
    """One by name, else all of the namespace; of all namespaces when it is empty. Raises NotSeenError."""
    if name:
        try:
            bodies = [await api.get(queueworkers(namespace, name))]
        except NotFoundError:
            raise NotSeenError(
                f"there is no QueueWorker {name} in namespace {namespace}; see kubectl queueworker get -A"
            ) from None
    else:
        try:
            bodies = [body async for body in api.each(queueworkers(namespace))]
        except NotFoundError:
            raise NotSeenError("this cluster does not know QueueWorkers: install the chart's CRD") from None
    wanted = selector(name) if name else LABEL_WORKER
    running = [body async for body in api.each(pods(namespace), wanted)] if bodies else []
    return sorted((of_body(body, running) for body in bodies), key=lambda one: (one.namespace, one.name))


def of_body(body: Body, running: Sequence[Body] = ()) -> Seen:
    """A QueueWorker and those of these pods that are its own. Raises NotSeenError."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    namespace, name = metadata["namespace"], metadata["name"]
    status = _status(body.get("status"), f"{namespace}/{name}")
    mine = [
        pod
        for pod in running
        if pod["metadata"]["namespace"] == namespace and pod["metadata"]["labels"][LABEL_WORKER] == name
    ]
    return Seen(
        namespace,
        name,
        metadata.get("generation", 0),
        (spec.get("queue") or {}).get("name", ""),
        "deletionTimestamp" in metadata,
        status,
        {one.name: tuple(_pod(pod) for pod in mine if _is_of(pod, one)) for one in status.revisions},
        _NO_OPERATOR,
    )


def _is_of(pod: Body, revision: RevisionStatus) -> bool:
    labels = pod["metadata"]["labels"]
    return (labels.get(LABEL_VERSION), labels.get(LABEL_PREFETCH)) == (
        revision.version,
        str(revision.prefetch),
    )


def _pod(pod: Body) -> Member:
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    waiting = [c["state"]["waiting"] for c in containers if "waiting" in (c.get("state") or {})]
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
    if "deletionTimestamp" in pod["metadata"]:
        state = "stopping"
    elif ready:
        state = "ready"
    elif waiting and waiting[0].get("reason"):
        state = waiting[0]["reason"]
    else:
        state = (
            "starting" if status.get("phase") in {"Pending", "Running"} else status.get("phase", "Unknown")
        )
    return Member(pod["metadata"]["name"], state, sum(c.get("restartCount", 0) for c in containers))


# -- in local mode -----------------------------------------------------------------------------------


def in_local_mode(place: Path, name: str = "") -> list[Seen]:
    """What `queueworker up` says in its state directory; `place` is that or the file it reads. Raises
    NotSeenError."""
    return of_state(*local_state(place), name)


def local_state(place: Path) -> tuple[Path, dict[str, Any]]:
    """The path of an up.json and what it says. Raises NotSeenError."""
    directory = place if place.is_dir() else place.parent / ".queueworker" / place.stem
    path = directory / "up.json"
    try:
        state = json.loads(path.read_text())
    except FileNotFoundError:
        raise NotSeenError(
            f"{path} is not there: start queueworker up -f FILE, and name FILE or its --state-dir"
        ) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(state, dict):
        raise _unreadable(path, TypeError("no object"))
    file = str(state.get("file", ""))
    if not place.is_dir() and Path(file).resolve() != place.resolve():
        # Files that differ in their ending alone share a directory.
        raise NotSeenError(f"{path} is of queueworker up -f {file}, not of {place}: name that file")
    return path, state


def of_state(path: Path, state: Mapping[str, Any], name: str = "") -> list[Seen]:
    """The QueueWorkers of an up.json. Raises NotSeenError."""
    try:
        resources: dict[str, Any] = state["resources"]
        abandoned = _abandoned(state, path.parent)
        found = [_of_state(key, one, abandoned) for key, one in sorted(resources.items())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from None
    if name:
        found = [one for one in found if one.name == name]
        if not found:
            raise NotSeenError(f"{path} has no QueueWorker {name}; it has {', '.join(resources) or 'none'}")
    return found


def _unreadable(path: Path, error: Exception) -> NotSeenError:
    return NotSeenError(f"{path} cannot be read as the state of queueworker up ({error!r})")


def _abandoned(state: Mapping[str, Any], directory: Path) -> str:
    """Why no `queueworker up` keeps this state up to date."""
    again = f"What is shown is its last word. Start it again: queueworker up -f {state['file']}"
    if state["state"] == "stopped":
        return f"queueworker up has stopped. {again}"
    if _held(directory):
        return ""
    return f"queueworker up (process {state['pid']}) ended without a word, as after a SIGKILL. {again}"


def _held(directory: Path) -> bool:
    """Whether a process holds the lock of the directory."""
    try:
        lock = os.open(directory / "up.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _of_state(name: str, resource: dict[str, Any], abandoned: str) -> Seen:
    status = _status(resource.get("status"), name)
    members: dict[str, tuple[Member, ...]] = {one.name: () for one in status.revisions}
    for process in () if abandoned else resource.get("processes", ()):
        state = "stopping" if process["stopping"] else "ready" if process["ready"] else "starting"
        if process["revision"] in members:
            members[process["revision"]] += (
                Member(f"process {process['index']}, pid {process['pid']}", state),
            )
    generation, queue = resource["spec_generation"], resource["queue"]
    return Seen("", name, generation, queue, resource["deleting"], status, members, _NO_UP, abandoned)
