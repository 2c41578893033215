"""Look at the broker of a resource: one bounded check, answered as a fact. Never raises."""

from __future__ import annotations

import asyncio
from datetime import datetime
from urllib.parse import urlsplit

from queueworker_operator.api.revisions import broker_identity
from queueworker_operator.api.types import QueueWorkerSpec, Topology
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict
from worker_runtime.brokers.base import (
    BrokerError,
    BrokerRefusedError,
    BrokerUnavailableError,
    Timing,
    UnsafePlacementError,
)
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.nats.address import SCHEMES as NATS_SCHEMES

#: How a URL says it, after the + of its scheme.
_TOPOLOGIES = {"cluster": Topology.CLUSTER, "sentinel": Topology.SENTINEL}


async def observe_broker(
    url: str,
    spec: QueueWorkerSpec,
    now: datetime,
    timeout: float = 5.0,
    topology: Topology | None = None,
) -> BrokerCheck:
    """Reach the broker at `url`, authenticate, and verify that the queue of `spec` may be used there.

    `url` is what workers get: `spec.broker.redis.url`, or what the Secret holds. `now` becomes the time of
    the observation. `timeout` is in seconds and bounds the whole check. `topology` overrides the one of the
    spec (a stand-in broker of local mode is always Standalone).
    """
    identity = broker_identity(spec.broker)

    def found(verdict: BrokerVerdict, message: str) -> BrokerCheck:
        return BrokerCheck(verdict, message, now, identity)

    redis = spec.broker.redis
    if redis is None:
        return found(BrokerVerdict.INVALID_URL, "spec.broker names no broker: add broker.redis")
    refused = _wrong_scheme(url, topology or redis.topology)
    if refused:
        return found(BrokerVerdict.INVALID_URL, refused)
    try:
        broker = broker_from_url(url, redis.key_namespace, Timing(command_timeout=timeout))
    except (BrokerError, ValueError) as error:
        return found(BrokerVerdict.INVALID_URL, str(error))
    try:
        async with asyncio.timeout(timeout):
            await broker.check(spec.queue.name)
    except TimeoutError:
        return found(
            BrokerVerdict.TIMEOUT,
            f"the broker {broker.display_url} did not answer within {timeout:g} s: "
            "check that it runs and can be reached from here",
        )
    except UnsafePlacementError as error:
        return found(BrokerVerdict.UNSAFE_PLACEMENT, str(error))
    except BrokerRefusedError as error:
        return found(BrokerVerdict.AUTHENTICATION_FAILED, str(error))
    except (BrokerUnavailableError, BrokerError) as error:
        return found(BrokerVerdict.CONNECTION_FAILED, str(error))
    except Exception as error:
        # A client library's own error: it says nothing of the queue, so it must not end the pass.
        return found(
            BrokerVerdict.CONNECTION_FAILED,
            f"the check of the broker {broker.display_url} failed: {type(error).__name__}: {error}",
        )
    return BrokerCheck(
        BrokerVerdict.REACHABLE,
        f"{broker.display_url} answers",
        now,
        identity,
        clustered=(topology or redis.topology) is Topology.CLUSTER,
    )


def _wrong_scheme(url: str, topology: Topology) -> str:
    """A URL of another broker or topology; empty when it fits. Of it only the scheme is quoted."""
    scheme = urlsplit(url).scheme
    if f"{scheme}://" in NATS_SCHEMES:
        return (
            f"spec.broker.redis names a Redis and the broker's URL begins with {scheme}://: write redis://;"
            " workers consume NATS, but the operator does not run them there yet"
        )
    of_url = _TOPOLOGIES.get(scheme.partition("+")[2], Topology.STANDALONE)
    if of_url is topology:
        return ""
    fitting = next((f"redis+{suffix}" for suffix, one in _TOPOLOGIES.items() if one is topology), "redis")
    return (
        f"spec.broker.redis.topology is {topology} and the broker's URL begins with {scheme}://: "
        f"write {fitting}://, or set topology to {of_url}"
    )
