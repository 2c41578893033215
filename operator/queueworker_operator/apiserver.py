"""The API server: raw requests with dict bodies, each bounded in time, each failure of one named kind.

Bodies stay dicts: the typed models of the client cost memory and time and drop fields that they do not know.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client, config

from queueworker_operator.api.names import API_VERSION, FIELD_MANAGER, GROUP, PLURAL

Body = dict[str, Any]

#: Seconds for one request; a lease that is about to end leaves room for one.
REQUEST_SECONDS = 15.0
CONNECT_SECONDS = 5.0
CHUNK = 500
#: The API server is not left alone for longer than this, whatever it asks for.
LONGEST_WAIT_SECONDS = 60.0
#: The server ends a watch after so many seconds; one that says nothing for the second, not even a bookmark
#: (one a minute), is taken for cut.
WATCH_SECONDS, WATCH_SILENCE_SECONDS = 300, 100.0

_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
#: A watch that only asks what changed needs nothing else of the objects.
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#: How an API server says, with status 500, that an applied object has an unknown field or a wrong type.
_UNTYPED = "failed to create typed patch object"


class ApiError(Exception):
    """The API server refused a request. `status` is the HTTP status, `message` the server's text."""

    def __init__(self, status: int, reason: str, message: str, what: str) -> None:
        super().__init__(f"{what}: {status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


class NotFoundError(ApiError):
    """404: the object is not there."""


class ConflictError(ApiError):
    """Somebody else wrote in between (409, or a JSON patch whose test failed): look again and decide anew."""


class AlreadyExistsError(ApiError):
    """409 on a create: the name is taken."""


class GoneError(ApiError):
    """410: the version that a watch or a list goes on from is too old. List again."""


class RefusedError(ApiError):
    """400, 403 or 422: the request as it stands will not be accepted, whoever tries."""


class UnavailableError(Exception):
    """The API server did not answer, or answered that it cannot now (429, 5xx). Later may help: where it
    said when (Retry-After), `wait_seconds` later."""

    def __init__(self, text: str, wait_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.wait_seconds = wait_seconds


class UnreachableConfigError(Exception):
    """There is no way to find an API server. The text says where was looked and what to set."""


def named(plural: str, namespace: str, name: str = "", *, group: str = "", version: str = "v1") -> str:
    """The path of one object or, without a name, of the collection; without a namespace, of all of them."""
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{scope}/{plural}" + (f"/{quote(name)}" if name else "")


def queueworkers(namespace: str, name: str = "") -> str:
    return named(PLURAL, namespace, name, group=GROUP, version=API_VERSION)


def deployments(namespace: str, name: str = "") -> str:
    return named("deployments", namespace, name, group="apps")


def controllerrevisions(namespace: str, name: str = "") -> str:
    return named("controllerrevisions", namespace, name, group="apps")


def jobs(namespace: str, name: str = "") -> str:
    return named("jobs", namespace, name, group="batch")


def pods(namespace: str, name: str = "") -> str:
    return named("pods", namespace, name)


def secrets(namespace: str, name: str) -> str:
    return named("secrets", namespace, name)


def events(namespace: str, name: str = "") -> str:
    return named("events", namespace, name, group="events.k8s.io")


def leases(namespace: str, name: str = "") -> str:
    return named("leases", namespace, name, group="coordination.k8s.io")


#: Called before each write; raises when this process may no longer write.
Permit = Callable[[], None]


class ApiServer:
    """One connection pool to one API server. Use as an async context manager."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._client = client.ApiClient(configuration)
        self._configuration = configuration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    @property
    def host(self) -> str:
        return str(self._configuration.host)

    async def get(self, path: str) -> Body:
        return await self._request("GET", path)

    async def find(self, path: str) -> Body | None:
        """The object, or None when it is not there."""
        try:
            return await self.get(path)
        except NotFoundError:
            return None

    async def each(self, path: str, selector: str = "", *, fields: str = "") -> AsyncIterator[Body]:
        """Every object of a collection, read in chunks."""
        query: dict[str, str] = {"limit": str(CHUNK)}
        if selector:
            query["labelSelector"] = selector
        if fields:
            query["fieldSelector"] = fields
        while True:
            page = await self._request("GET", path, query=query)
            for item in page["items"]:
                yield item
            following = page["metadata"].get("continue")
            if not following:
                return
            query["continue"] = following

    async def version(self, path: str, selector: str = "") -> str:
        """The newest version of a collection: a watch goes on from there."""
        query = {"limit": "1"} | ({"labelSelector": selector} if selector else {})
        page = await self._request("GET", path, query=query)
        return str(page["metadata"]["resourceVersion"])

    @asynccontextmanager
    async def watch(
        self, path: str, version: str, selector: str = ""
    ) -> AsyncIterator[AsyncIterator[tuple[str, Body]]]:
        """What happens to a collection after `version`: types of events, and objects of which only the
        metadata is there. Among them are bookmarks (type BOOKMARK), about one a minute.

        Entering raises GoneError, ApiError or UnavailableError, and so does the iterator, which ends when the
        server ends the stream.
        """
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query |= {"timeoutSeconds": str(WATCH_SECONDS)} | ({"labelSelector": selector} if selector else {})
        timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=WATCH_SILENCE_SECONDS
        )
        what = f"WATCH {path}"
        with self._told(what, WATCH_SILENCE_SECONDS):
            response = await self._send("GET", path, None, query, "application/json", _METADATA_ONLY, timeout)
        try:
            if response.status >= 400:
                with self._told(what, WATCH_SILENCE_SECONDS):
                    raw = await response.read()
                raise _failure(response.status, raw, what, "", response.headers)
            yield self._events(response, what)
        finally:
            response.close()

    async def _events(self, response: aiohttp.ClientResponse, what: str) -> AsyncIterator[tuple[str, Body]]:
        left = b""
        with self._told(what, WATCH_SILENCE_SECONDS):
            async for part in response.content.iter_any():
                *lines, left = (left + part).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    body: Body = event["object"]
                    if event["type"] == "ERROR":
                        raise _failure(int(body.get("code", 500)), json.dumps(body).encode(), what, "")
                    yield event["type"], body

    async def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Body:
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return await self._request("POST", path, body=body, query=query)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Body:
        return await self._request("PUT", path, body=body, query={"fieldManager": FIELD_MANAGER})

    async def apply(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Body:
        """Server-side apply as our field manager. Takes our fields back from others, leaves all else."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        return await self._request("PATCH", path, body=body, query=query, content=_APPLY_PATCH)

    async def merge(self, path: str, body: Mapping[str, Any]) -> Body:
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, body=body, query=query, content=_MERGE_PATCH)

    async def json_patch(
        self, path: str, operations: list[Body], *, manager: str = FIELD_MANAGER, dry_run: bool = False
    ) -> Body:
        """A JSON patch; a `test` in it that fails is a ConflictError."""
        query = {"fieldManager": manager}
        if dry_run:
            query["dryRun"] = "All"
        return await self._request("PATCH", path, body=operations, query=query, content=_JSON_PATCH)

    async def delete(self, path: str, body: Mapping[str, Any]) -> None:
        await self._request("DELETE", path, body=body)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Body:
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, connect=CONNECT_SECONDS)
        what = f"{method} {path}"
        with self._told(what, REQUEST_SECONDS):
            response = await self._send(method, path, body, query, content, "application/json", timeout)
            raw: bytes = await response.read()
        if response.status < 400:
            answer: Body = json.loads(raw)
            return answer
        raise _failure(response.status, raw, what, content, response.headers)

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str] | None,
        content: str,
        accept: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": content, "Accept": accept}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self.host}{path}" + (f"?{urlencode(query)}" if query else "")
        wrapped = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers=headers, body=body, _request_timeout=timeout
        )
        response: aiohttp.ClientResponse = wrapped.response
        return response

    @contextmanager
    def _told(self, what: str, seconds: float) -> Iterator[None]:
        """What the HTTP client raises inside, as an UnavailableError."""
        try:
            yield
        except TimeoutError:
            raise UnavailableError(f"{what}: no answer from {self.host} in {seconds:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"{what}: {self.host} cannot be reached: {error}") from error


def _failure(
    status: int, raw: bytes, what: str, content: str, headers: Mapping[str, str] | None = None
) -> Exception:
    try:
        answer = json.loads(raw)
        reason, message = str(answer.get("reason", "")), str(answer.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", raw[:500].decode(errors="replace")
    arguments = (status, reason, message, what)
    if status == 404:
        return NotFoundError(*arguments)
    if status == 409:
        return AlreadyExistsError(*arguments) if reason == "AlreadyExists" else ConflictError(*arguments)
    if status == 410:
        return GoneError(*arguments)
    if status == 422 and content == _JSON_PATCH and " is invalid" not in message:
        # A failed test names no object and no field; a value that may not be says "KIND NAME is invalid:
        # FIELD".
        return ConflictError(*arguments)
    if status in (400, 403, 422) or (content == _APPLY_PATCH and _UNTYPED in message):
        return RefusedError(*arguments)
    if status == 429 or status >= 500:
        asked = (headers or {}).get("Retry-After", "")
        # A number of seconds is all that an API server sends.
        wait = min(float(asked), LONGEST_WAIT_SECONDS) if asked.isdecimal() else 0.0
        return UnavailableError(f"{what}: {status} {reason}: {message}", wait)
    return ApiError(*arguments)


async def connect(environ: Mapping[str, str] = os.environ, context: str | None = None) -> ApiServer:
    """The API server of our pod's cluster, else that of the kubeconfig and its context. Raises
    UnreachableConfigError."""
    configuration = client.Configuration()
    load = _loader(environ, context)
    try:
        await load(configuration)
    except config.ConfigException as error:
        raise UnreachableConfigError(
            f"no API server: {error}. Looked for the service account of a pod, then for the kubeconfig "
            f"{_kubeconfig(environ)}: set KUBECONFIG to a file that exists."
        ) from None
    # Without a limit: requests are bounded by the passes that make them, and watches keep one each.
    configuration.connection_pool_maxsize = 0
    return ApiServer(configuration)


def is_in_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a pod, as far as its environment says. An explicit KUBECONFIG wins."""
    return "KUBERNETES_SERVICE_HOST" in environ and not environ.get("KUBECONFIG")


def _kubeconfig(environ: Mapping[str, str]) -> str:
    return environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())


def _is_there(paths: str) -> bool:
    """Whether any of the files is, of which KUBECONFIG may name several."""
    return any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path)


def namespace_of(environ: Mapping[str, str] = os.environ, context: str | None = None) -> str:
    """The namespace that commands without one are about: our pod's, else that of the context."""
    if is_in_cluster(environ) and context is None:
        try:
            return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip()
        except OSError:
            return "default"
    contexts, active = config.list_kube_config_contexts(_kubeconfig(environ))  # type: ignore[no-untyped-call]
    chosen = next((one for one in contexts if one["name"] == context), active) if context else active
    return str(chosen["context"].get("namespace") or "default")


def _loader(
    environ: Mapping[str, str], context: str | None
) -> Callable[[client.Configuration], Awaitable[None]]:
    async def from_pod(configuration: client.Configuration) -> None:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]

    async def from_file(configuration: client.Configuration) -> None:
        paths = _kubeconfig(environ)
        if not _is_there(paths):
            # The library would say that a key is missing in it.
            raise config.ConfigException(f"there is no file {paths}")
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=paths,
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )

    return from_pod if is_in_cluster(environ) and context is None else from_file
