"""From a URL to a broker."""

from __future__ import annotations

from worker_runtime.brokers.base import Broker, Timing
from worker_runtime.brokers.redis.address import parse_address
from worker_runtime.brokers.redis.broker import RedisBroker

_DEFAULT_TIMING = Timing()


def broker_from_url(url: str, namespace: str, timing: Timing = _DEFAULT_TIMING) -> Broker:
    """The broker behind a URL. Opens no connection. Schemes: redis, rediss, redis+cluster, rediss+cluster,
    redis+sentinel, rediss+sentinel, unix. Raises BrokerError for a URL that cannot be used."""
    return RedisBroker(parse_address(url), namespace, timing)
