"""The CRD before a real API server: it is accepted, and each rule lets one object through and refuses one,
with the message that tells what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.fixtures import Kubectl
from queueworker_operator.api.rules import RULES, TRANSITIONS
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from tests.operator.resources import after, body, facts, seen, target_of, worker
from tests.operator.rule_cases import CASES, CHANGES, MALFORMED, Case, Change

pytestmark = pytest.mark.cluster

MESSAGES = {rule.id: rule.message for rule in RULES} | {rule.id: rule.message for rule in TRANSITIONS}
CRD = Path("crds/queueworkers.yaml")


@pytest.fixture(scope="module")
def crd(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(CRD))
    kubectl("wait", "--for=condition=Established", "crd/queueworkers.queueworker.dev", "--timeout=60s")


@pytest.fixture
def server(crd: None, kubectl: Kubectl, namespace: str) -> Kubectl:
    return kubectl.into(namespace)


def sent(resource: dict[str, Any]) -> str:
    """As a user would send it: without what an API server fills in."""
    metadata = {"name": resource["metadata"]["name"]}
    return json.dumps(resource | {"metadata": metadata})


def apply(server: Kubectl, resource: dict[str, Any], *flags: str) -> str:
    """The refusal, or an empty text when the object was accepted."""
    done = server("apply", "--server-side", *flags, "--filename", "-", stdin=sent(resource), check=False)
    return "" if done.returncode == 0 else done.stderr


def test_the_server_accepts_the_schema_as_structural_and_within_its_cost_budget(server: Kubectl) -> None:
    conditions = server.json("get", "crd/queueworkers.queueworker.dev")["status"]["conditions"]
    held = {c["type"]: c["status"] for c in conditions}
    assert held["Established"] == "True"
    assert held["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in held


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule(server: Kubectl, case: Case) -> None:
    assert MESSAGES[case.rule] in apply(server, case.refused)
    assert apply(server, case.accepted) == ""


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.rule)
def test_change(server: Kubectl, change: Change) -> None:
    assert apply(server, change.before) == ""
    assert MESSAGES[change.rule] in apply(server, change.refused)
    assert apply(server, change.accepted) == ""


@pytest.mark.parametrize(("path", "resource"), MALFORMED, ids=[path for path, _ in MALFORMED])
def test_malformed(server: Kubectl, path: str, resource: dict[str, Any]) -> None:
    assert path in apply(server, resource, "--dry-run=server")


def test_a_misspelt_field_is_refused(server: Kubectl) -> None:
    assert "spec.replica" in apply(server, body(spec__replica=2))


def test_the_example_is_accepted_and_defaulted(server: Kubectl) -> None:
    example = yaml.safe_load(Path("examples/queueworker.yaml").read_text())
    assert apply(server, example) == ""
    spec = server.json("get", "queueworker", example["metadata"]["name"])["spec"]
    assert (spec["shutdownSeconds"], spec["progressDeadlineSeconds"]) == (30, 600)
    assert spec["broker"]["redis"]["keyNamespace"] == "utopia-queue"
    assert spec["template"] == example["spec"]["template"]


def test_scale_and_columns(unattended: None, server: Kubectl) -> None:
    """The planner's own status is stored unchanged, and shows in the columns and in the scale subresource."""
    assert apply(server, body()) == ""
    resource = worker()
    revision: RevisionFacts = seen(target_of(resource), 2, coroutines=4)
    status = plan(resource, facts(resource, revision, now=after(0)), after(0)).status.to_body()
    patch = json.dumps({"status": status})
    server("patch", "qw", "stats-usage", "--subresource=status", "--type=merge", "--patch", patch)
    assert server.json("get", "qw", "stats-usage")["status"] == status
    header, row = server("get", "qw").stdout.splitlines()
    assert header.split() == [
        "NAME",
        "QUEUE",
        "BROKER",
        "READY",
        "STAGE",
        "STEP",
        "PREFETCH",
        "DESIRED",
        "AVAILABLE",
        "AGE",
    ]
    assert row.split()[:8] == ["stats-usage", "stats-usage", "Redis", "True", "Idle", "100", "2", "2"]
    assert len(row) <= 100
    assert "stats-usage" in server("get", "queue").stdout
    server("scale", "qw/stats-usage", "--replicas=5")
    scale = server.json("get", "qw", "stats-usage", "--subresource=scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (5, 2)
    assert scale["status"]["selector"] == "queueworker.dev/worker=stats-usage"
    assert server.json("get", "qw", "stats-usage")["metadata"]["generation"] == 2
