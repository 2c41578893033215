"""A private redis-server, and our queue as lists on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from benchmarks.contenders import NAMESPACE
from benchmarks.site import Counters
from benchmarks.workload import Workload
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.server import EmbeddedRedis

#: Where a backlog is kept until a fleet is ready.
_ASIDE = "bench-aside"


@contextlib.contextmanager
def redis_site(workload: Workload) -> Iterator[RedisSite]:
    """See `OpenSite`."""
    args = ("--appendfsync", "everysec") if workload.appendonly else ()
    with EmbeddedRedis(appendonly=workload.appendonly, args=args) as server:
        with redis.Redis.from_url(server.url) as client:
            yield RedisSite(server.url, client)


class RedisSite:
    """Implements `Site`."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url = url
        self._client = client

    def prepare(self, workload: Workload, ours: bool) -> None:
        """Puts an older worker's entries into the processing list, taken lately, so not due to be taken
        over."""
        keys = QueueKeys(NAMESPACE, workload.kind)
        second = int(time.time())
        record = '{{"pid":"{}","queue":"{}","timestamp":{},"payload":{{}},"attempts":0}}'
        for start in range(0, workload.history, 1000):
            pids = [f"history-{n:08}" for n in range(start, min(start + 1000, workload.history))]
            self._client.lpush(keys.processing, *pids)
            self._client.mset({str(keys.job(pid)): record.format(pid, workload.kind, second) for pid in pids})

    def counters(self, sends: Sequence[str]) -> Counters:
        info: dict[str, Any] = self._client.info("all")
        return Counters(
            cpu=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
            memory=int(info["used_memory"]),
            requests=sum(info.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in sends),
            commands=int(info["total_commands_processed"]),
            bytes_in=int(info["total_net_input_bytes"]),
            bytes_out=int(info["total_net_output_bytes"]),
        )

    def clients(self) -> int:
        return int(self._client.info("clients")["connected_clients"]) - 1

    def booked(self, workload: Workload) -> tuple[int, int]:
        keys = QueueKeys(NAMESPACE, workload.kind)
        done, failed = self._client.mget([keys.success, keys.failed_count])
        return int(done or 0), int(failed or 0)

    def hold_back(self, workload: Workload) -> None:
        self._client.rename(QueueKeys(NAMESPACE, workload.kind).ready, _ASIDE)

    def let_go(self, workload: Workload) -> None:
        self._client.rename(_ASIDE, QueueKeys(NAMESPACE, workload.kind).ready)
