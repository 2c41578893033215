"""What one pod says: alive, ready, why it does not get ready. Texts stay the same while the cause does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from queueworker_operator.apiserver import Body
from queueworker_operator.plan.facts import Restarts, WorkerFailure

_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
#: Connections have another port at each try.
_FROM_PORT = re.compile(r"\S+:\d+->")
#: A pod is deleted at the end of its time to stop; a node that is busy takes some seconds more.
OVERDUE_AFTER = timedelta(seconds=30)
_POD_SUFFIX = re.compile(r"-[a-z0-9]{1,10}-[a-z0-9]{5}$")


def needed(pod: Body) -> Body:
    """Only what facts are made of: a pod's spec is most of its body."""
    return {"metadata": pod["metadata"], "status": pod.get("status") or {}}


def is_alive(pod: Body) -> bool:
    """Whether its containers may still run. A pod on a node that is out of reach counts until proven gone."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def is_stopping(pod: Body) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_overdue(pod: Body, now: datetime) -> bool:
    """Whether it should have been gone a while ago. Where its node is in reach, a pod never is: when its time
    to stop is over it is killed."""
    due = pod["metadata"].get("deletionTimestamp")
    return due is not None and is_alive(pod) and now - datetime.fromisoformat(due) > OVERDUE_AFTER


def is_ready(pod: Body) -> bool:
    return is_alive(pod) and not is_stopping(pod) and _condition(pod, "Ready") == "True"


def started_at(pod: Body) -> datetime:
    """When the youngest of its containers started; before that, when the pod was made."""
    running = (
        (container.get("state") or {}).get("running") or {}
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
    )
    times = (
        pod["metadata"]["creationTimestamp"],
        *(one["startedAt"] for one in running if "startedAt" in one),
    )
    return max(map(datetime.fromisoformat, times))


def is_available(pod: Body, min_ready: timedelta, now: datetime) -> bool:
    """Whether it is ready, and has been for that long. Counted here: minReadySeconds of the resource may
    change, and a Deployment of ours never does."""
    if not is_ready(pod):
        return False
    since = next(c.get("lastTransitionTime") for c in pod["status"]["conditions"] if c["type"] == "Ready")
    return not min_ready or since is None or now - datetime.fromisoformat(since) >= min_ready


def restarts_of(pods: Iterable[Body]) -> Restarts | None:
    """The containers of live pods that ended and were started again. A pod that was deleted, or that its node
    gave up, is none: another one has taken its place."""
    places = dict[str, int]()
    ends = list[tuple[datetime, str]]()
    for pod in filter(is_alive, pods):
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            count, ended = int(container.get("restartCount") or 0), _terminated(container, "lastState")
            if not count:
                continue
            places[f"{_name(pod)}/{container['name']}"] = count
            at = datetime.fromisoformat(ended.get("finishedAt") or pod["metadata"]["creationTimestamp"])
            ends.append((at, _ended_text(_name(pod), container["name"], ended)))
    return Restarts(sum(places.values()), *max(ends), tuple(sorted(places.items()))) if ends else None


def metrics_of(pods: Iterable[Body], port: int) -> dict[str, str]:
    """Where each pod that serves tells its metrics, by its name."""
    found = {}
    for pod in pods:
        address = str((pod.get("status") or {}).get("podIP") or "")
        if address and is_ready(pod):
            host = f"[{address}]" if ":" in address else address
            found[_name(pod)] = f"http://{host}:{port}/metrics"
    return found


def failure_of(pods: Iterable[Body]) -> WorkerFailure | None:
    """Why workers do not get ready: the worst reason of the first pod that has one."""
    found = [f for pod in sorted(pods, key=_name) if not is_stopping(pod) for f in _failures(pod)]
    return min(found, key=lambda ranked: ranked[0])[1] if found else None


def _failures(pod: Body) -> Iterator[tuple[int, WorkerFailure]]:
    name, status = _name(pod), pod.get("status") or {}
    if is_ready(pod):
        return
    if status.get("phase") == "Failed":
        reason = str(status.get("reason") or "Failed")
        text = str(status.get("message") or "see `kubectl describe pod`").rstrip(".")
        yield 4, WorkerFailure(reason, f"a pod of {_POD_SUFFIX.sub('', name)} failed: {text}.")
        return
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        failure = _container_failure(name, container)
        if failure:
            yield failure


def _container_failure(pod: str, status: dict[str, Any]) -> tuple[int, WorkerFailure] | None:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, text = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    container, image = status["name"], status["image"]
    if reason == "InvalidImageName":
        return 0, WorkerFailure(
            reason, f"pod {pod}: {image!r}, the image of container {container}, is no image name: correct it."
        )
    if reason in _PULL:
        # "Back-off pulling ..." and the error itself take turns; the error is what helps.
        cause = _FROM_PORT.sub("", text.rpartition("ErrImagePull: ")[2]).rstrip(".")
        seen = f" ({cause})" if cause and not cause.startswith("Back-off") else ""
        return 1, WorkerFailure(
            "ImagePullBackOff",
            f"pod {pod}: the image {image} of container {container} cannot be pulled: check its name, "
            f"and imagePullSecrets if its registry asks for a login{seen}.",
        )
    if reason in _CONFIG:
        return 2, WorkerFailure(
            reason, f"pod {pod}: container {container} cannot be started: {text.rstrip('.') or 'no text'}."
        )
    ended = _terminated(status, "state") or _terminated(status, "lastState")
    if reason == "CrashLoopBackOff" or (not status.get("ready") and ended.get("exitCode", 0) != 0):
        return 3, WorkerFailure("CrashLoopBackOff", _ended_text(pod, container, ended))
    return None


def _ended_text(pod: str, container: str, ended: dict[str, Any]) -> str:
    how = f"ended with exit code {ended['exitCode']}" if "exitCode" in ended else "ended"
    why = f" ({ended['reason']})" if ended.get("reason") not in (None, "Error") else ""
    return (
        f"pod {pod}: container {container} {how}{why}: read `kubectl logs {pod} -c {container} --previous`."
    )


def _terminated(status: dict[str, Any], when: str) -> dict[str, Any]:
    return (status.get(when) or {}).get("terminated") or {}


def _condition(pod: Body, type: str) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((str(c["status"]) for c in conditions if c["type"] == type), "Unknown")


def _name(pod: Body) -> str:
    return str(pod["metadata"]["name"])
