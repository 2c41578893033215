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

from e2e.appimages import OPERATOR_IMAGE
from e2e.fixtures import Helm, Kubectl, wait_until

CHARTS = Path(__file__).resolve().parent.parent.parent / "charts"
HOME, RELEASE = "queueworker-system", "queueworker"


@dataclass
class Installed:
    """An operator that was installed by the chart."""

    kubectl: Kubectl

    def scale(self, replicas: int) -> None:
        """Stop it (0) or start it (1), and wait until that is true."""
        self.kubectl("scale", f"deployment/{self.deployment}", f"--replicas={replicas}")
        if replicas:
            self.kubectl("rollout", "status", f"deployment/{self.deployment}", "--timeout=120s", timeout=150)
        else:
            wait_until(lambda: not self.pods(), "the operator's pod is gone", 90)

    @property
    def deployment(self) -> str:
        items = self.kubectl.json("get", "deployments")["items"]
        assert len(items) == 1, [item["metadata"]["name"] for item in items]
        return str(items[0]["metadata"]["name"])

    def pods(self) -> list[str]:
        return [p["metadata"]["name"] for p in self.kubectl.json("get", "pods")["items"]]

    def log(self) -> str:
        return self.kubectl("logs", f"deployment/{self.deployment}", "--tail=-1").stdout


def install(helm: Helm, kubectl: Kubectl, home: str, namespaces: list[str]) -> Installed:
    """Both charts, with the image of this clone. No namespaces: the whole cluster."""
    repository, _, tag = OPERATOR_IMAGE.rpartition(":")
    options = (
        "upgrade",
        "--install",
        "--wait",
        "--timeout",
        "180s",
        "--namespace",
        home,
        "--create-namespace",
    )
    helm(*options, "--take-ownership", "queueworker-crds", CHARTS / "queueworker-crds")
    image = json.dumps({"repository": repository, "tag": tag})
    watch = json.dumps({"namespaces": namespaces})
    values = ("--set-json", f"image={image}", "--set-json", f"watch={watch}")
    helm(*options, RELEASE, CHARTS / "queueworker", *values)
    operator = Installed(kubectl.into(home))
    # The image keeps its tag, so an installation of before would go on with the old one.
    operator.kubectl("rollout", "restart", f"deployment/{operator.deployment}")
    operator.kubectl("rollout", "status", f"deployment/{operator.deployment}", "--timeout=120s", timeout=150)
    return operator


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
