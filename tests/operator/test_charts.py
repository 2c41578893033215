"""The charts: rendered by helm in both modes, valid for Kubernetes, with no right beyond the needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import programs
from e2e.progress import plain
from e2e.versions import KUBERNETES
from queueworker_operator.api import crd
from queueworker_operator.run.settings import settings_from

OPERATOR, CRDS = Path("charts/queueworker"), Path("charts/queueworker-crds")
CLUSTER_MODE: tuple[str, ...] = ()
NAMESPACED = ("--set", "watch.namespaces={team-a,team-b}")
EVERYTHING = ("--set", "metrics.service.enabled=true", "--set", "imagePullSecrets[0].name=registry")
#: All that the operator does on the API server, by kind.
NEEDED = {
    "queueworkers": {"get", "list", "watch", "patch"},
    "queueworkers/status": {"patch"},
    "queueworkers/finalizers": {"update"},
    "deployments": {"get", "list", "watch", "create", "patch", "delete"},
    "pods": {"get", "list", "watch", "delete"},
    "controllerrevisions": {"list", "create", "patch", "delete"},
    "jobs": {"get", "create", "delete"},
    "secrets": {"get"},
    "events": {"create", "patch"},
}


@pytest.fixture(scope="module")
def helm() -> Path:
    return programs.tool("helm", plain())


def run(*command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], input=stdin, capture_output=True, text=True)


def render(helm: Path, chart: Path, *flags: str) -> str:
    version = ("--kube-version", KUBERNETES)
    done = run(helm, "template", "qw", chart, "--namespace", "ops", *version, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def one(helm: Path, kind: str, *flags: str) -> dict[str, Any]:
    (found,) = (d for d in documents(render(helm, OPERATOR, *flags)) if d["kind"] == kind)
    return found


@pytest.mark.parametrize("chart", [OPERATOR, CRDS], ids=lambda chart: chart.name)
def test_lint(helm: Path, chart: Path) -> None:
    done = run(helm, "lint", "--strict", chart)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("chart", "flags"),
    [(OPERATOR, CLUSTER_MODE), (OPERATOR, NAMESPACED), (OPERATOR, EVERYTHING), (CRDS, ())],
    ids=["cluster mode", "namespaced mode", "everything on", "crds"],
)
def test_what_is_rendered_is_valid(helm: Path, chart: Path, flags: tuple[str, ...]) -> None:
    validate = Path(sys.executable).with_name("kubernetes-validate")
    done = run(validate, "--strict", "-", stdin=render(helm, chart, *flags))
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed for resource " in done.stdout + done.stderr


def test_the_crd_chart_carries_the_generated_crd(helm: Path) -> None:
    (kept,) = documents(render(helm, CRDS))
    assert kept["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert kept == crd.definition()
    assert documents(render(helm, CRDS, "--set", "keep=false")) == [crd.definition()]


def rights(role: dict[str, Any]) -> dict[str, set[str]]:
    return {kind: set(rule["verbs"]) for rule in role["rules"] for kind in rule["resources"]}


def test_cluster_mode_has_the_needed_rights_and_no_other(helm: Path) -> None:
    rendered = documents(render(helm, OPERATOR))
    (binding,) = (d for d in rendered if d["kind"] == "ClusterRoleBinding")
    (role,) = (
        d
        for d in rendered
        if d["kind"] == "ClusterRole" and d["metadata"]["name"] == binding["roleRef"]["name"]
    )
    assert rights(role) == NEEDED


def test_namespaced_mode_binds_nothing_of_the_whole_cluster(helm: Path) -> None:
    rendered = documents(render(helm, OPERATOR, *NAMESPACED))
    assert not [d for d in rendered if d["kind"] == "ClusterRoleBinding"]
    roles = {d["metadata"]["namespace"]: rights(d) for d in rendered if d["kind"] == "Role"}
    lease = {"leases": {"get", "update"}}
    assert roles == {"team-a": NEEDED, "team-b": NEEDED, "ops": lease}
    bound = {d["metadata"]["namespace"]: d["roleRef"]["kind"] for d in rendered if d["kind"] == "RoleBinding"}
    assert bound == {"team-a": "Role", "team-b": "Role", "ops": "Role"}


def test_secrets_can_be_limited_to_names(helm: Path) -> None:
    rendered = documents(render(helm, OPERATOR, "--set", "secrets.names={usage-redis}"))
    rules = [r for d in rendered for r in d.get("rules", ()) if "secrets" in r["resources"]]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in rules] == [(["usage-redis"], ["get"])]


def test_the_lease_is_the_only_one_that_the_operator_may_change(helm: Path) -> None:
    rendered = documents(render(helm, OPERATOR, "--set", "leaseName=other"))
    rules = [r for d in rendered for r in d.get("rules", ()) if "leases" in r["resources"]]
    assert [(r.get("resourceNames"), r["verbs"]) for r in rules] == [
        (None, ["create"]),
        (["other"], ["get", "update"]),
    ]


def test_the_pod_keeps_to_the_restricted_standard(helm: Path) -> None:
    pod = one(helm, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_one_operator_at_a_time(helm: Path) -> None:
    spec = one(helm, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert one(helm, "PodDisruptionBudget")["spec"]["selector"] == spec["selector"]


def test_the_operator_reads_the_environment_that_the_chart_writes(helm: Path) -> None:
    flags = (*NAMESPACED, "--set", "leaseName=other", "--set", "healthPort=9090", "--set", "logLevel=debug")
    (container,) = one(helm, "Deployment", *flags, "--set", "resyncSeconds=20")["spec"]["template"]["spec"][
        "containers"
    ]
    environment = {entry["name"]: entry.get("value", "from-the-pod") for entry in container["env"]}
    settings = settings_from(environment)
    assert settings.namespaces == ("team-a", "team-b")
    assert (settings.lease_name, settings.health_port, settings.log_level) == ("other", 9090, "debug")
    assert (settings.resync_seconds, settings.own_namespace) == (20.0, "from-the-pod")
    assert container["args"] == ["run"]
    assert container["ports"] == [{"name": "health", "containerPort": 9090}]
    probes = {key: container[key]["httpGet"] for key in container if key.endswith("Probe")}
    assert probes == {
        "startupProbe": {"path": "/livez", "port": "health"},
        "livenessProbe": {"path": "/livez", "port": "health"},
        "readinessProbe": {"path": "/readyz", "port": "health"},
    }


def test_the_tag_is_the_charts_version_unless_given(helm: Path) -> None:
    def image(*flags: str) -> str:
        found: str = one(helm, "Deployment", *flags)["spec"]["template"]["spec"]["containers"][0]["image"]
        return found

    version = yaml.safe_load((OPERATOR / "Chart.yaml").read_text())["appVersion"]
    assert image() == f"queueworker/operator:{version}"
    assert image("--set", "image.tag=dev") == "queueworker/operator:dev"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ("watch.namespace=a", "namespace"),
        ("image.tags=dev", "tags"),
        ("logLevel=loud", "logLevel"),
        ("healthPort=80", "healthPort"),
        ("watch.namespaces={Team}", "watch"),
        ("resyncSeconds=0", "resyncSeconds"),
    ],
)
def test_a_wrong_value_is_refused(helm: Path, flags: str, part: str) -> None:
    done = run(helm, "template", OPERATOR, "--kube-version", KUBERNETES, "--set", flags)
    assert done.returncode != 0
    assert part in done.stderr


def test_generated_files_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert crd.main(["--check"]) == 0
    for file in (crd.CRD_FILE, crd.CHART_FILE, crd.PAGE_FILE):
        (tmp_path / file.parent).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / file)
    monkeypatch.chdir(tmp_path)
    assert crd.main(["--check"]) == 0
    crd.CHART_FILE.write_text(crd.chart_text() + "# edited by hand\n")
    assert crd.main(["--check"]) == 1
    assert crd.main([]) == 0
    assert crd.main(["--check"]) == 0
