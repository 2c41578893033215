"""A run of these tests that is stopped removes its own cluster; one that is killed leaves it to the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from e2e import cluster as clusters, network
from e2e.cluster import Cluster
from e2e.fixtures import REUSE_VARIABLE, wait_until
from e2e.locations import REPOSITORY
from e2e.progress import plain

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]


@contextmanager
def another_run(cluster: Cluster, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A run with a cluster of its own, which has its first node already; the run, and its cluster's name."""
    before = set(clusters.names(cluster.engine))
    environment = {name: value for name, value in os.environ.items() if name != REUSE_VARIABLE}
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "tests/cluster/test_crd.py"]
    with log.open("wb") as output:
        run = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=output)
    try:

        def made() -> str | None:
            assert run.poll() is None, log.read_text()
            return next(iter(set(clusters.names(cluster.engine)) - before), None)

        yield run, wait_until(made, "the other run makes its cluster", 120)
    finally:
        if run.poll() is None:
            run.kill()
        run.wait(30)
        clusters.remove_left(plain())


def owner(name: str) -> str:
    """Whose the cluster is, as `cluster status` says."""
    return next(one.owner for one in clusters.status() if one.name == name)


def test_a_run_that_is_stopped_while_it_makes_its_cluster_leaves_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    with another_run(cluster, tmp_path / "log") as (run, name):
        assert owner(name) == f"process {run.pid} in {REPOSITORY}, which runs"
        run.send_signal(signal.SIGTERM)
        log = tmp_path / "log"
        deadline = time.monotonic() + 60
        while "SIGINT: still removing" not in log.read_text() and run.poll() is None:
            assert time.monotonic() < deadline, log.read_text()
            run.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                run.wait(0.2)
        assert run.wait(90) == pytest.ExitCode.INTERRUPTED, log.read_text()
        assert "SIGINT: still removing" in log.read_text()
        assert name not in {one.name for one in clusters.status()}
    assert network.node_containers(cluster.engine, cluster.name), "this run's own cluster is there"


def test_the_cluster_of_a_run_that_was_killed_is_removed_by_the_next(
    cluster: Cluster, tmp_path: Path
) -> None:
    with another_run(cluster, tmp_path / "log") as (run, name):
        assert clusters.remove_left(plain()) == [], "it runs, and so keeps its cluster"
        run.kill()
        run.wait(30)
        assert owner(name) == f"process {run.pid} in {REPOSITORY}, which has ended"
        assert clusters.remove_left(plain()) == [name]
        assert name not in {one.name for one in clusters.status()}
    assert network.node_containers(cluster.engine, cluster.name), "this run's own cluster is there"
