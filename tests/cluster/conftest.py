"""Fixtures of the cluster tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import fixtures, network
from e2e.cluster import Cluster
from e2e.fixtures import Helm, Kubectl
from tests.cluster.operators import HOME, Installed, OperatorProcess, install, resting
from tests.cluster.story import Story

# pytest finds fixtures and hooks by their names in this module.
pytest_collection_modifyitems = fixtures.pytest_collection_modifyitems
one_node_cluster, three_node_cluster = fixtures.one_node_cluster, fixtures.three_node_cluster
helm, kubectl, namespace = fixtures.helm, fixtures.kubectl, fixtures.namespace


@pytest.fixture(scope="session")
def installed(cluster: Cluster, helm: Helm) -> Installed:
    """The operator of the whole cluster, installed by its chart under its own service account."""
    return install(cluster, helm, HOME, [])


@pytest.fixture
def operator_process(
    installed: Installed,
    cluster: Cluster,
    namespace: str,
    tmp_path: Path,
) -> Iterator[OperatorProcess]:
    """An operator outside the cluster, for the test's namespace only; the installed one rests meanwhile."""
    with resting(installed):
        process = OperatorProcess.of(cluster.kubeconfig, namespace, tmp_path / "operator.log")
        process.start()
        yield process
        if process.runs:
            process.stop()


@pytest.fixture
def unattended(cluster: Cluster) -> Iterator[None]:
    """No operator acts during the test: if another test has installed one, it rests."""
    operator = Installed(Kubectl(cluster.kubectl, cluster.kubeconfig, HOME))
    if not operator.exists:
        yield
        return
    with resting(operator):
        yield


@pytest.fixture
def story(kubectl: Kubectl, cluster: Cluster, namespace: str) -> Story:
    """A namespace of its own."""
    first = network.node_containers(cluster.engine, cluster.name)[0]
    return Story(kubectl.into(namespace), network.address_of(first, version=4))


@pytest.fixture(scope="module")
def rested(installed: Installed) -> Iterator[None]:
    """The installed operator rests during the tests of a module."""
    with resting(installed):
        yield
