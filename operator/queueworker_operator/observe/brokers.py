"""Look at the broker of a resource: one bounded check, answered as a fact. Never raises."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from urllib.parse import urlsplit

from queueworker_operator.api.redis import Topology
from queueworker_operator.api.revisions import broker_identity
from queueworker_operator.api.template import worker_container
from queueworker_operator.api.types import Broker as SpecBroker, QueueWorkerSpec
from queueworker_operator.observe.priority import priority_fact
from queueworker_operator.observe.provisioning import (
    OF_THE_SPEC,
    Source,
    differs,
    not_provisioned,
    taken_back_too_soon,
)
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict, NoPriority
from worker_runtime.brokers.base import (
    Broker,
    BrokerError,
    BrokerRefusedError,
    BrokerUnavailableError,
    CredentialsUnusableError,
    NotProvisionedError,
    QueueUnusableError,
    TakenBackTooSoonError,
    Timing,
    UnsafePlacementError,
)
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.nats.address import SCHEMES as NATS_SCHEMES
from worker_runtime.brokers.nats.broker import NatsBroker, Survey
from worker_runtime.brokers.redis.broker import RedisBroker

#: How a URL says it, after the + of its scheme.
_TOPOLOGIES = {"cluster": Topology.CLUSTER, "sentinel": Topology.SENTINEL}


async def observe_broker(
    url: str,
    spec: QueueWorkerSpec,
    now: datetime,
    timeout: float = 5.0,
    source: Source = OF_THE_SPEC,
) -> BrokerCheck:
    """Reach the broker at `url`, authenticate, and verify that the queue of `spec` may be used there.

    `url` is what workers get: that of the spec, or what the Secret holds. `now` becomes the time of
    the observation. `timeout` is in seconds and bounds the whole check. An embedded `source` was
    started in local mode for want of the right broker: it is Standalone and has one replica, whatever the
    spec says.
    """
    identity, stand_in = broker_identity(spec.broker), source.embedded

    def found(verdict: BrokerVerdict, message: str) -> BrokerCheck:
        return BrokerCheck(verdict, message, now, identity)

    refused = _wrong_scheme(url, spec.broker, stand_in)
    if refused:
        return found(BrokerVerdict.INVALID_URL, refused)
    try:
        broker = broker_from_url(url, spec.broker.namespace, _timing(spec, timeout))
    except CredentialsUnusableError as error:
        return found(BrokerVerdict.INVALID_CREDENTIALS, str(error))
    except (BrokerError, ValueError) as error:
        return found(BrokerVerdict.INVALID_URL, str(error))
    try:
        async with asyncio.timeout(timeout):
            survey, refuses = await _survey(broker, spec, stand_in)
    except TimeoutError:
        return found(
            BrokerVerdict.TIMEOUT,
            f"the broker {broker.display_url} did not answer within {timeout:g} s: "
            "check that it runs and can be reached from here",
        )
    except UnsafePlacementError as error:
        return found(BrokerVerdict.UNSAFE_PLACEMENT, str(error))
    except NotProvisionedError as error:
        return found(BrokerVerdict.QUEUE_NOT_PROVISIONED, not_provisioned(spec, error.missing, source))
    except TakenBackTooSoonError as error:
        return found(BrokerVerdict.QUEUE_UNUSABLE, taken_back_too_soon(spec, error, source))
    except QueueUnusableError as error:
        return found(BrokerVerdict.QUEUE_UNUSABLE, str(error))
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
    redis = spec.broker.redis
    return BrokerCheck(
        BrokerVerdict.REACHABLE,
        f"{broker.display_url} answers",
        now,
        identity,
        clustered=redis is not None and redis.topology is Topology.CLUSTER and not stand_in,
        refuses_writes=refuses,
        differs="" if survey is None else differs(spec, survey.differences, source),
        priority=NoPriority() if survey is None else priority_fact(survey.priority, now),
    )


async def _survey(broker: Broker, spec: QueueWorkerSpec, stand_in: bool) -> tuple[Survey | None, str]:
    """Check it, with what only JetStream can say, and with why it takes no writes, which only Redis can say.
    Raises BrokerError."""
    if isinstance(broker, RedisBroker):
        return None, await broker.survey(spec.queue.name)
    if not isinstance(broker, NatsBroker):
        await broker.check(spec.queue.name)
        return None, ""
    nats = spec.broker.nats
    wanted = nats.stream.options() if nats and nats.stream and not stand_in else {}
    return await broker.survey(spec.queue.name, wanted), ""


def _timing(spec: QueueWorkerSpec, timeout: float) -> Timing:
    """As the workers of the template have it, where it says so plainly."""
    timing = Timing(command_timeout=timeout)
    for entry in worker_container(spec.template).get("env") or ():
        if entry.get("name") == "QUEUEWORKER_EXPIRY_SECONDS":
            try:
                expiry = float(str(entry.get("value", "")))
            except ValueError:
                break
            return replace(timing, expiry=expiry) if 0 < expiry < 1e7 else timing
    return timing


def _wrong_scheme(url: str, broker: SpecBroker, stand_in: bool) -> str:
    """A URL of another broker or topology; empty when it fits. Of it only the scheme is quoted."""
    scheme = urlsplit(url).scheme
    is_nats = f"{scheme}://" in NATS_SCHEMES
    if broker.redis is None:
        if is_nats:
            return ""
        return (
            f"spec.broker.nats names NATS and the broker's URL begins with {scheme}://: write nats:// or tls://,"
            " or name the other broker in spec.broker"
        )
    if is_nats:
        return (
            f"spec.broker.redis names a Redis and the broker's URL begins with {scheme}://: write redis://,"
            " or spec.broker.nats instead"
        )
    topology = Topology.STANDALONE if stand_in else broker.redis.topology
    of_url = _TOPOLOGIES.get(scheme.partition("+")[2], Topology.STANDALONE)
    if of_url is topology:
        return ""
    fitting = next((f"redis+{suffix}" for suffix, one in _TOPOLOGIES.items() if one is topology), "redis")
    return (
        f"spec.broker.redis.topology is {topology} and the broker's URL begins with {scheme}://: "
        f"write {fitting}://, or set topology to {of_url}"
    )
