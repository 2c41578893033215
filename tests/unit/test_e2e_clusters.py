"""Names, versions and files of clusters that can be decided without one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from e2e import cluster, golang, network, programs, versions
from e2e.failure import SetupError
from e2e.locations import GO_MODULES, REPOSITORY


def test_a_cluster_is_found_by_its_short_and_its_full_name() -> None:
    assert cluster.full_name("dev") == "qw-dev"
    assert cluster.full_name("qw-dev") == "qw-dev"


@pytest.mark.parametrize("name", ["", "Dev", "a/b", "-a", "a-", "x" * 33, "a b", "qw-"])
def test_a_name_that_the_engine_would_refuse_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(SetupError, match="lower-case letters"):
        cluster.full_name(name)


@pytest.mark.parametrize("nodes", [1, 3])
def test_kind_gets_one_control_plane_and_no_network_plugin(nodes: int) -> None:
    document = yaml.safe_load(cluster.kind_configuration(nodes))
    roles = [node["role"] for node in document["nodes"]]
    assert roles == ["control-plane", "worker", "worker"][:nodes]
    assert document["networking"]["disableDefaultCNI"] is True
    (patch,) = document["kubeadmConfigPatches"]
    assert yaml.safe_load(patch)["failCgroupV1"] is False


def test_pods_of_a_node_get_addresses_of_its_own_range() -> None:
    document = json.loads(network.conflist("10.244.2.0/24"))
    link, ports = document["plugins"]
    assert link["ipam"]["ranges"] == [[{"subnet": "10.244.2.0/24"}]]
    assert ports["type"] == "portmap"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("go1.26.8", (1, 26, 8)), ("go1.19.8", (1, 19, 8)), ("devel", ()), ("go1.27rc1", (1, 27))],
)
def test_go_versions_are_compared_as_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert golang.parse_version(text) == expected


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("go.etcd.io/etcd/server/v3", "server"),
        ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
        ("helm.sh/v3/cmd/v", "v"),
    ],
)
def test_the_name_that_go_gives_a_program(package: str, name: str) -> None:
    assert programs.default_name(package) == name


def test_every_module_is_pinned_with_its_checksums() -> None:
    for name, module in programs.MODULES.items():
        folder = GO_MODULES / name
        text = (folder / "go.mod").read_text()
        assert f"module queueworker.example/e2e/{name}" in text
        external = [path for path, _ in module.packages if not path.startswith("queueworker.example/")]
        assert not external or (folder / "go.sum").is_file()
    kubernetes = (GO_MODULES / "kubernetes" / "go.mod").read_text()
    assert f"k8s.io/kubernetes {versions.KUBERNETES}\n" in kubernetes
    # The staging modules carry 0 for the major version, and all of them the same release.
    staged = versions.KUBERNETES.replace("v1.", "v0.", 1)
    replaced = [line.split()[-1] for line in kubernetes.splitlines() if " => " in line]
    assert len(replaced) > 25
    assert set(replaced) == {staged}


@pytest.mark.parametrize(
    "arguments", [["cluster", "down", "--engine"], ["cluster", "down", "--all", "--name", "x"]]
)
def test_contradicting_options_are_refused_before_anything_is_done(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "e2e", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 2
    assert "Error:" in result.stderr


def test_what_a_person_can_mend_is_one_line_without_a_traceback() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "e2e", "tool", "terraform"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["error: tool terraform: unknown; known are helm, kind, kubectl"]
