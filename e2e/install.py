"""Install the operator from this clone's charts and image into a cluster of ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from e2e.appimages import OPERATOR_IMAGE
from e2e.commands import run
from e2e.locations import REPOSITORY

CHARTS = REPOSITORY / "charts"
RELEASE = "queueworker"


def install(helm: Path, kubectl: Path, kubeconfig: Path, home: str, namespaces: Sequence[str] = ()) -> None:
    """Both charts into namespace `home`; returns when the operator is ready with the image as it is now.

    No namespaces: it watches the whole cluster. Raises SetupError.
    """
    repository, _, tag = OPERATOR_IMAGE.rpartition(":")
    image = json.dumps({"repository": repository, "tag": tag})
    watch = json.dumps({"namespaces": list(namespaces)})
    command: list[str | Path] = [
        helm,
        "--kubeconfig",
        kubeconfig,
        "upgrade",
        "--install",
        "--wait",
        "--timeout=180s",
    ]
    command += ["--namespace", home, "--create-namespace"]
    run([*command, "--take-ownership", "queueworker-crds", CHARTS / "queueworker-crds"], timeout=200)
    values: list[str | Path] = ["--set-json", f"image={image}", "--set-json", f"watch={watch}"]
    run([*command, RELEASE, CHARTS / "queueworker", *values], timeout=200)
    # The image keeps its tag, so an installation of before would go on with the old one.
    inside: list[str | Path] = [kubectl, "--kubeconfig", kubeconfig, "--namespace", home, "rollout"]
    run([*inside, "restart", f"deployment/{RELEASE}"], timeout=60)
    run([*inside, "status", f"deployment/{RELEASE}", "--timeout=150s"], timeout=180)
