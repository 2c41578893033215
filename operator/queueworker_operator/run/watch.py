"""kopf as a watcher and nothing else: what changes is reported by key, decisions are made from a fresh look.

Only raw event handlers are registered, so kopf keeps no progress, no annotations and no finalizers of its
own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from queueworker_operator.api.names import API_VERSION, GROUP, LABEL_WORKER, PLURAL
from queueworker_operator.apiserver import is_in_cluster

#: Told the namespace and name of a QueueWorker that changed, or whose worker did.
Report = Callable[[str, str], None]


async def watch(report: Report, namespaces: tuple[str, ...], stop: threading.Event) -> None:
    """Call `report`, on this event loop, for what changes, until `stop`. Raises what ends a watcher for good,
    such as a missing permission.

    kopf gets a thread and a loop of its own: it takes over the signals of a main thread, and when it ends it
    cancels every task that it finds on its loop.
    """
    ours = asyncio.get_running_loop()
    ended: asyncio.Future[None] = ours.create_future()

    def finish(error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def tell(namespace: str, name: str) -> None:
        with contextlib.suppress(RuntimeError):  # our loop has ended: nobody is left to be told
            ours.call_soon_threadsafe(report, namespace, name)

    def run() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(_kopf(tell, namespaces, stop))
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):
            ours.call_soon_threadsafe(finish, error)

    threading.Thread(target=run, name="watch", daemon=True).start()
    await ended


async def _kopf(tell: Report, namespaces: tuple[str, ...], stop: threading.Event) -> None:
    await kopf.operator(
        registry=_registry(tell),
        settings=_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )


def _registry(tell: Report) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        if is_in_cluster():
            return kopf.login_with_service_account(**arguments)
        return kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(GROUP, API_VERSION, PLURAL, registry=registry)
    async def resource_seen(namespace: str | None, name: str | None, **_: object) -> None:
        tell(namespace or "", name or "")

    async def worker_seen(namespace: str | None, labels: Mapping[str, str], **_: object) -> None:
        tell(namespace or "", labels[LABEL_WORKER])

    ours = {LABEL_WORKER: kopf.PRESENT}
    kopf.on.event("apps", "v1", "deployments", labels=ours, registry=registry)(worker_seen)
    kopf.on.event("", "v1", "pods", labels=ours, registry=registry)(worker_seen)
    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    # Lists of namespaces and of CRDs need permissions that a watcher of named kinds can do without.
    settings.scanning.disabled = True
    # Never used, since no handler of ours needs one; and never kopf's default, which all its operators share.
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.watching.server_timeout, settings.watching.client_timeout = 300, 310
    settings.watching.connect_timeout, settings.watching.inactivity_timeout = 15, 70
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["apps", "v1", "deployments"] = LABEL_WORKER
    settings.watching.label_selectors["", "v1", "pods"] = LABEL_WORKER
    settings.networking.request_timeout, settings.networking.connect_timeout = 15, 5
    settings.posting.enabled = False
    return settings
