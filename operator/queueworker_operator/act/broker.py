"""What the operator does on a broker: fences, and the transitions that return work to the queue."""

from __future__ import annotations

import asyncio

from queueworker_operator.api.types import QueueWorkerSpec
from queueworker_operator.observe.access import Access, opened
from queueworker_operator.plan.actions import (
    BrokerAction,
    FenceRevision,
    PromoteDelayed,
    RecoverWork,
    ReturnStaged,
    UnfenceRevision,
)
from worker_runtime.brokers.base import BrokerUnavailableError, Fences, Maintenance, Timing
from worker_runtime.brokers.connect import broker_from_url

#: Seconds that one action may take; what it did not finish is done in the next pass.
ACTION_SECONDS = 5.0


async def act_on_broker(access: Access, spec: QueueWorkerSpec, action: BrokerAction) -> None:
    """Do one action on the queue of `spec`. May be repeated at will, also after it was cut off half way.

    Raises BrokerError.
    """
    with opened(access) as place:
        broker = broker_from_url(place.url, spec.broker.namespace, Timing(command_timeout=ACTION_SECONDS))
        try:
            async with asyncio.timeout(ACTION_SECONDS):
                if isinstance(action, (FenceRevision, UnfenceRevision)):
                    await _fence(broker.fences(), spec.queue.name, action)
                else:
                    # No takeover kills a message here: that is for the jobs' own limits, which workers know.
                    await _return(broker.maintenance(max_takeovers=0), spec.queue.name, action)
        except TimeoutError:
            raise BrokerUnavailableError(
                f"the broker {broker.display_url} did not finish {type(action).__name__} within "
                f"{ACTION_SECONDS:g} s; it is tried again"
            ) from None


async def _fence(fences: Fences, queue: str, action: FenceRevision | UnfenceRevision) -> None:
    try:
        match action:
            case FenceRevision(revision, reason):
                await fences.fence(queue, revision, reason)
            case UnfenceRevision(revision):
                await fences.unfence(queue, revision)
    finally:
        await fences.close()


async def _return(
    maintenance: Maintenance, queue: str, action: RecoverWork | ReturnStaged | PromoteDelayed
) -> None:
    try:
        match action:
            case RecoverWork():
                await maintenance.recover(queue)
            case ReturnStaged():
                await maintenance.unstage(queue)
            case PromoteDelayed():
                await maintenance.promote(queue, everything=True)
    finally:
        await maintenance.close()
