"""One QueueWorker's story in one namespace: given a broker, when something happens, then it is seen."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from e2e.appimages import DEMO_WORKER_IMAGE
from e2e.baseimages import BROKER_IMAGE
from e2e.fixtures import Kubectl, wait_until
from examples.usage.totals import BY_VERSION, HANDLED
from queueworker_operator.api.names import FINALIZER, LABEL_WORKER
from worker_runtime.brokers.base import QueueReading
from worker_runtime.brokers.connect import broker_from_url

Body = dict[str, Any]

QUEUE, KEYS = "stats-usage", "utopia-queue"
NAME = "stats-usage"
BROKER = "broker"

#: Upper bounds, generous: two busy cores start a pod in ten seconds.
SOON, LONG = 90.0, 150.0


def queueworker(url: str = "", name: str = NAME, **spec: Any) -> Body:
    """A resource that consumes the usage events with two workers of version v1."""
    worker = {
        "name": "worker",
        "image": DEMO_WORKER_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["run", "examples.usage.jobs:app"],
        "env": [
            {"name": "USAGE_VERSION", "value": "v1"},
            # Work of a killed pod is taken over after this, not after a minute.
            {"name": "QUEUEWORKER_EXPIRY_SECONDS", "value": "6"},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    default: Body = {
        "queue": {"name": QUEUE},
        "broker": {"redis": {"url": url}},
        "replicas": 2,
        "coroutines": 4,
        "prefetch": 20,
        "shutdownSeconds": 10,
        # Most tests ask what follows when a worker is ready, not for how long it has to be.
        "minReadySeconds": 0,
        "template": {"spec": {"containers": [worker]}},
    }
    return {
        "apiVersion": "queueworker.dev/v1alpha1",
        "kind": "QueueWorker",
        "metadata": {"name": name},
        "spec": {**default, **spec},
    }


def with_version(resource: Body, version: str) -> Body:
    """The same resource, whose workers say another version: another revision."""
    changed = copy.deepcopy(resource)
    changed["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = version
    return changed


def event_payloads(count: int, tag: str = "e") -> list[bytes]:
    """Usage events with ids of their own."""
    return [
        json.dumps(
            {
                "id": f"{tag}{index}",
                "project": "atlas",
                "metric": "storage.files",
                "unit": "count",
                "value": 1,
                "at": "2026-11-01T00:00:00+00:00",
                "region": "fra",
            }
        ).encode()
        for index in range(count)
    ]


#: Parts of the metadata that change with the status, too.
_BY_THE_CLUSTER = {"resourceVersion", "managedFields"}


@dataclass
class Story:
    """`node` is an address of a node that this machine and every pod can reach."""

    kubectl: Kubectl
    node: str
    url: str = ""
    _store: Redis | None = field(default=None, repr=False)

    # Given

    def given_broker(self, password: str = "", on_node: str = "") -> str:
        """A Redis that pods and this machine reach under the same URL."""
        container: Body = {
            "name": "redis",
            "image": BROKER_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "ports": [{"containerPort": 6379}],
            "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 1},
        }
        if password:
            container["args"] = ["--requirepass", password, "--bind", "0.0.0.0", "--save", ""]
        spec: Body = {"containers": [container]}
        if on_node:
            spec |= {"nodeName": on_node}
        host, port = self.given_server(BROKER, spec, 6379)
        login = f":{password}@" if password else ""
        self.url = f"redis://{login}{host}:{port}/0"
        wait_until(lambda: self._answers(), f"the broker at {host}:{port} answers", SOON)
        return self.url

    def given_server(self, name: str, spec: Body, port: int) -> tuple[str, int]:
        """A pod that is ready, and the host and port under which pods and this machine reach it."""
        labels = {"app": name}
        self.kubectl.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"type": "NodePort", "selector": labels, "ports": [{"port": port}]},
            },
        )
        self.kubectl("rollout", "status", f"deployment/{name}", "--timeout=90s")
        return self.node, int(self.kubectl.json("get", "service", name)["spec"]["ports"][0]["nodePort"])

    def given_secret(self, name: str, **values: str) -> None:
        self.kubectl.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}
        )

    def given_ready(self, resource: Body, seconds: float = LONG) -> str:
        """Applied and serving; gives the name of its stable revision."""
        self.apply(resource)
        return self.then_serves(resource, seconds)

    # When

    def apply(self, resource: Body) -> None:
        self.kubectl.apply(resource)

    def publish(self, payloads: Sequence[bytes]) -> None:
        async def send() -> None:
            publisher = broker_from_url(self.url, KEYS).publisher()
            try:
                await publisher.publish_many(QUEUE, payloads)
            finally:
                await publisher.close()

        asyncio.run(send())

    @contextmanager
    def publishing(self, payloads: Sequence[bytes], batch: int = 5, pause: float = 0.1) -> Iterator[None]:
        """Publish in the background while the block runs, and the rest when it ends. The last third comes
        slowly, so that there is some work for as long as the block runs, also where pods start slowly."""
        hurry = threading.Event()
        failed: list[BaseException] = []

        def send() -> None:
            sent = 0
            try:
                while sent < len(payloads):
                    slow = sent >= len(payloads) * 2 // 3
                    size = len(payloads) if hurry.is_set() else 1 if slow else batch
                    self.publish(payloads[sent : sent + size])
                    sent += size
                    hurry.wait(1.0 if slow else pause)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            hurry.set()
            thread.join(SOON)
        assert not thread.is_alive(), "publishing did not end"
        assert not failed, f"publishing failed: {failed[0]}"

    # Then

    def resource(self, name: str = NAME) -> Body:
        body: Body = self.kubectl.json("get", "queueworker", name)
        return body

    def stage(self, name: str = NAME) -> str:
        """Where the change stands; empty before the first status."""
        return str(self.resource(name).get("status", {}).get("rollout", {}).get("stage", ""))

    def exists(self, kind: str, name: str) -> bool:
        return bool(self.kubectl("get", kind, name, "--ignore-not-found", "-o", "name").stdout.strip())

    def condition(self, type: str, name: str = NAME) -> Body:
        """The condition, if it is about the newest generation; else empty."""
        body = self.resource(name)
        generation = body["metadata"]["generation"]
        for condition in body.get("status", {}).get("conditions", []):
            if condition["type"] == type and condition["observedGeneration"] == generation:
                found: Body = condition
                return found
        return {}

    def then_condition(
        self, type: str, status: str, reason: str, seconds: float = SOON, name: str = NAME
    ) -> str:
        """Wait for a condition; gives its message."""
        seen: Body = {}

        def holds() -> bool:
            nonlocal seen
            seen = self.condition(type, name)
            return (seen.get("status"), seen.get("reason")) == (status, reason)

        _await(holds, lambda: f"{type}={status}/{reason}; last seen {json.dumps(seen)}", seconds)
        return str(seen["message"])

    def then_serves(self, resource: Body, seconds: float = LONG) -> str:
        """Wait until the newest generation is Ready and Idle; gives the name of the stable revision."""
        name = resource["metadata"]["name"]
        body: Body = {}

        def serves() -> bool:
            nonlocal body
            body = self.resource(name)
            status = body.get("status", {})
            ready = [c for c in status.get("conditions", []) if c["type"] == "Ready"]
            return (
                status.get("observedGeneration") == body["metadata"]["generation"]
                and status.get("rollout", {}).get("stage") == "Idle"
                and bool(ready)
                and ready[0]["status"] == "True"
            )

        _await(serves, lambda: f"{name} serves; last status {json.dumps(body.get('status'))}", seconds)
        return str(body["status"]["stable"]["revision"])

    def deployments(self, name: str = NAME) -> list[Body]:
        items: list[Body] = self.kubectl.json("get", "deployments", "-l", f"{LABEL_WORKER}={name}")["items"]
        return sorted(items, key=lambda d: str(d["metadata"]["creationTimestamp"]))

    def pods(self, name: str = NAME) -> list[Body]:
        items: list[Body] = self.kubectl.json("get", "pods", "-l", f"{LABEL_WORKER}={name}")["items"]
        return items

    def event_reasons(self, name: str = NAME) -> list[str]:
        items = self.kubectl.json("get", "events", "--field-selector", f"involvedObject.name={name}")["items"]
        return [item["reason"] for item in items]

    def reading(self) -> QueueReading:
        async def read() -> QueueReading:
            inspector = broker_from_url(self.url, KEYS).inspector()
            try:
                return await inspector.read(QUEUE)
            finally:
                await inspector.close()

        return asyncio.run(read())

    def committed(self) -> int:
        return sum(row.committed for row in self.reading().ledger.values())

    def then_committed(self, count: int, seconds: float = LONG) -> QueueReading:
        """Wait until so many are committed, and check that nothing is left anywhere."""
        _await(lambda: self.committed() >= count, lambda: f"{count} committed; {self.reading()}", seconds)
        wait_until(lambda: self.reading().private == 0, "nothing is left in private keys", SOON)
        reading = self.reading()
        left = reading.ready + reading.processing + reading.failed + reading.dead + reading.poison
        assert left == 0, f"left over: {reading}"
        assert sum(row.committed for row in reading.ledger.values()) == count, reading.ledger
        return reading

    def handled(self) -> dict[str, int]:
        """How often each event was handled."""
        return {key.decode(): int(value) for key, value in self.store.hgetall(HANDLED).items()}  # type: ignore[union-attr]

    def by_version(self) -> dict[str, int]:
        return {key.decode(): int(value) for key, value in self.store.hgetall(BY_VERSION).items()}  # type: ignore[union-attr]

    @property
    def store(self) -> Redis:
        if self._store is None:
            self._store = Redis.from_url(self.url)
        return self._store

    def then_gone(self, name: str = NAME, seconds: float = LONG) -> None:
        _await(
            lambda: not self.exists("queueworker", name),
            lambda: f"{name} goes: {self.resource(name)}",
            seconds,
        )

    def has_finalizer(self, name: str = NAME) -> bool:
        return FINALIZER in self.resource(name)["metadata"].get("finalizers", [])

    def versions(self) -> dict[str, str]:
        """What changes when somebody writes the resource or one of its Deployments. What the cluster says of
        the pods of a Deployment is left out: one that answers its probe late is no write."""
        found = {NAME: str(self.resource()["metadata"]["resourceVersion"])}
        for one in self.deployments():
            kept = {key: value for key, value in one["metadata"].items() if key not in _BY_THE_CLUSTER}
            found[f"Deployment/{kept['name']}"] = json.dumps(kept, sort_keys=True)
        return found

    def then_nobody_writes(self, seconds: float, meanwhile: Callable[[float], None] = time.sleep) -> None:
        """For so long, which `meanwhile` takes, nobody writes the resource, its Deployments or an event. A
        worker that answered its probe late meanwhile is a reason to write, and the time begins anew."""
        for _ in range(3):
            workers, before = self._readiness(), (self.versions(), len(self.event_reasons()))
            meanwhile(seconds)
            after = self.versions(), len(self.event_reasons())
            if after == before:
                return
            assert self._readiness() != workers, f"{before} became {after}; {self.resource()['status']}"
        raise AssertionError(f"its workers are never ready for {seconds:.0f} s: {workers}")

    def _readiness(self) -> dict[str, str]:
        """Since when each worker is ready or not, and how often it was started."""
        found = {}
        for pod in self.pods():
            status = pod["status"]
            since = [(one["type"], one.get("lastTransitionTime")) for one in status["conditions"]]
            starts = [one["restartCount"] for one in status.get("containerStatuses", [])]
            found[pod["metadata"]["name"]] = f"{since} {starts}"
        return found

    def _answers(self) -> bool:
        try:
            with Redis.from_url(self.url, socket_connect_timeout=2) as client:
                return bool(client.ping())
        except OSError:
            return False
        except Exception as error:
            if "onnect" in type(error).__name__ or "imeout" in type(error).__name__:
                return False
            raise


def _await(probe: Callable[[], bool], what: Callable[[], str], seconds: float) -> None:
    """Like wait_until, with a text that says what was seen last."""
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what()}")
        time.sleep(0.3)
