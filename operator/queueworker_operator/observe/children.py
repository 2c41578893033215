"""The Deployments of one QueueWorker and their pods, as facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from queueworker_operator.api.names import KIND, LABEL_PREFETCH, LABEL_PROTOCOL, LABEL_VERSION, LABEL_WORKER
from queueworker_operator.api.revisions import Revision, place_of, revision_name
from queueworker_operator.api.template import worker_container
from queueworker_operator.api.types import Metadata, Protocol
from queueworker_operator.apiserver import Body
from queueworker_operator.observe.pods import (
    failure_of,
    is_alive,
    is_available,
    is_overdue,
    is_ready,
    metrics_of,
    restarts_of,
    started_at,
)
from queueworker_operator.plan.facts import RevisionFacts, WorkerFailure

#: Where a worker serves /livez, /readyz, /metrics and /status.
ADMIN_PORT = 8077
#: The epoch of the operator that last wrote a child: a write of an earlier one is refused.
ANNOTATION_EPOCH = "queueworker.dev/epoch"
#: Hash of what the operator rendered when it created the child.
ANNOTATION_RENDERED = "queueworker.dev/rendered"


#: Field managers that write through the scale subresource again and again.
_AUTOSCALERS = {"kube-controller-manager": "a HorizontalPodAutoscaler", "keda": "KEDA"}


@dataclass(frozen=True, slots=True)
class Child:
    """One Deployment as it was read, for whoever acts on it."""

    body: Body
    facts: RevisionFacts
    #: A label that finds it was taken away or changed by somebody: it is to be applied again.
    mislabelled: bool = False
    #: Where its workers tell their metrics, by the name of the pod.
    metrics: Mapping[str, str] = field(default_factory=dict)

    @property
    def resource_version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def generation(self) -> int:
        return int(self.body["metadata"]["generation"])

    @property
    def epoch(self) -> int:
        """0 when it was never marked."""
        text = annotations_of(self.body).get(ANNOTATION_EPOCH, "0")
        return int(text) if text.isdigit() else 0


def annotations_of(body: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = body["metadata"].get("annotations") or {}
    return found


def labels_of(body: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = body["metadata"].get("labels") or {}
    return found


def children_of(
    bodies: Iterable[Body],
    owner: Metadata,
    made: Mapping[str, Revision],
    pods: Sequence[Body],
    now: datetime,
    min_ready: timedelta = timedelta(0),
) -> tuple[dict[str, Child], int]:
    """Children by the name of their Deployment, and how many live pods belong to none of them. `made` are the
    revisions that we would make; a pod is available when it was ready for `min_ready`."""
    found = [
        child_of(body, owner, made.get(body["metadata"]["name"]), pods, now, min_ready) for body in bodies
    ]
    children = {child.facts.deployment: child for child in found if child}
    revisions = {child.facts.name for child in children.values()}
    unattached = sum(is_alive(pod) and revision_of_labels(pod) not in revisions for pod in pods)
    return children, unattached


def child_of(
    body: Body,
    owner: Metadata,
    target: Revision | None,
    pods: Iterable[Body],
    now: datetime,
    min_ready: timedelta = timedelta(0),
) -> Child | None:
    """What one Deployment is to its QueueWorker, or None when its labels name no revision."""
    is_target = target is not None and body["metadata"]["name"] == target.deployment
    version, prefetch = _named(body)
    mislabelled = False
    if is_target and target is not None:
        wanted = (owner.name, target.version, str(target.prefetch))
        mislabelled = (labels_of(body).get(LABEL_WORKER), version, prefetch) != wanted
        version, prefetch = target.version, str(target.prefetch)
    if not version or not prefetch.isdigit():
        return None
    mine = [p for p in pods if _named(p) == (version, prefetch)]
    owned, conflict = _ownership(body, owner, mislabelled)
    spec, status = body["spec"], body.get("status") or {}
    caught_up = int(status.get("observedGeneration") or 0) >= int(body["metadata"].get("generation") or 0)
    facts = RevisionFacts(
        name=revision_name(version, int(prefetch)),
        version=version,
        prefetch=int(prefetch),
        deployment=body["metadata"]["name"],
        desired=int(spec.get("replicas", 1)),
        ready=sum(map(is_ready, mine)),
        available=sum(is_available(pod, min_ready, now) for pod in mine),
        # The Deployment's own count lags behind, but never says 0 too early.
        alive=max(sum(map(is_alive, mine)), int(status.get("replicas") or 0)),
        created=_seconds(body["metadata"]["creationTimestamp"]),
        coroutines=_coroutines(spec["template"]),
        failure=_creation_failure(body) or failure_of(mine),
        caught_up=caught_up,
        owned=owned,
        conflict=conflict,
        protocol=target.protocol if is_target and target is not None else _protocol(body),
        started_at=max(map(started_at, filter(is_alive, mine)), default=None),
        overdue=sum(is_overdue(pod, now) for pod in mine),
        restarts=restarts_of(mine),
        scaled_by=_scaled_by(body),
        broker=_broker(spec["template"]),
    )
    return Child(body, facts, mislabelled, metrics_of(mine, ADMIN_PORT))


def _named(body: Mapping[str, Any]) -> tuple[str, str]:
    """Version and prefetch, as the labels of a child or a pod say; empty where they say nothing."""
    return labels_of(body).get(LABEL_VERSION, ""), labels_of(body).get(LABEL_PREFETCH, "")


def revision_of_labels(body: Mapping[str, Any]) -> str:
    """The revision that the labels of a child or a pod name; one that nothing has where they name none."""
    version, prefetch = _named(body)
    return f"{version}-p{prefetch}"


def _protocol(body: Mapping[str, Any]) -> Protocol:
    """Unknown words count as Reservation, which asks for more proof."""
    legacy = labels_of(body).get(LABEL_PROTOCOL) == Protocol.LEGACY.value
    return Protocol.LEGACY if legacy else Protocol.RESERVATION


def _ownership(body: Body, owner: Metadata, mislabelled: bool) -> tuple[bool, str]:
    references = body["metadata"].get("ownerReferences") or []
    controller = next((r for r in references if r.get("controller")), None)
    if controller is None:
        foreign = "it was not made for this QueueWorker: its labels say so."
        return False, foreign if mislabelled else ""
    if controller["uid"] == owner.uid:
        return True, ""
    if controller["kind"] == KIND and controller["name"] == owner.name:
        return False, "it belongs to a deleted QueueWorker of the same name and is about to be collected."
    return False, f"its controller is the {controller['kind']} {controller['name']}."


def scale_writers(metadata: Mapping[str, Any]) -> list[Body]:
    """Who wrote through the scale subresource, as an autoscaler does, and what of it still stands."""
    return [one for one in metadata.get("managedFields") or () if one.get("subresource") == "scale"]


def _scaled_by(body: Body) -> str:
    """The autoscaler whose number of replicas stands. People scale by the same subresource, once; what they
    wrote is put back."""
    for one in scale_writers(body["metadata"]):
        if "f:replicas" in ((one.get("fieldsV1") or {}).get("f:spec") or {}):
            return _AUTOSCALERS.get(str(one.get("manager")), "")
    return ""


def _coroutines(template: Mapping[str, Any]) -> int | None:
    for entry in worker_container(template).get("env") or ():
        if entry.get("name") == "QUEUEWORKER_COROUTINES" and str(entry.get("value", "")).isdigit():
            return int(entry["value"])
    return None


def _broker(template: Mapping[str, Any]) -> str | None:
    """From which broker its workers consume, by the variables that they were made with."""
    env = {entry.get("name"): entry for entry in worker_container(template).get("env") or ()}
    url, namespace = env.get("QUEUEWORKER_BROKER_URL"), env.get("QUEUEWORKER_NAMESPACE")
    if url is None or namespace is None:
        return None
    secret = (url.get("valueFrom") or {}).get("secretKeyRef")
    named = (str(secret.get("name")), str(secret.get("key"))) if secret else None
    return place_of(None if named else url.get("value"), named, str(namespace.get("value", "")))


def _creation_failure(body: Body) -> WorkerFailure | None:
    """What stops the controller from making pods: a quota, an admission policy."""
    name = body["metadata"]["name"]
    for condition in (body.get("status") or {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            text = _without_suffix(str(condition.get("message", "")), name)
            return WorkerFailure(
                str(condition.get("reason") or "FailedCreate"), f"pods of {name} cannot be created: {text}"
            )
    return None


def _without_suffix(text: str, deployment: str) -> str:
    """Each try makes up another pod name; a condition must not change with it."""
    start = text.find(f'"{deployment}-')
    end = text.find('"', start + 1)
    return text if start < 0 or end < 0 else f'{text[:start]}"{deployment}-*"{text[end + 1 :]}'


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
