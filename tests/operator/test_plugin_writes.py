"""The verbs of `kubectl queueworker` where an API server refuses, or somebody else writes too."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.local.test_plugin import plugin
from tests.operator.api_stand_in import served
from tests.operator.resources import V2, body, on, template


def resource(**changes: Any) -> dict[str, Any]:
    """A change to v2 is under way."""
    status = on("v1", "v2").model_copy(update={"observed_generation": 1}).to_body()
    rows = [row(name) for name in (status["stable"], {"revision": V2.name, "version": V2.version})]
    return body(spec__template=template("demo:v2"), status=status | {"revisions": rows}, **changes)


def row(revision: dict[str, Any]) -> dict[str, Any]:
    named = {
        "name": revision["revision"],
        "version": revision["version"],
        "deployment": "d",
        "role": "Stable",
    }
    return named | {"replicas": 1, "readyReplicas": 1, "prefetch": 100}


@dataclass
class Server:
    """One QueueWorker. A patch is held to its tests and its change, as a real server does."""

    found: dict[str, Any] = field(default_factory=resource)
    #: What others write just before the next patches arrive.
    others: list[dict[str, Any]] = field(default_factory=list)
    refusal: tuple[int, str] | None = None
    refuses_reading: bool = False
    patches: list[tuple[dict[str, str], list[dict[str, Any]]]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            return web.json_response({"items": [self.event(request)], "metadata": {}})
        if request.path.endswith("/pods"):
            return web.json_response({"message": "pods are forbidden"}, status=403)
        if request.method == "GET" and not self.refuses_reading:
            return web.json_response(self.found)
        if self.refusal is not None:
            code, message = self.refusal
            return web.json_response({"code": code, "reason": "Forbidden", "message": message}, status=code)
        operations = json.loads(await request.text())
        self.patches.append((dict(request.query), operations))
        if self.others:
            self.found["spec"].update(self.others.pop(0))
            self.found["metadata"]["generation"] += 1
        new = copy.deepcopy(self.found)
        for one in operations:
            place, key = new, ""
            *parents, key = one["path"].strip("/").split("/")
            for parent in parents:
                place = place[parent]
            if one["op"] == "test" and place[key] != one["value"]:
                message = "the server rejected our request due to an error in our request"
                return web.json_response({"code": 422, "reason": "Invalid", "message": message}, status=422)
            if one["op"] == "add":
                place[key] = one["value"]
            if one["op"] == "remove":
                del place[key]
        if "dryRun" not in request.query:
            new["metadata"]["generation"] += 1
            self.found = new
        return web.json_response(new)

    def event(self, request: web.Request) -> dict[str, Any]:
        note = f"chosen by {request.query['fieldSelector']}"
        said = {
            "type": "Normal",
            "reason": "Promoted",
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "note": note,
        }
        return {"metadata": {"name": "one"}, **said}


async def ask(server: Server, folder: Path, *arguments: str) -> tuple[int, str, str]:
    async with served(server.answer, folder):
        return await plugin(*arguments, "--kubeconfig", str(folder / "kubeconfig"))


async def test_it_writes_as_itself_and_names_another_writer(tmp_path: Path) -> None:
    owned = [{"manager": "argo", "operation": "Apply", "fieldsV1": {"f:spec": {"f:request": {}}}}]
    server = Server(resource(metadata__managedFields=owned))
    code, told, error = await ask(server, tmp_path, "abort", "stats-usage", "-n", "workers")
    assert code == 0, error
    ((query, _),) = server.patches
    assert query == {"fieldManager": "kubectl-queueworker"}
    assert server.found["spec"]["request"]["action"] == "Abort"
    assert server.found["spec"]["request"]["id"].startswith("abort-")
    assert "spec.request is also written by argo, which may put it back" in told


async def test_a_dry_run_is_checked_by_the_server_and_kept_by_nobody(tmp_path: Path) -> None:
    server = Server()
    code, out, _ = await ask(server, tmp_path, "abort", "stats-usage", "-n", "workers", "--dry-run", "--json")
    answer = json.loads(out)
    assert (code, answer["written"]) == (0, False)
    ((query, operations),) = server.patches
    assert (query["dryRun"], operations) == ("All", answer["patch"])
    assert "request" not in server.found["spec"]


async def test_what_somebody_else_writes_in_between_is_not_overwritten(tmp_path: Path) -> None:
    server = Server(others=[{"replicas": 7}])
    code, _, error = await ask(server, tmp_path, "abort", "stats-usage", "-n", "workers")
    assert code == 0, error
    assert (server.found["spec"]["replicas"], server.found["spec"]["request"]["action"]) == (7, "Abort")
    assert len(server.patches) == 2, "decided anew"

    theirs = {"id": "theirs", "action": "Promote"}
    server = Server(others=[{"request": theirs}])
    code, _, error = await ask(server, tmp_path, "abort", "stats-usage", "-n", "workers")
    assert code == 5
    assert "request theirs (Promote) is not answered yet" in error
    assert server.found["spec"]["request"] == theirs


async def test_somebody_who_writes_all_the_time_is_told_of(tmp_path: Path) -> None:
    server = Server(others=[{"replicas": number} for number in range(10)])
    code, _, error = await ask(server, tmp_path, "abort", "stats-usage", "-n", "workers")
    assert (code, "is changed by somebody else" in error) == (5, True)


async def test_the_right_that_misses_is_named(tmp_path: Path) -> None:
    server = Server(refusal=(403, 'queueworkers is forbidden: User "ann" cannot patch'))
    code, _, error = await ask(server, tmp_path, "abort", "stats-usage", "-n", "workers")
    assert code == 2
    assert 'User "ann" cannot patch' in error
    assert "right to patch queueworkers.queueworker.dev in namespace workers" in error


async def test_a_report_needs_the_right_to_the_resource_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, _, error = await ask(Server(), tmp_path, "report", "stats-usage", "-n", "workers", "-o", str(page))
    assert code == 0, error
    shown = page.read_text()
    assert "chosen by regarding.kind=QueueWorker,regarding.name=stats-usage" in shown
    assert V2.name in shown

    refused = Server(refusal=(403, "queueworkers is forbidden"), refuses_reading=True)
    code, _, error = await ask(refused, tmp_path, "report", "stats-usage", "-n", "workers")
    assert code == 2
    assert "right to get queueworkers.queueworker.dev in namespace workers" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("changes", "code", "wanted"),
    [
        (
            {"status__handledRequest": "ID", "status__requestIgnored": "it came too late."},
            6,
            "it came too late.",
        ),
        ({"spec__request": {"id": "theirs", "action": "Retry"}}, 6, "request theirs is in its place now"),
        ({"metadata__deletionTimestamp": "2026-01-01T00:00:00Z"}, 6, "it is being deleted"),
        ({}, 3, "not at rest after 3 s: request abort-"),
    ],
)
async def test_waiting_ends_with_what_became_of_the_request(
    changes: dict[str, Any], code: int, wanted: str, tmp_path: Path
) -> None:
    class Answering(Server):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            answer = await super().answer(request)
            if request.method == "PATCH":
                id_ = self.found["spec"]["request"]["id"]
                for path, value in changes.items():
                    parent, key = path.split("__")
                    self.found[parent][key] = id_ if value == "ID" else value
            return answer

    ended, told, error = await ask(
        *(Answering(), tmp_path, "abort", "stats-usage", "-n", "workers", "--wait", "--timeout", "3")
    )
    assert (ended, wanted in told) == (code, True), told + error
