"""Where `python -m benchmarks operator` measures: a kind cluster with many QueueWorkers, their brokers, and
the operator as a process beside it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import cluster as clusters
from e2e.cluster import Cluster
from e2e.locations import REPOSITORY
from e2e.progress import Progress
from queueworker_operator.api.names import GROUP_VERSION, KIND
from worker_runtime.brokers.embedded import free_port
from worker_runtime.brokers.redis.server import EmbeddedRedis

Body = dict[str, Any]

NAMESPACE = "bench"
#: One of them falls silent.
BROKERS = 10
_METRIC = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.M)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
#: What the operator asks for, of what others in the cluster do not.
_OURS = frozenset({"queueworkers", "deployments", "secrets", "events"})
READS, WATCHES = frozenset({"GET", "LIST"}), frozenset({"WATCH", "CONNECT"})


@dataclass(frozen=True)
class Sample:
    """One line of metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """The samples of an exposition in Prometheus' text format."""
    for name, labels, value in _METRIC.findall(text):
        yield Sample(name, dict(_LABEL.findall(labels)), float(value))


@dataclass(frozen=True)
class Asked:
    """Requests that the API server has counted for QueueWorkers, Deployments, Secrets and events."""

    reads: int
    writes: int

    def since(self, earlier: Asked) -> Asked:
        return Asked(self.reads - earlier.reads, self.writes - earlier.writes)


def asked(text: str) -> Asked:
    """Of the API server's metrics. The Deployment of the cluster's own DNS is not written while it runs."""
    reads = writes = 0
    for one in samples(text):
        if one.name != "apiserver_request_total" or one.labels.get("resource") not in _OURS:
            continue
        if one.labels["verb"] in READS:
            reads += int(one.value)
        elif one.labels["verb"] not in WATCHES and one.labels.get("dry_run", "") == "":
            writes += int(one.value)
    return Asked(reads, writes)


def queueworker(number: int, url: str, replicas: int) -> Body:
    name = f"q{number:04}"
    worker = {"name": "worker", "image": "registry.example/usage:1", "args": ["run", "usage:app"]}
    return {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "queue": {"name": name},
            "broker": {"redis": {"url": url}},
            "replicas": replicas,
            "template": {"spec": {"containers": [worker]}},
        },
    }


@dataclass
class Operator:
    """One run of the operator, outside the cluster."""

    process: subprocess.Popen[bytes]
    port: int

    def metrics(self) -> dict[str, float]:
        """By name, results of passes as `reconcile_total:RESULT`; empty while it does not serve yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        prefix = "queueworker_operator_"
        return {
            one.name.removeprefix(prefix) + (f":{one.labels['result']}" if "result" in one.labels else ""): (
                one.value
            )
            for one in samples(text)
        }

    def passes(self) -> float:
        return sum(value for name, value in self.metrics().items() if name.startswith("reconcile_total"))

    def peak_memory(self) -> int:
        """Bytes that were resident at once, at most."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        assert found, "the kernel tells the peak of a process that lives"
        return int(found[1]) * 1024

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)


@dataclass
class Site:
    """`brokers[-1]` is the one that falls silent; a resource's broker is that of its number modulo ten."""

    cluster: Cluster
    brokers: Sequence[EmbeddedRedis]
    folder: Path
    progress: Progress
    version: str = ""
    _started: list[Operator] = field(default_factory=list)

    def kubectl(self, *arguments: str, given: str | None = None, timeout: float = 120) -> str:
        """Raises CalledProcessError, TimeoutExpired."""
        command = [str(self.cluster.kubectl), "--kubeconfig", str(self.cluster.kubeconfig), *arguments]
        ran = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=timeout, check=True
        )
        return ran.stdout

    def asked(self) -> Asked:
        return asked(self.kubectl("get", "--raw", "/metrics"))

    def apply(self, bodies: Sequence[Body], chunk: int = 250) -> None:
        for start in range(0, len(bodies), chunk):
            part = {"apiVersion": "v1", "kind": "List", "items": list(bodies[start : start + chunk])}
            self.kubectl("apply", "--server-side", "-f", "-", given=json.dumps(part), timeout=300)

    def resources(self, count: int, replicas: int) -> list[Body]:
        return [queueworker(n, self.brokers[n % len(self.brokers)].url, replicas) for n in range(count)]

    def silence(self) -> None:
        """The last broker takes connections, and never answers."""
        self.brokers[-1].send(signal.SIGSTOP)

    def start_operator(self) -> Operator:
        """Not waited for."""
        port = free_port()
        environ = {
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "QUEUEWORKER_OPERATOR_NAMESPACES": NAMESPACE,
            "QUEUEWORKER_OPERATOR_HEALTH_PORT": str(port),
            "POD_NAMESPACE": NAMESPACE,
            "POD_NAME": "operator-under-test",
        }
        with (self.folder / "operator.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "queueworker_operator.run.main", "run"],
                env=os.environ | environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(Operator(process, port))
        return self._started[-1]

    def close(self) -> None:
        for operator in self._started:
            operator.stop()


@contextmanager
def site(name: str, folder: Path, keep: bool) -> Iterator[Site]:
    """A new cluster of that name with the CRD and a namespace. Raises SetupError, CalledProcessError."""
    progress = Progress()
    with ExitStack() as stack:
        if not keep:
            stack.callback(clusters.down, name, progress)
        # What an earlier run left goes faster with its cluster.
        clusters.down(name, progress)
        cluster = clusters.up(name, 1, progress)
        brokers = [stack.enter_context(EmbeddedRedis()) for _ in range(BROKERS)]
        opened = Site(cluster, brokers, folder, progress)
        stack.callback(opened.close)
        opened.version = json.loads(opened.kubectl("get", "--raw", "/version"))["gitVersion"]
        opened.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(REPOSITORY / "crds"))
        opened.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        opened.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        yield opened
