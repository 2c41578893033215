"""What an audit was given in secret is not repeated by what is told of its output."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, strategies as st

from queueworker_operator.act.audit_processes import LocalAudits
from queueworker_operator.act.ports import Ports
from queueworker_operator.act.processes import Host
from queueworker_operator.api.audits import AuditJob, shown
from queueworker_operator.api.gates import AnalysisStatus, AuditStatus, BooksStatus, Counts
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorker, QueueWorkerStatus, RolloutStatus
from queueworker_operator.observe.audits import job_fact
from queueworker_operator.observe.masks import Mask, mask_of
from queueworker_operator.plan.actions import StartAudit
from queueworker_operator.plan.audit import AuditAnswered, AuditBroken, AuditFact, AuditRuns
from tests.operator.api_stand_in import served
from tests.operator.resources import START, V2, after, worker
from tests.operator.test_audit_jobs import GOOD, pod

KEY = "-----BEGIN KEY-----\nMIIEabcdefghijk\nlmnopqrstuvwxyz\n-----END KEY-----\n"


def env(name: str, secret: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **more}}}


def template(*variables: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "audit", "image": "a", "env": list(variables)}], **more}}


def failed(template: dict[str, Any]) -> dict[str, Any]:
    conditions = [{"type": "Failed", "status": "True"}]
    return {"metadata": {"name": "a"}, "spec": {"template": template}, "status": {"conditions": conditions}}


async def of_cluster(
    tmp_path: Path, template: dict[str, Any], secrets: dict[str, dict[str, str]], forbidden: str = ""
) -> Mask:
    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        if name == forbidden:
            return web.json_response({"kind": "Status", "message": "forbidden", "code": 403}, status=403)
        if name not in secrets:
            return web.json_response({"kind": "Status", "message": "not found", "code": 404}, status=404)
        data = {key: base64.b64encode(value.encode()).decode() for key, value in secrets[name].items()}
        return web.json_response({"kind": "Secret", "data": data})

    async with served(answer, tmp_path) as api:
        return await mask_of(api, "workers", template)


def said(text: str, mask: Mask, template: dict[str, Any]) -> str:
    found = job_fact(failed(template), [pod(text, 1)], mask)
    assert isinstance(found, AuditBroken)
    return found.message


async def test_what_a_job_prints_of_its_secrets_is_hidden(tmp_path: Path) -> None:
    one = template(
        env("STORE_PASSWORD", "store", "password"),
        env("STORE_URL", "urls", "url"),
        {"name": "PLAIN", "value": "redis://me:plain0pw@redis:6379"},
        env("PIN", "store", "pin"),
        volumes=[{"name": "tls", "secret": {"secretName": "tls"}}],
    )
    secrets = {
        "store": {"password": "hunter22", "pin": "12", "unused": "never-given"},
        "urls": {"url": "clickhouse://u:in%20url@store:9000"},
        "tls": {"tls.key": KEY},
    }
    mask = await of_cluster(tmp_path, one, secrets)
    text = "login with hunter22 of in url and in%20url and plain0pw failed, 12 tries, never-given "
    text += "MIIEabcdefghijk"
    told = said(text, mask, one)
    assert told.endswith("login with *** of *** and *** and *** failed, 12 tries, never-given ***.")
    assert "hunter22" not in repr(mask)
    assert "***" in said(KEY, mask, one)
    assert "lmnop" not in said(KEY, mask, one)


async def test_an_answer_that_can_be_read_is_read_as_it_is(tmp_path: Path) -> None:
    one = template(env("PASSWORD", "store", "password"))
    mask = await of_cluster(tmp_path, one, {"store": {"password": "expected"}})
    over = failed(one) | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert isinstance(job_fact(over, [pod(GOOD)], mask), AuditAnswered)
    broken = job_fact(over, [pod("expected: 3")], mask)
    assert isinstance(broken, AuditBroken)
    assert "its answer is ***: 3" in broken.message


@pytest.mark.parametrize("forbidden", ["store", ""])
async def test_nothing_is_shown_where_a_secret_cannot_be_read(tmp_path: Path, forbidden: str) -> None:
    one = template(env("PASSWORD", "store", "password"))
    mask = await of_cluster(tmp_path, one, {}, forbidden)
    told = said("hunter22", mask, one)
    assert "hunter22" not in told
    assert "the Secret store cannot be read" in told
    assert "exit code 1" in told


async def test_an_optional_secret_that_is_not_there_hides_nothing(tmp_path: Path) -> None:
    one = template(env("PASSWORD", "store", "password", optional=True))
    mask = await of_cluster(tmp_path, one, {})
    assert said("no route", mask, one).endswith("It said: no route.")


def test_a_secret_is_hidden_before_a_long_text_is_cut() -> None:
    mask = Mask.of(["correct horse battery staple"])
    assert "staple" not in mask.told(b"correct horse battery staple" + b"." * 110)
    assert mask.told(b"battery staple was refused") == "*** was refused", "it was cut off where it was read"


@given(st.lists(st.text("ab \n", min_size=4, max_size=9)), st.text("ab c", max_size=80))
def test_no_secret_is_left_in_what_is_told(secrets: list[str], text: str) -> None:
    told = Mask.of(secrets).told(text.encode())
    for secret in (" ".join(one.split()) for one in secrets):
        assert len(secret) < 4 or secret not in told
    assert Mask().told(text.encode()) == shown(text.encode())


async def test_a_local_audit_hides_what_the_file_gave_it(tmp_path: Path) -> None:
    command = ["python", "-c", "import os; raise SystemExit('no store at ' + os.environ['STORE'])"]
    container = {"name": "audit", "image": "none", "command": command, "env": [env("STORE", "s", "url")]}
    job = {"template": {"spec": {"containers": [container]}}, "timeoutSeconds": 60}
    secrets = {"s": {"url": "sql://me:hunter22@store"}}
    gates = [{"type": "UsageAccounting", "job": job}]
    steps = [{"setCanaryScale": {"replicas": 1}}, {"analysis": {"durationSeconds": 60}}]
    resource = worker(spec__rollout={"strategy": "Canary", "steps": steps, "gates": gates})
    assert isinstance(resource, QueueWorker)
    books = BooksStatus(at=START, canary=Counts(), stable=Counts())
    counted = AuditStatus(name="a", due_at=START, ended=books)
    analysis = AnalysisStatus(revision=V2.name, settings="s", began=books, began_at=START, audit=counted)
    rollout = RolloutStatus(target=V2.name, stage=Stage.ANALYZING, analysis=analysis)
    resource = replace(resource, status=QueueWorkerStatus(rollout=rollout))
    ended = asyncio.Event()
    host = Host(tmp_path, Ports(), lambda *_: None, lambda *_: None, ended.set)
    audits = LocalAudits(host, lambda: after(0))
    audits.start(StartAudit("a", AuditJob.model_validate(job), {}), secrets, "default")
    async with asyncio.timeout(60):
        found: AuditFact = AuditRuns("a")
        while isinstance(found, AuditRuns):
            await ended.wait()
            ended.clear()
            found = await audits.latest(resource, secrets)
    await audits.close()
    assert isinstance(found, AuditBroken)
    assert found.message.endswith("It said: no store at ***.")
