"""How a process that starts finds its broker: it waits through an outage, and does not wait for a refusal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from worker_runtime.brokers.base import Broker, BrokerUnavailableError
from worker_runtime.pausing import back_off

log = logging.getLogger("queueworker.process")


async def reach(
    broker: Broker, queues: Sequence[str], stop: asyncio.Event, on_problem: Callable[[str], None]
) -> bool:
    """Wait until the broker has been checked for every queue; False when `stop` was set first. A worker that
    starts during an outage must not need a restart after it: `on_problem` is told what keeps it waiting, and
    "" when nothing does any more. Raises what the checks raise, but for BrokerUnavailableError."""
    attempt, problem = 0, ""
    while not stop.is_set():
        try:
            await _check(broker, queues, stop)
        except BrokerUnavailableError as error:
            attempt += 1
            if problem != str(error):
                problem = str(error)
                on_problem(problem)
                log.warning("waits for the broker: %s", error)
            await back_off(attempt, stop)
        else:
            on_problem("")
            return not stop.is_set()
    return False


async def _check(broker: Broker, queues: Sequence[str], stop: asyncio.Event) -> None:
    """Raises what the broker's checks raise. A stop ends it early: an answer may be long in coming."""

    async def check_all() -> None:
        for queue in queues:
            await broker.check(queue)

    checking, stopped = asyncio.ensure_future(check_all()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((checking, stopped), return_when=asyncio.FIRST_COMPLETED)
        if checking.done():
            checking.result()
    finally:
        for task in (checking, stopped):
            task.cancel()
        await asyncio.gather(checking, stopped, return_exceptions=True)
