"""pytest fixtures on the same code as the command line: `pytest_plugins = ["e2e.fixtures"]`.

A session makes its own cluster, named after its process, and removes it at the end, also on Ctrl-C and
SIGTERM; that of a session that was killed goes when the next one begins. QUEUEWORKER_E2E_CLUSTER names a
cluster to use instead, made if needed and left running.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from e2e import appimages, cluster, programs
from e2e.commands import run
from e2e.progress import plain

T = TypeVar("T")

REUSE_VARIABLE = "QUEUEWORKER_E2E_CLUSTER"
SESSION_PREFIX = "e2e-"
TEST_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl bound to one cluster and, where `namespace` is not empty, one namespace."""

    program: Path
    kubeconfig: Path
    namespace: str = ""

    def __call__(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run it. Raises SetupError with its output when it fails and `check` is set."""
        scope = ["--namespace", self.namespace] if self.namespace else []
        command: list[str | Path] = [self.program, "--kubeconfig", self.kubeconfig, *scope, *arguments]
        return run(command, stdin=stdin, check=check, timeout=timeout)

    def json(self, *arguments: str) -> Any:
        """The parsed output of the command with `-o json`."""
        return json.loads(self(*arguments, "-o", "json").stdout)

    def apply(self, *documents: dict[str, Any], server_side: bool = False) -> None:
        """Apply the documents."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        extra = ["--server-side"] if server_side else []
        self("apply", *extra, "--filename", "-", stdin=json.dumps(listed))

    def into(self, namespace: str) -> Kubectl:
        """The same, bound to another namespace."""
        return Kubectl(self.program, self.kubeconfig, namespace)


@dataclass(frozen=True, slots=True)
class Helm:
    """helm bound to one cluster."""

    program: Path
    kubeconfig: Path

    def __call__(
        self, *arguments: str | Path, check: bool = True, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run it. Raises SetupError with its output when it fails and `check` is set."""
        command = [self.program, "--kubeconfig", self.kubeconfig, *arguments]
        return run(command, check=check, timeout=timeout)


def wait_until(probe: Callable[[], T | None], what: str, seconds: float = 60.0, poll: float = 0.25) -> T:
    """The first result of `probe` that is not None or False; fails the test with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found is not None and found is not False:
            return found
        if time.monotonic() >= deadline:
            pytest.fail(f"{what}: not seen within {seconds:.0f} s")
        time.sleep(poll)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a cluster, and let their time limit begin after their fixtures.

    The first cluster on a machine takes many minutes, which are no test's own.
    """
    for item in items:
        if not {"cluster", "three_node_cluster"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


#: Not of the process alone: what a dead one left must not be taken for ours.
_OWN_NAME = f"{SESSION_PREFIX}{os.getpid()}-{secrets.token_hex(2)}"


def _session_cluster(nodes: int) -> Iterator[cluster.Cluster]:
    reused = os.environ.get(REUSE_VARIABLE, "")
    suffix = "" if nodes == 1 else f"-{nodes}"
    name = f"{reused or _OWN_NAME}{suffix}"
    progress = plain()
    with nullcontext() if reused else cluster.of_this_run(name, progress):
        cluster.remove_left(progress)
        made = cluster.up(name, nodes, progress)
        for built in appimages.build_and_load(made, appimages.ALL_IMAGES, progress):
            progress.say(f"{built.reference}: {built.megabytes:.0f} MB")
        yield made


@pytest.fixture(scope="session", name="cluster")
def one_node_cluster() -> Iterator[cluster.Cluster]:
    """A ready cluster of one node, with our images loaded."""
    yield from _session_cluster(1)


@pytest.fixture(scope="session")
def three_node_cluster() -> Iterator[cluster.Cluster]:
    """A ready cluster of a control plane and two workers, with our images loaded."""
    yield from _session_cluster(3)


@pytest.fixture(scope="session")
def kubectl(cluster: cluster.Cluster) -> Kubectl:
    """kubectl of the one-node cluster."""
    return Kubectl(cluster.kubectl, cluster.kubeconfig)


@pytest.fixture(scope="session")
def helm(cluster: cluster.Cluster) -> Helm:
    """helm of the one-node cluster."""
    return Helm(programs.tool("helm", plain()), cluster.kubeconfig)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A fresh namespace, deleted afterwards; what a test left in it goes with it."""
    name = f"qw-{uuid4().hex[:10]}"
    kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false", check=False)
