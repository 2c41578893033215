"""What a Prometheus is asked, and what becomes of whatever answers at its URL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from queueworker_operator.api.audits import AuditQuery
from queueworker_operator.api.gates import AnalysisStatus, AuditStatus, BooksStatus, Counts
from queueworker_operator.observe.queries import NoNumberError, QueryAudits, number_in
from queueworker_operator.plan.audit import NOT_AUDITED, AuditBroken, AuditFact, AuditMeasured, AuditRuns
from tests.operator.resources import ANY, START, V1, V2, after, on
from worker_runtime.brokers.embedded import free_port

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """The URL of something that answers as a Prometheus would be asked."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {}, "value": [1700000000.5, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def analysis(name: str = "a", due: float = 0) -> AnalysisStatus:
    ended = BooksStatus(at=after(60), canary=Counts(committed=900), stable=Counts())
    return AnalysisStatus(
        revision=V2.name,
        settings="s",
        began=BooksStatus(at=START, canary=Counts(committed=100), stable=Counts()),
        began_at=START,
        audit=AuditStatus(name=name, due_at=after(due), ended=ended),
    )


RESOURCE = replace(ANY, status=on("v1"))
QUERY = 'lost{canary="$canary",stable="$stable"} + $committed + $committedEver'


async def asked(audits: QueryAudits, url: str, of: AnalysisStatus | None = None) -> AuditFact:
    """What is known when it has answered."""
    query = AuditQuery(url=url, query=QUERY)
    async with asyncio.timeout(60):
        found = await audits.latest("k", RESOURCE, of or analysis(), query)
        while isinstance(found, AuditRuns):  # each time it waits for a moment
            found = await audits.latest("k", RESOURCE, of or analysis(), query)
    return found


async def test_it_is_asked_once_with_what_it_has_to_know() -> None:
    got: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/api/v1/query"
        got.append(request.query["query"])
        return web.json_response(vector("3"))

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        for _ in range(3):
            assert await asked(audits, url) == AuditMeasured("a", 3.0)
        assert got == [f'lost{{canary="{V2.name}",stable="{V1.name}"}} + 800 + 900']
        assert await asked(audits, url, analysis("b")) == AuditMeasured("b", 3.0)
        assert len(got) == 2
        assert await audits.latest("k", RESOURCE, analysis("c", due=71), AuditQuery(url=url, query="x")) == (
            NOT_AUDITED
        ), "not before it is due"
    await audits.close()


async def test_whoever_takes_its_time_holds_nobody_up_and_is_not_left_behind() -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        begun.set()
        await never.wait()
        return web.json_response(vector("0"))

    audits = QueryAudits(lambda: after(70))
    async with answering(answer) as url:
        assert await audits.latest("k", RESOURCE, analysis(), AuditQuery(url=url, query="x")) == AuditRuns(
            "a"
        )
        await asyncio.wait_for(begun.wait(), 60)
        await asyncio.wait_for(audits.close(), 60)


async def test_who_does_not_answer_is_told() -> None:
    audits = QueryAudits(lambda: after(70))
    found = await asked(audits, f"http://127.0.0.1:{free_port()}")
    assert isinstance(found, AuditBroken)
    assert "cannot be asked" in found.message

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/secret")

    async with answering(elsewhere) as url:
        found = await asked(audits, url, analysis("b"))
    assert isinstance(found, AuditBroken)
    assert "status 302" in found.message
    await audits.close()


@pytest.mark.parametrize(
    ("status", "answer", "part"),
    [
        (400, {"status": "error", "errorType": "bad_data", "error": "parse error: x"}, "parse error: x"),
        (200, vector(), "0 series"),
        (200, vector("1", "2"), "2 series"),
        (200, vector("NaN"), "nan"),
        (200, vector("+Inf"), "inf"),
        (200, vector("many"), "no number"),
        (200, {"status": "success", "data": {"resultType": "matrix", "result": []}}, "matrix"),
        (200, {"status": "success", "data": {"resultType": "scalar", "result": [1]}}, "no number"),
        (200, {"status": "success"}, "not as a Prometheus"),
        (200, {"secret": "of somebody"}, "not as a Prometheus"),
        (200, ["secret"], "not as a Prometheus"),
    ],
)
def test_what_is_no_number(status: int, answer: object, part: str) -> None:
    with pytest.raises(NoNumberError) as refused:
        number_in(status, json.dumps(answer).encode())
    assert part in str(refused.value)
    assert "secret" not in str(refused.value), "of what is no Prometheus nothing is quoted"


def test_one_number() -> None:
    assert number_in(200, json.dumps(vector("-7.5")).encode()) == -7.5
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [1.5, "4"]}}
    assert number_in(200, json.dumps(scalar).encode()) == 4.0


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "data", "resultType", "result", "value", "error"]), inner
        )
    ),
    max_leaves=10,
)


@given(json_values)
def test_whatever_is_answered_is_a_number_or_told(answer: object) -> None:
    try:
        number_in(200, json.dumps(answer).encode())
    except NoNumberError:
        pass


@given(st.binary(max_size=60))
def test_whatever_bytes_are_answered_are_told(raw: bytes) -> None:
    with pytest.raises(NoNumberError):
        number_in(200, raw)
