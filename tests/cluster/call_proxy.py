"""An HTTP proxy between an operator outside the cluster and the API server.

It knows every call. Rules say which of them the server never hears, which answers the operator never hears,
and what it is told instead. The operator speaks plain HTTP to it on the loopback; the proxy has the client
certificate. It runs in a thread of its own, and so do the rules.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web
from yarl import URL

from e2e.fixtures import Kubectl

Body = dict[str, Any]

_HOP_BY_HOP = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding"})


class Fault(Enum):
    """What becomes of a call."""

    #: The connection breaks before the server hears it.
    CUT_BEFORE = auto()
    #: The server does it; the connection breaks before the operator hears the answer.
    CUT_AFTER = auto()
    #: The server hears it only after `CallProxy.let_go`.
    HOLD = auto()
    #: Nobody answers, until the proxy ends.
    HANG = auto()


@dataclass(frozen=True)
class Says:
    """What the operator is told, while the server hears nothing."""

    status: int
    reason: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> Body:
        return {
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "code": self.status,
            "reason": self.reason,
            "message": "the proxy of the test says so",
        }


@dataclass(frozen=True, eq=False)
class Call:
    """One request of the operator. `at` is monotonic, in seconds."""

    number: int
    at: float
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def _parts(self) -> list[str]:
        parts = self.path.strip("/").split("/")
        parts = parts[3 if parts[0] == "apis" else 2 :]
        return parts[2:] if parts[0] == "namespaces" and len(parts) > 2 else parts

    @property
    def kind(self) -> str:
        """What it is about, such as `deployments` or `queueworkers/status`."""
        parts = self._parts
        return "/".join([parts[0], *parts[2:]])

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and len(self._parts) == 1 and not self.is_watch

    @property
    def writes(self) -> bool:
        """Whether it is to change something of a QueueWorker's: not the Lease, and no dry run."""
        return self.method != "GET" and "dryRun" not in self.query and self.kind != "leases"

    @property
    def marks(self) -> bool:
        """Whether it only marks a child with the operator's epoch, which every new operator does first."""
        if self.kind != "deployments" or not self.body.startswith(b"["):
            return False
        return {one["path"] for one in json.loads(self.body)} <= {
            "/metadata/resourceVersion",
            "/metadata/annotations/queueworker.dev~1epoch",
        }

    def __str__(self) -> str:
        parts = self._parts
        return f"{self.method} {self.kind}" + (f" {parts[1]}" if len(parts) > 1 else "")


#: What becomes of a call that has arrived; None: it is passed on.
Before = Callable[[Call], Fault | Says | None]
#: What becomes of an answer with that status and body; None: the operator gets it.
After = Callable[[Call, int, Body], Fault | None]


class CallProxy:
    """Use as a context manager. `kubeconfig` is what the operator is given."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.kubeconfig = folder / "kubeconfig"
        self.before: Before = lambda _: None
        self.after: After = lambda *_: None
        #: Objects in a page of a list; None: as many as the operator asks for.
        self.page: int | None = None
        #: The URL of the broker as the operator reads it from a Secret; None: the true one.
        self.broker_url: str | None = None
        self.calls: list[Call] = []
        #: Calls that changed something, with the status of the answer, in the order of the answers.
        self.written: list[tuple[Call, int]] = []
        self._upstream, self._ssl = _server(kubectl, folder)
        self._streams: list[web.Request] = []
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._up.result(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    def open_watches(self) -> int:
        """How many streams there are now."""

        async def count() -> int:
            return sum(request.transport is not None for request in self._streams)

        return asyncio.run_coroutine_threadsafe(count(), self._loop).result(30)

    def cut_watches(self) -> int:
        """Break every stream; gives how many there were."""

        async def cut() -> int:
            streams = [request for request in self._streams if request.transport is not None]
            for request in streams:
                _break(request)
            return len(streams)

        return asyncio.run_coroutine_threadsafe(cut(), self._loop).result(30)

    def let_go(self) -> None:
        """Pass on what is held."""
        self._loop.call_soon_threadsafe(self._free.set)

    def since(self, at: float) -> list[Call]:
        """Calls that arrived after a moment of the monotonic clock."""
        return [call for call in self.calls if call.at >= at]

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end, self._free = asyncio.Event(), asyncio.Event()
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        _write_kubeconfig(self.kubeconfig, f"http://127.0.0.1:{runner.addresses[0][1]}")
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
            connector = aiohttp.TCPConnector(ssl=self._ssl, limit=0)
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as self._session:
                self._up.set_result(None)
                await self._end.wait()
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body, at = await request.read(), time.monotonic()
        query = dict(request.query)
        call = Call(len(self.calls) + 1, at, request.method, request.path, query, body)
        self.calls.append(call)
        choice = self.before(call)
        if isinstance(choice, Says):
            return await _say(request, call, choice)
        if choice is Fault.CUT_BEFORE:
            return _break(request)
        if choice is Fault.HANG:
            await self._end.wait()
            return _break(request)
        if choice is Fault.HOLD:
            await self._free.wait()
        if self.page is not None and call.is_list and "limit" in query:
            query["limit"] = str(self.page)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        url = URL(self._upstream + request.raw_path.partition("?")[0], encoded=True).with_query(query)
        async with self._session.request(call.method, url, headers=headers, data=body) as answer:
            if call.is_watch and answer.status == 200:
                return await self._stream(request, answer)
            raw = await answer.read()
        found: Body = json.loads(raw) if raw[:1] == b"{" else {}
        if call.writes:
            self.written.append((call, answer.status))
        if Fault.CUT_AFTER in (choice, self.after(call, answer.status, found)):
            return _break(request)
        if call.kind == "secrets" and self.broker_url is not None:
            found["data"] = {
                key: base64.b64encode(self.broker_url.encode()).decode() for key in found["data"]
            }
            raw = json.dumps(found).encode()
        return web.Response(status=answer.status, body=raw, content_type=answer.content_type)

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": answer.content_type})
        await response.prepare(request)
        self._streams.append(request)
        try:
            async for part in answer.content.iter_any():
                await response.write(part)
        except (aiohttp.ClientError, ConnectionError):
            _break(request)
        finally:
            self._streams.remove(request)
        return response


async def _say(request: web.Request, call: Call, says: Says) -> web.StreamResponse:
    if not (call.is_watch and says.status == 410):
        return web.json_response(says.body, status=says.status, headers=says.headers)
    # A server says it of a watch inside the stream.
    stream = web.StreamResponse(headers={"Content-Type": "application/json"})
    await stream.prepare(request)
    await stream.write(json.dumps({"type": "ERROR", "object": says.body}).encode() + b"\n")
    return stream


def _break(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _server(kubectl: Kubectl, folder: Path) -> tuple[str, ssl.SSLContext]:
    """Where the API server is, and how to speak to it as the cluster's administrator."""
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "--output=json").stdout)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    files = []
    for name in ("client-certificate", "client-key"):
        place = folder / name
        place.touch(mode=0o600)
        place.write_bytes(base64.b64decode(user[f"{name}-data"]))
        files.append(place)
    context.load_cert_chain(files[0], files[1])
    with contextlib.suppress(OSError):
        files[1].unlink()
    return str(cluster["server"]), context


def _write_kubeconfig(place: Path, server: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
        "clusters": [{"name": "proxy", "cluster": {"server": server}}],
        "users": [{"name": "nobody", "user": {}}],
    }
    place.write_text(json.dumps(config))
