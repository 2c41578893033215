"""Which worker `forceFailure` ends, and how: a stand-in for the API server writes down what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web

from queueworker_operator.act.killing import kill_one
from tests.operator.api_stand_in import served

Body = dict[str, Any]
LABELS = {"queueworker.dev/worker": "q", "queueworker.dev/version": "v1"}
DEPLOYMENT = {
    "metadata": {"name": "q-v1", "namespace": "workers"},
    "spec": {"selector": {"matchLabels": LABELS}},
}


def pod(name: str, ready: str) -> Body:
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name, "uid": f"{name}-uid"}, "status": {"conditions": conditions}}


async def killed(folder: Path, *pods: Body) -> tuple[bool, list[tuple[str, Body]]]:
    """What `kill_one` says, and each deletion. Between the two the permission is asked for."""
    deleted: list[tuple[str, Body]] = []
    permitted: list[None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            assert len(permitted) == 1
            deleted.append((request.path, await request.json()))
            return web.json_response({})
        assert request.query["labelSelector"] == "queueworker.dev/version=v1,queueworker.dev/worker=q"
        return web.json_response({"items": list(pods), "metadata": {}})

    async with served(answer, folder) as api:
        told = await kill_one(api, DEPLOYMENT, lambda: permitted.append(None))
    return told, deleted


async def test_the_first_of_those_that_serve_is_killed_without_any_time(tmp_path: Path) -> None:
    pods = (pod("c", "True"), pod("b", "True"), pod("a", "False"))
    told, deleted = await killed(tmp_path, *pods)
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "b-uid"},
    }
    assert (told, deleted) == (True, [("/api/v1/namespaces/workers/pods/b", options)])


async def test_where_none_serves_nobody_is_killed(tmp_path: Path) -> None:
    assert await killed(tmp_path, pod("a", "False")) == (False, [])
