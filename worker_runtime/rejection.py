"""From a failure to what the broker is asked to do with the message."""

from __future__ import annotations

import logging

from worker_runtime.brokers.base import Action, Delivery, Settlement
from worker_runtime.execution import Failure
from worker_runtime.job import Job

log = logging.getLogger("queueworker.worker")


def rejection(job: Job, delivery: Delivery, failure: Failure) -> Settlement:
    """By the job's retry policy; without one, to the failed list."""
    if job.retry is None:
        why = "handler" if failure.fits else "payload"
        return Settlement(delivery, Action.REJECT, failure.reason, why=why)
    verdict = job.retry.decide(delivery.attempts, failure.error, fits=failure.fits)
    told = {"queue": delivery.queue, "message_id": delivery.pid}
    tries = delivery.attempts + 1
    if verdict.action is Action.RETRY:
        most = job.retry.max_attempts
        log.info("failed try %d of %d, comes again in %.1f s", tries, most, verdict.delay, extra=told)
    elif verdict.action is Action.DEAD:
        log.error("given up after %d tries (%s): %s", tries, verdict.why, failure.reason, extra=told)
    return Settlement(delivery, verdict.action, failure.reason, verdict.delay, verdict.why)
