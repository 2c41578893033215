"""/livez, /readyz and /metrics of the operator: what is true of its work, not that a server answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from queueworker_operator.run.controller import Controller
from queueworker_operator.run.lease import Lease
from queueworker_operator.run.metrics import OperatorMetrics

#: Older than this, the operator is taken for deaf.
SILENT_SECONDS = 60.0
LAG_SECONDS = 10.0
_TICK_SECONDS = 1.0


@dataclass(slots=True)
class Vitals:
    """What is measured beside the controller's own facts. Times are those of `clock`, monotonic."""

    clock: Callable[[], float]
    #: Since when silence counts.
    started: float
    lag: float = 0.0

    def heard(self) -> None:
        """The API server answered while there was nothing to do yet."""
        self.started = self.clock()

    async def tick(self) -> None:
        """Measure how late the event loop wakes up, until cancelled."""
        while True:
            asleep = self.clock()
            await asyncio.sleep(_TICK_SECONDS)
            self.lag = max(0.0, self.clock() - asleep - _TICK_SECONDS)


def faults(controller: Controller, lease: Lease, vitals: Vitals) -> list[str]:
    """Why the process should be restarted; empty when it is well."""
    now = vitals.clock()
    found = []
    if vitals.lag > LAG_SECONDS:
        found.append(f"the event loop was {vitals.lag:.0f} s late")
    if lease.held:
        # A list that is refused was answered: another process would be refused, too.
        age = now - max(controller.last_answer, vitals.started)
        if age > SILENT_SECONDS:
            found.append(f"the last answer to a list of QueueWorkers was {age:.0f} s ago")
    else:
        age = now - max(lease.last_answer, vitals.started)
        if age > SILENT_SECONDS:
            found.append(f"the last look at the Lease was {age:.0f} s ago")
    return found


def unready(controller: Controller, lease: Lease, vitals: Vitals) -> list[str]:
    """Why the operator does not act now; empty when it does."""
    if not lease.held:
        return ["the Lease is not held"]
    if controller.refused:
        return [f"QueueWorkers and their workers may not be listed: {controller.refused}"]
    if controller.last_list < vitals.started:
        return ["QueueWorkers were not listed yet"]
    return faults(controller, lease, vitals)


@asynccontextmanager
async def serve(
    port: int, controller: Controller, lease: Lease, vitals: Vitals, metrics: OperatorMetrics
) -> AsyncIterator[int]:
    """Serve on all addresses; gives the port (of IPv4, where a free one was asked for)."""

    def verdict(problems: list[str]) -> web.Response:
        return web.Response(
            status=503 if problems else 200, text="; ".join(problems) + "\n" if problems else "ok\n"
        )

    async def livez(_: web.Request) -> web.Response:
        return verdict(faults(controller, lease, vitals))

    async def readyz(_: web.Request) -> web.Response:
        return verdict(unready(controller, lease, vitals))

    async def show(_: web.Request) -> web.Response:
        now = vitals.clock()
        metrics.waiting.set(controller.waiting)
        metrics.running.set(controller.running)
        metrics.lease_held.set(lease.held)
        metrics.lease_epoch.set(lease.epoch)
        metrics.list_age.set(now - max(controller.last_list, vitals.started))
        metrics.event_age.set(now - max(controller.last_event, vitals.started))
        metrics.loop_lag.set(vitals.lag)
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", show)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, port=port)
        await site.start()
        # A free port (0) is another one for each family: the IPv4 one is told, where there is one.
        ports = {":" in str(address[0]): int(address[1]) for address in runner.addresses}
        yield ports.get(False) or ports[True]
    finally:
        await runner.cleanup()
