"""The admin port: /livez /readyz /metrics /status, aggregated over the worker processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from worker_runtime.fleet import Fleet
from worker_runtime.metrics import registry_of, render
from worker_runtime.settings import SettingsError


async def start_admin(
    fleet: Fleet, refresh: Callable[[], Awaitable[None]], host: str, port: int
) -> web.AppRunner:
    """Listen. `refresh` asks the processes for fresh numbers and returns soon, also when one is silent.
    Raises SettingsError when the port cannot be had."""

    def verdict(reason: str, fine: str = "ok") -> web.Response:
        return web.Response(status=503 if reason else 200, text=(reason or fine) + "\n")

    async def livez(_: web.Request) -> web.Response:
        return verdict(fleet.alive())

    async def readyz(_: web.Request) -> web.Response:
        await refresh()
        # A fenced worker is fit for work: to restart it or to take its traffic away would help nobody.
        fences = ", ".join(f"{queue} ({reason})" for queue, reason in sorted(fleet.fences().items()))
        return verdict(fleet.ready(), f"ok, fenced: {fences}" if fences else "ok")

    async def status(_: web.Request) -> web.Response:
        await refresh()
        return web.json_response(fleet.status())

    registry = registry_of(fleet)

    async def metrics(_: web.Request) -> web.Response:
        await refresh()
        return web.Response(
            body=render(registry), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    app = web.Application()
    app.add_routes(
        [
            web.get("/livez", livez),
            web.get("/readyz", readyz),
            web.get("/status", status),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise SettingsError(
            f"The admin port {host}:{port} cannot be opened: {error.strerror or error}. Choose another with "
            "QUEUEWORKER_ADMIN_PORT (--admin-port), or 0 for none."
        ) from None
    return runner
