"""A QueueWorker whose workers speak the older protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.appimages import DEMO_WORKER_IMAGE
from tests.cluster.story import Body, Story, queueworker

_CODE = "older-worker"
_ROOT = Path(__file__).resolve().parent.parent.parent
_FILES = ("tests/brokers/legacy_worker.py", "tests/cluster/legacy_pod.py")


def older_worker(story: Story, **spec: Any) -> Body:
    """The resource; its program is in a ConfigMap that this makes."""
    # The keys of a ConfigMap have no slashes.
    keys = {path.replace("/", "."): path for path in _FILES}
    data = {key: (_ROOT / path).read_text() for key, path in keys.items()}
    story.kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _CODE}, "data": data})
    probe = {"exec": {"command": ["true"]}, "timeoutSeconds": 10}
    worker = {
        "name": "worker",
        "image": DEMO_WORKER_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "tests.cluster.legacy_pod"],
        "workingDir": "/older",
        "volumeMounts": [{"name": "code", "mountPath": "/older"}],
        "readinessProbe": probe,
        "livenessProbe": probe,
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    items = [{"key": key, "path": path} for key, path in keys.items()]
    volume = {"name": "code", "configMap": {"name": _CODE, "items": items}}
    template = {"spec": {"containers": [worker], "volumes": [volume]}}
    return queueworker(story.url, protocol="Legacy", template=template, **spec)
