"""Watches against a server that cuts them, says that a version is gone, refuses, or is overloaded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from queueworker_operator.api.names import LABEL_WORKER
from queueworker_operator.apiserver import ApiServer
from queueworker_operator.run.watch import Watches
from tests.operator.api_stand_in import served

SECONDS = 30.0


@dataclass
class Server:
    """Says what a real API server says to lists and watches of metadata."""

    newest: int = 10
    #: Watches from an older version are told that it is gone.
    oldest: int = 0
    #: Answer everything about this kind with this status.
    refused: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _events: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    _cut: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2]
        version = request.query.get("resourceVersion", "")
        async with self.changed:
            self.asked.append(f"{kind} {version}".strip())
            self.changed.notify_all()
        status = self.refused.get(kind)
        if status:
            return web.json_response(self._status(status), status=status)
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {"resourceVersion": str(self.newest)}})
        return await self._stream(request, kind, int(version))

    async def _stream(self, request: web.Request, kind: str, version: int) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        if version < self.oldest:
            error = {"type": "ERROR", "object": self._status(410)}
            await stream.write(json.dumps(error).encode() + b"\n")
            return stream
        cut = self._cut

        def new() -> list[tuple[int, str, str, dict[str, Any]]]:
            return [one for one in self._events if one[0] > version and one[1] == kind]

        while True:
            async with self.changed:
                await self.changed.wait_for(lambda: cut != self._cut or new())
                events = new()
            if cut != self._cut:
                assert request.transport is not None
                request.transport.abort()
                return stream
            for at, _, type_, metadata in events:
                line = json.dumps({"type": type_, "object": {"metadata": metadata}}).encode() + b"\n"
                # Halves: what arrives is no line each time.
                await stream.write(line[:20])
                await stream.write(line[20:])
                version = at

    async def happens(self, kind: str, type_: str = "MODIFIED", **metadata: Any) -> None:
        async with self.changed:
            self.newest += 1
            body = {"namespace": "shop", "resourceVersion": str(self.newest), **metadata}
            self._events.append((self.newest, kind, type_, body))
            self.changed.notify_all()

    async def cut(self) -> None:
        """Every stream breaks."""
        async with self.changed:
            self._cut += 1
            self.changed.notify_all()

    async def hears(self, what: str) -> None:
        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(lambda: what in self.asked)

    def _status(self, code: int) -> dict[str, Any]:
        return {"kind": "Status", "code": code, "reason": "Told", "message": f"told {code}", "metadata": {}}


class Heard:
    """What the watches told."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.missed = 0
        self._told = asyncio.Event()

    def report(self, namespace: str, name: str) -> None:
        self.reports.append(f"{namespace}/{name}")
        self._told.set()

    def miss(self) -> None:
        self.missed += 1
        self._told.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                self._told.clear()
                await self._told.wait()


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def api(server: Server, tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with served(server.answer, tmp_path) as client:
        yield client


@pytest.fixture
async def heard(api: ApiServer) -> AsyncIterator[Heard]:
    heard = Heard()
    watches = Watches(api, ("shop",), heard.report, heard.miss, first_wait=0.05)
    running = asyncio.create_task(watches.run())
    await watches.begun(SECONDS)
    yield heard
    assert not running.done(), "watches never end by themselves"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_changes_is_reported_by_the_name_of_its_queueworker(server: Server, heard: Heard) -> None:
    await server.happens("queueworkers", "ADDED", name="usage")
    await server.happens("deployments", name="usage-1-p1", labels={LABEL_WORKER: "usage"})
    await server.happens("pods", "DELETED", name="x", labels={LABEL_WORKER: "other"})
    await server.happens("pods", "BOOKMARK")
    await server.happens("pods", name="y", labels={LABEL_WORKER: "last"})
    await heard.until(lambda: "shop/last" in heard.reports)
    await heard.until(lambda: len(heard.reports) == 4)
    assert sorted(heard.reports) == ["shop/last", "shop/other", "shop/usage", "shop/usage"]
    assert not heard.missed


async def test_a_cut_misses_nothing(server: Server, heard: Heard) -> None:
    await server.happens("queueworkers", name="before")
    await heard.until(lambda: "shop/before" in heard.reports)
    await server.cut()
    await server.happens("queueworkers", name="after")
    await heard.until(lambda: "shop/after" in heard.reports)
    assert "queueworkers 11" in server.asked, "it goes on after the last event"
    assert not heard.missed


async def test_after_a_bookmark_it_goes_on_from_there(server: Server, heard: Heard) -> None:
    await server.happens("deployments", "BOOKMARK")
    await server.happens("deployments", name="d", labels={LABEL_WORKER: "usage"})
    await heard.until(lambda: "shop/usage" in heard.reports)
    await server.cut()
    await server.hears("deployments 12")


async def test_a_version_that_is_gone_asks_for_a_list_and_goes_on_from_the_newest(
    server: Server, heard: Heard
) -> None:
    server.newest = 500
    server.oldest = 400
    await server.cut()
    await heard.until(lambda: heard.missed == 3)
    await server.happens("queueworkers", name="later")
    await heard.until(lambda: "shop/later" in heard.reports)


@pytest.mark.parametrize("status", [403, 429, 500])
async def test_a_refusal_is_told_and_outlived(
    server: Server, heard: Heard, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level("INFO")
    server.refused["deployments"] = status
    await server.cut()
    async with asyncio.timeout(SECONDS), server.changed:
        before = len(server.asked)
        await server.changed.wait_for(
            lambda: sum(one.startswith("deployments") for one in server.asked[before:]) >= 3
        )
    del server.refused["deployments"]
    # What happens before the watch is back is in the list that is asked for, or reported.
    await server.happens("deployments", name="d", labels={LABEL_WORKER: "usage"})
    await heard.until(lambda: "shop/usage" in heard.reports or heard.missed > 0)
    await server.happens("deployments", name="e", labels={LABEL_WORKER: "later"})
    await heard.until(lambda: "shop/later" in heard.reports)
    told = [record.getMessage() for record in caplog.records if "Deployments" in record.getMessage()]
    assert f"told {status}" in told[0]
    assert sum(f"told {status}" in one for one in told) == 1, "the same is told once"
    assert any("watched again" in one for one in told)
