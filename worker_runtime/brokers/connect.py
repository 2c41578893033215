"""From a URL to a broker."""

from __future__ import annotations

from worker_runtime.brokers.base import Broker, BrokerUsageError, Timing
from worker_runtime.brokers.nats import address as nats
from worker_runtime.brokers.nats.broker import NatsBroker
from worker_runtime.brokers.redis import address as redis
from worker_runtime.brokers.redis.broker import RedisBroker

_DEFAULT_TIMING = Timing()


def broker_from_url(url: str, namespace: str, timing: Timing = _DEFAULT_TIMING) -> Broker:
    """The broker behind a URL. Opens no connection. Schemes: redis, rediss, redis+cluster, rediss+cluster,
    redis+sentinel, rediss+sentinel, unix, nats, tls. Raises BrokerUsageError for one that cannot be used."""
    scheme, separator, _ = url.partition("://")
    if separator and f"{scheme}://" in nats.SCHEMES:
        return NatsBroker(nats.parse_address(url), namespace, timing)
    if separator and f"{scheme}://" in redis.SCHEMES:
        return RedisBroker(redis.parse_address(url), namespace, timing)
    shown = f"{scheme}://..." if separator else "a URL without a scheme"
    allowed = ", ".join((*redis.SCHEMES, *nats.SCHEMES))
    raise BrokerUsageError(f"the broker URL is {shown}; allowed are {allowed}")
