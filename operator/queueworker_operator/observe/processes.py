"""Look at local workers: ask each one whether it is ready, and add up the facts of each group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

import aiohttp

from queueworker_operator.act.processes import ProcessGroup, Worker
from queueworker_operator.api.revisions import broker_place
from queueworker_operator.plan.facts import Refusal, Restarts, RevisionFacts, Workers

#: Seconds that a worker has to answer: enough for one that waits for its turn on a busy machine.
_ANSWER = aiohttp.ClientTimeout(total=5.0)


async def observe_processes(
    groups: Iterable[ProcessGroup],
    refusals: Iterable[Refusal],
    session: aiohttp.ClientSession,
    now: datetime,
    min_ready: timedelta = timedelta(0),
) -> Workers:
    """Ask every worker that is meant to stay at /readyz, then say what there is; one is available when it was
    ready for `min_ready`. Never raises."""
    groups, time = list(groups), asyncio.get_running_loop().time()
    asked = [w for group in groups for w in group.workers if w.pid is not None and not w.stopping]
    await asyncio.gather(*(_look(worker, session, time) for worker in asked))
    return Workers(tuple(_facts(group, now, time, min_ready) for group in groups), now, tuple(refusals))


def metrics_of(group: ProcessGroup) -> dict[str, str]:
    """Where each worker that serves tells its metrics, by its name."""
    serving = [w for w in group.workers if w.ready and not w.stopping and w.pid is not None]
    return {worker.name: f"http://127.0.0.1:{worker.admin_port}/metrics" for worker in serving}


async def _look(worker: Worker, session: aiohttp.ClientSession, time: float) -> None:
    pid = worker.pid
    try:
        async with session.get(f"http://127.0.0.1:{worker.admin_port}/readyz", timeout=_ANSWER) as answer:
            ready = answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        ready = False
    # It may have ended, or been told to stop, while it was asked.
    if worker.pid == pid and not worker.stopping:
        worker.saw(ready, time)


def _facts(group: ProcessGroup, now: datetime, time: float, min_ready: timedelta) -> RevisionFacts:
    began = [worker.began for worker in group.workers if worker.pid is not None]
    ready = [worker for worker in group.workers if worker.ready and not worker.stopping]
    failures = [worker.failure for worker in group.workers if worker.failure and not worker.stopping]
    revision = group.revision
    return RevisionFacts(
        name=revision.name,
        version=revision.version,
        prefetch=revision.prefetch,
        deployment=revision.deployment,
        desired=group.desired,
        ready=len(ready),
        available=sum(time - worker.ready_since >= min_ready.total_seconds() for worker in ready),
        alive=len(group.workers),
        created=group.created,
        coroutines=revision.coroutines,
        failure=failures[0] if failures else None,
        protocol=revision.protocol,
        started_at=now - timedelta(seconds=time - max(began)) if began else None,
        restarts=_restarts(group, now, time),
        broker=broker_place(revision.broker),
    )


def _restarts(group: ProcessGroup, now: datetime, time: float) -> Restarts | None:
    fallen = [worker for worker in group.workers if worker.restarts]
    if not fallen:
        return None
    last = max(fallen, key=lambda worker: worker.fell_at)
    fell_at = now - timedelta(seconds=time - last.fell_at)
    places = tuple((f"{worker.name}/{worker.incarnation}", worker.restarts) for worker in fallen)
    return Restarts(sum(number for _, number in places), fell_at, last.how_it_fell, places)
