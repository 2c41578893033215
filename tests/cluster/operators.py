"""The operator for the cluster tests: installed by its chart, or a process where it must be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import uuid4

from e2e import install as charts
from e2e.cluster import Cluster
from e2e.fixtures import Helm, Kubectl, wait_until

HOME = "queueworker-system"


@dataclass
class Installed:
    """An operator that was installed by the chart."""

    kubectl: Kubectl

    def scale(self, replicas: int) -> None:
        """Stop it (0) or start it (1), and wait until that is true."""
        self.kubectl("scale", f"deployment/{charts.RELEASE}", f"--replicas={replicas}")
        if replicas:
            self.kubectl("rollout", "status", f"deployment/{charts.RELEASE}", "--timeout=120s", timeout=150)
        else:
            wait_until(lambda: not self.pods(), "the operator's pod is gone", 90)

    @property
    def exists(self) -> bool:
        names = self.kubectl("get", f"deployment/{charts.RELEASE}", "--ignore-not-found", "-o", "name")
        return bool(names.stdout.strip())

    def pods(self) -> list[str]:
        return [p["metadata"]["name"] for p in self.kubectl.json("get", "pods")["items"]]

    def kill(self) -> None:
        """SIGKILL by a deletion without any grace. Another pod takes its place when the Lease has run out."""
        self.kubectl("delete", "pod", *self.pods(), "--grace-period=0", "--force", "--wait=false")

    def log(self) -> str:
        return self.kubectl("logs", f"deployment/{charts.RELEASE}", "--tail=-1").stdout

    def metrics(self) -> dict[str, float]:
        """What its one pod counts, by name and labels."""
        (pod,) = self.pods()
        path = f"/api/v1/namespaces/{self.kubectl.namespace}/pods/{pod}:8080/proxy/metrics"
        return _metrics(self.kubectl("get", "--raw", path).stdout)


def install(cluster: Cluster, helm: Helm, home: str, namespaces: list[str]) -> Installed:
    """Installed by both charts. No namespaces: the whole cluster."""
    charts.install(helm.program, cluster.kubectl, cluster.kubeconfig, home, namespaces)
    return Installed(Kubectl(cluster.kubectl, cluster.kubeconfig, home))


@dataclass
class OperatorProcess:
    """An operator outside the cluster, to be killed and started again."""

    environ: dict[str, str]
    log_file: Path
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @classmethod
    def of(cls, kubeconfig: Path, namespace: str, log_file: Path) -> OperatorProcess:
        """For one namespace, with a Lease there. Not started."""
        environ = {
            "KUBECONFIG": str(kubeconfig),
            "QUEUEWORKER_OPERATOR_NAMESPACES": namespace,
            "QUEUEWORKER_OPERATOR_HEALTH_PORT": "0",
            "POD_NAMESPACE": namespace,
            # As a pod's name does, it lets the next incarnation in at once.
            "POD_NAME": f"outside-{uuid4().hex[:6]}",
        }
        return cls(environ, log_file)

    def start(self) -> None:
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "queueworker_operator.run.main", "run"],
                env=os.environ | self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: it gets no chance to finish anything."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end of the block: it knows nothing of the time between."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def asked(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the incarnation that runs, such as /readyz."""
        port = next(row["health_port"] for row in reversed(self.rows) if "health_port" in row)
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """What it counts, by name and labels."""
        return _metrics(self.asked("/metrics")[1])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its log, over all incarnations."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    @property
    def log(self) -> str:
        return self.log_file.read_text()


def _metrics(text: str) -> dict[str, float]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@contextmanager
def resting(operator: Installed) -> Iterator[None]:
    """No installed operator acts inside the block."""
    operator.scale(0)
    try:
        yield
    finally:
        operator.scale(1)
