"""The Job that counts totals, and what a Job and its pods say in turn."""

from __future__ import annotations

from typing import Any

import pytest

from queueworker_operator.act.audits import audit_body
from queueworker_operator.api.audits import AuditJob, Totals
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.observe.audits import job_fact
from queueworker_operator.plan.actions import StartAudit
from queueworker_operator.plan.audit import AuditAnswered, AuditBroken, AuditRuns
from tests.operator.resources import worker

Body = dict[str, Any]


def rendered(template: Body, resource: QueueWorker | None = None) -> Body:
    resource = resource or worker()
    job = AuditJob.model_validate({"template": template, "timeoutSeconds": 90})
    told = {"QUEUEWORKER_QUEUE": "stats-usage", "QUEUEWORKER_AUDIT_ARM": "8"}
    return audit_body(resource.metadata, resource.spec, StartAudit("stats-usage-audit-1", job, told))


def env(body: Body) -> dict[str, Any]:
    (container,) = body["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_it_runs_once_for_a_bounded_time_and_belongs_to_the_resource() -> None:
    body = rendered({"spec": {"containers": [{"name": "audit", "image": "a"}], "restartPolicy": "Always"}})
    spec = body["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 90)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert [(one["name"], one["uid"]) for one in body["metadata"]["ownerReferences"]] == [
        ("stats-usage", "u1")
    ]


def test_its_pod_is_never_taken_for_a_worker() -> None:
    labels = {"queueworker.dev/worker": "stats-usage", "team": "billing"}
    body = rendered({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}})
    found = body["spec"]["template"]["metadata"]["labels"]
    assert found["team"] == "billing"
    assert not [name for name in found if name.startswith("queueworker.dev/")]
    assert not [name for name in body["metadata"]["labels"] if name.startswith("queueworker.dev/")]


def test_it_is_told_where_the_broker_is_as_workers_are_and_where_its_answer_goes() -> None:
    own = [
        {"name": "QUEUEWORKER_AUDIT_ARM", "value": "mine"},
        {"name": "STORE", "value": "$(QUEUEWORKER_QUEUE)"},
    ]
    template = {"spec": {"containers": [{"name": "audit", "image": "a", "env": own}]}}
    found = env(rendered(template))
    assert found["QUEUEWORKER_BROKER_URL"] == "redis://redis:6379/0"
    assert found["QUEUEWORKER_NAMESPACE"] == "utopia-queue"
    assert found["QUEUEWORKER_AUDIT_ARM"] == "8", "what it is told is not for the template to say"
    assert found["STORE"] == "$(QUEUEWORKER_QUEUE)"
    assert list(found)[-1] == "STORE", "so that it may refer to the others"
    assert found["QUEUEWORKER_RESULT_FILE"] == "/dev/termination-log"
    secret = worker(spec__broker={"redis": {"secretRef": {"name": "redis"}}})
    assert env(rendered(template, secret))["QUEUEWORKER_BROKER_URL"] == {
        "secretKeyRef": {"name": "redis", "key": "url"}
    }
    template["spec"]["containers"][0]["terminationMessagePath"] = "/tmp/said"
    assert env(rendered(template))["QUEUEWORKER_RESULT_FILE"] == "/tmp/said"


def test_the_container_named_audit_is_told_not_its_helper() -> None:
    containers = [{"name": "proxy", "image": "p"}, {"name": "audit", "image": "a"}]
    body = rendered({"spec": {"containers": containers}})
    proxy, audit = body["spec"]["template"]["spec"]["containers"]
    assert "env" not in proxy
    assert audit["env"]


GOOD = '{"expected": 3, "counted": 3, "duplicates": 0, "lost": 0}'


def job(condition: str = "", **more: str) -> Body:
    body = rendered(
        {"spec": {"containers": [{"name": "proxy", "image": "p"}, {"name": "audit", "image": "a"}]}}
    )
    conditions = [{"type": condition, "status": "True", **more}] if condition else []
    return body | {"status": {"conditions": conditions}}


def pod(message: str | None, code: int = 0) -> Body:
    ended: Body = {"exitCode": code} | ({"message": message} if message is not None else {})
    statuses = [
        {"name": "proxy", "state": {"terminated": {"exitCode": 0, "message": "not mine"}}},
        {"name": "audit", "state": {"terminated": ended}},
    ]
    return {"status": {"containerStatuses": statuses}}


def test_a_job_runs_until_it_says_that_it_is_over() -> None:
    assert job_fact(job(), [pod(GOOD)]) == AuditRuns("stats-usage-audit-1")
    assert job_fact(job("SuccessCriteriaMet"), [pod(GOOD)]) == AuditRuns("stats-usage-audit-1")


def test_its_answer_is_what_its_container_said_at_the_end() -> None:
    totals = Totals(expected=3, counted=3, duplicates=0, lost=0)
    assert job_fact(job("Complete"), [pod(GOOD)]) == AuditAnswered("stats-usage-audit-1", totals)


@pytest.mark.parametrize(
    ("body", "pods", "part"),
    [
        pytest.param(job("Complete"), [], "its pod is gone", id="no pod"),
        pytest.param(job("Complete"), [pod(None)], "no answer", id="no message"),
        pytest.param(job("Complete"), [pod("ok")], "its answer is ok", id="no JSON"),
        pytest.param(job("Complete"), [pod(GOOD + " " * 4096)], "4096 bytes", id="too long"),
        pytest.param(job("Failed"), [pod(GOOD, 3)], "exit code 3", id="a good answer, and a bad end"),
        pytest.param(job("Failed"), [pod("no route.", 1)], "no route.", id="what it said last"),
        pytest.param(
            job("Failed", reason="DeadlineExceeded", message="Job was active longer"),
            [],
            "DeadlineExceeded",
            id="too late",
        ),
        pytest.param(
            job("Failed", reason="DeadlineExceeded"), [pod(GOOD)], "DeadlineExceeded", id="and said"
        ),
    ],
)
def test_what_is_no_answer(body: Body, pods: list[Body], part: str) -> None:
    found = job_fact(body, pods)
    assert isinstance(found, AuditBroken)
    assert part in found.message
    assert ".." not in found.message
