"""`queueworker-operator run`: watch, hold the Lease, reconcile, answer probes, until a signal comes.

Exit codes: 0 stopped by a signal; 1 a part failed for good (the log says which); 2 bad settings or no way
to an API server. An API server that does not know QueueWorkers yet is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys

import click
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, REGISTRY

from queueworker_operator.apiserver import (
    ApiError,
    RefusedError,
    UnavailableError,
    UnreachableConfigError,
    connect,
)
from queueworker_operator.run.controller import Controller, ResourceMissingError
from queueworker_operator.run.health import Vitals, serve
from queueworker_operator.run.lease import Lease
from queueworker_operator.run.logs import configure
from queueworker_operator.run.metrics import OperatorMetrics
from queueworker_operator.run.settings import OperatorSettings, OperatorSettingsError, settings_from

log = logging.getLogger(__name__)

STOPPED, FAILED, BAD_SETTINGS = 0, 1, 2
#: Between two looks for an API server that answers and knows the resource.
_LOOK_SECONDS = 3.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="queueworker-operator", prog_name="queueworker-operator")
def main() -> None:
    """The QueueWorker operator."""


@main.command()
def run() -> None:
    """Reconcile QueueWorkers until SIGTERM. Settings come from the environment (docs/operator.md)."""
    try:
        settings = settings_from()
    except OperatorSettingsError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(BAD_SETTINGS)
    configure(settings.log_level)
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: OperatorSettings) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        api = await connect()
    except UnreachableConfigError as error:
        log.error("%s", error)
        return BAD_SETTINGS
    metrics = OperatorMetrics()
    async with api:
        lease = Lease(api, settings.own_namespace, settings.lease_name, settings.identity, clock=loop.time)
        controller = Controller(
            api,
            lease,
            metrics,
            namespaces=settings.namespaces,
            resync_seconds=settings.resync_seconds,
            instance=settings.identity,
        )
        vitals = Vitals(loop.time, loop.time())
        async with serve(settings.health_port, controller, lease, vitals, metrics) as port:
            log.info(
                "started",
                extra={
                    "api_server": api.host,
                    "namespaces": ",".join(settings.namespaces) or "all",
                    "identity": settings.identity,
                    "health_port": port,
                },
            )
            return await _until(stop, controller, lease, vitals, settings)


async def _until(
    stop: asyncio.Event, controller: Controller, lease: Lease, vitals: Vitals, settings: OperatorSettings
) -> int:
    if not await _resource_known(controller, vitals, stop):
        return STOPPED
    leading = asyncio.create_task(_lead(controller, lease), name="reconciling")
    measuring = asyncio.create_task(vitals.tick(), name="measuring")
    stopping = asyncio.create_task(_wait(stop), name="stopping")
    parts = {leading, measuring, stopping}
    code = STOPPED
    await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
    for part in parts - {stopping}:
        if part.done() and not stop.is_set():
            error = part.exception()
            code = FAILED
            log.error("%s ended: %s", part.get_name(), error or "it gave no reason", exc_info=error)
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)
    await lease.release()
    log.info("stopped", extra={"code": code})
    return code


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


async def _resource_known(controller: Controller, vitals: Vitals, stop: asyncio.Event) -> bool:
    """Wait until QueueWorkers can be listed; False when stopped before."""
    said = ""
    while not stop.is_set():
        try:
            await controller.check_resource()
            return True
        except ResourceMissingError as error:
            vitals.heard()
            text = str(error)
        except (UnavailableError, ApiError) as error:
            text = f"QueueWorkers cannot be listed yet: {error}"
            if isinstance(error, RefusedError):
                # It answers, and would refuse another process, too.
                vitals.heard()
        if text != said:
            log.warning("%s", text)
            said = text
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
    return False


async def _lead(controller: Controller, lease: Lease) -> None:
    """Take the Lease, act while it is held, and again."""
    while True:
        await lease.acquire()
        await controller.act()
        log.error("the Lease was lost; nothing is done until it is held again")


# The process-wide collectors of the client library say nothing that we report.
for _collector in (GC_COLLECTOR, PLATFORM_COLLECTOR):
    REGISTRY.unregister(_collector)


if __name__ == "__main__":
    main()
