"""The Deployment of one revision: the user's pod template, and what makes it a worker of that revision.

What the user wrote stays as it is. Added are the labels that find the pods, the variables that tell the
worker what to do, and defaults where the template says nothing: time to stop, probes, a restricted security
context.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from queueworker_operator.api.names import (
    GROUP_VERSION,
    KIND,
    LABEL_PREFETCH,
    LABEL_PROTOCOL,
    LABEL_VERSION,
    LABEL_WORKER,
)
from queueworker_operator.api.revisions import Revision, canonical_json
from queueworker_operator.api.template import (
    MANAGED_VARIABLES,
    termination_grace_seconds,
    worker_container,
)
from queueworker_operator.api.types import Broker, Metadata, Protocol
from queueworker_operator.apiserver import Body
from queueworker_operator.observe.children import ADMIN_PORT, ANNOTATION_EPOCH, ANNOTATION_RENDERED
from queueworker_operator.plan.actions import KeepRevision

ADMIN_PORT_NAME = "admin"

#: Where a worker finds what it signs in to NATS with.
CREDENTIALS_VOLUME = "queueworker-nats-credentials"
CREDENTIALS_PATH = "/var/run/secrets/queueworker.dev/nats"

_READINESS = {"httpGet": {"path": "/readyz", "port": ADMIN_PORT}, "periodSeconds": 3, "timeoutSeconds": 3}
#: A minute of silence, not less: a restart gives up work that is only slow.
_LIVENESS = {
    "httpGet": {"path": "/livez", "port": ADMIN_PORT},
    "initialDelaySeconds": 10,
    "periodSeconds": 10,
    "timeoutSeconds": 5,
    "failureThreshold": 6,
}


def render(owner: Metadata, revision: Revision, replicas: int, epoch: int) -> Body:
    """The Deployment as it is applied. `epoch` is that of the operator that writes it."""
    # Nothing that changes with time or with the operator's epoch goes into the template: it would roll the
    # pods.
    template = _template(owner, revision)
    hashed = hashlib.sha256(canonical_json(template)).hexdigest()[:16]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": revision.deployment,
            "namespace": owner.namespace,
            "labels": {
                **_recommended(owner, revision),
                **identifying(owner, revision),
                **_protocol(revision),
            },
            "annotations": {ANNOTATION_EPOCH: str(epoch), ANNOTATION_RENDERED: hashed},
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": identifying(owner, revision)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"}},
            "template": template,
        },
    }


def kept_body(owner: Metadata, action: KeepRevision) -> Body:
    """What is kept of a revision: it goes with the resource."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": action.revision.deployment,
            "namespace": owner.namespace,
            "labels": {**_recommended(owner, action.revision), **identifying(owner, action.revision)},
            "ownerReferences": [owner_reference(owner)],
        },
        "data": {"spec": dict(action.spec)},
        "revision": action.number,
    }


def owner_reference(owner: Metadata) -> Body:
    return {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def identifying(owner: Metadata, revision: Revision) -> dict[str, str]:
    """The labels that say whose worker, which version and which prefetch: the selector of the Deployment."""
    return {
        LABEL_WORKER: owner.name,
        LABEL_VERSION: revision.version,
        LABEL_PREFETCH: str(revision.prefetch),
    }


def _protocol(revision: Revision) -> dict[str, str]:
    """Not on the pods: nothing is selected by it, and what was rendered before stays the same."""
    if revision.protocol is Protocol.RESERVATION:
        return {}
    return {LABEL_PROTOCOL: revision.protocol.value}


def _recommended(owner: Metadata, revision: Revision) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "queueworker",
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/version": revision.version,
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/managed-by": "queueworker-operator",
    }


def _template(owner: Metadata, revision: Revision) -> Body:
    template: Body = copy.deepcopy(dict(revision.template))
    metadata = template.setdefault("metadata", {})
    # Ours come last where they find the pods, first where they only describe.
    metadata["labels"] = {
        **_recommended(owner, revision),
        **(metadata.get("labels") or {}),
        **identifying(owner, revision),
    }
    spec = template["spec"]
    spec["terminationGracePeriodSeconds"] = termination_grace_seconds(template, revision.shutdown_seconds)
    secured(spec)
    name = worker_container(template)["name"]
    worker = next(c for c in spec["containers"] if c["name"] == name)
    own = [entry for entry in worker.get("env") or () if entry.get("name") not in MANAGED_VARIABLES]
    # First, so that the user's own variables may refer to them as $(QUEUEWORKER_QUEUE).
    worker["env"] = [*_variables(revision), *own]
    _mount_credentials(spec, worker, revision.broker)
    ports = list(worker.get("ports") or ())
    if not any(p.get("containerPort") == ADMIN_PORT or p.get("name") == ADMIN_PORT_NAME for p in ports):
        worker["ports"] = [*ports, {"name": ADMIN_PORT_NAME, "containerPort": ADMIN_PORT, "protocol": "TCP"}]
    worker.setdefault("readinessProbe", copy.deepcopy(_READINESS))
    worker.setdefault("livenessProbe", copy.deepcopy(_LIVENESS))
    return template


def secured(spec: Body) -> None:
    """What a restricted namespace asks of a pod, where its template says nothing."""
    if not spec.get("securityContext"):
        spec["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        if not container.get("securityContext"):
            container["securityContext"] = {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def _mount_credentials(spec: Body, worker: Body, broker: Broker) -> None:
    """Files, never variables: what a Secret says anew reaches a running worker with its next connection."""
    files = list(broker.nats.files()) if broker.nats else []
    if not files:
        return
    sources = [
        {"secret": {"name": secret, "items": [{"key": one.key, "path": one.file} for one in those]}}
        for secret, those in groupby(files, key=lambda file: file.secret)
    ]
    volume = {"name": CREDENTIALS_VOLUME, "projected": {"sources": sources}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    mount = {"name": CREDENTIALS_VOLUME, "mountPath": CREDENTIALS_PATH, "readOnly": True}
    worker["volumeMounts"] = [*(worker.get("volumeMounts") or ()), mount]


def _variables(revision: Revision) -> list[Mapping[str, Any]]:
    broker = revision.broker
    plain = {
        "NAMESPACE": broker.namespace,
        **({"NATS_CREDENTIALS": CREDENTIALS_PATH} if broker.nats and any(broker.nats.files()) else {}),
        "QUEUE": revision.queue,
        "COROUTINES": revision.coroutines,
        "PREFETCH": revision.prefetch,
        "REVISION": revision.name,
        "SHUTDOWN_SECONDS": revision.shutdown_seconds,
        "ADMIN_PORT": ADMIN_PORT,
    }
    named = ({"name": f"QUEUEWORKER_{name}", "value": str(value)} for name, value in plain.items())
    return [broker_url_variable(broker), *named]


def broker_url_variable(broker: Broker) -> Body:
    """Where the broker is, as the spec says it: a Secret is read by the kubelet."""
    if broker.secret_ref is None:
        return {"name": "QUEUEWORKER_BROKER_URL", "value": broker.url}
    source = {"secretKeyRef": {"name": broker.secret_ref.name, "key": broker.secret_ref.key}}
    return {"name": "QUEUEWORKER_BROKER_URL", "valueFrom": source}
