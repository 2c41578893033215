"""The operator for the cluster tests: installed by its chart, or a process where it must be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

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

    def log(self) -> str:
        return self.kubectl("logs", f"deployment/{charts.RELEASE}", "--tail=-1").stdout


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

    @property
    def log(self) -> str:
        return self.log_file.read_text()


@contextmanager
def resting(operator: Installed) -> Iterator[None]:
    """No installed operator acts inside the block."""
    operator.scale(0)
    try:
        yield
    finally:
        operator.scale(1)
