"""One redis-server for the suite, a fresh namespace and working directory for each test."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.runtime.running import PATIENCE, RunningWorker, environment
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import QueueReading, Timing
from worker_runtime.brokers.connect import broker_from_url


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        yield running


@dataclass
class Bench:
    """A namespace on a real broker, and the workers that a test started on it."""

    url: str
    namespace: str
    directory: Path
    #: redis-py types an answer as all that any settings would make of it.
    client: Any
    workers: list[RunningWorker] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return environment(self.url, self.namespace)

    def run(self, source: str, *flags: str, **more: Any) -> RunningWorker:
        """Start a worker; all workers of a test share the directory that its handlers write to."""
        worker = RunningWorker(self.directory, source, self.env, *flags, **more)
        self.workers.append(worker)
        return worker

    def publish(self, queue: str, *payloads: str) -> list[str]:
        """Publish JSON texts in order, whatever workers run meanwhile; the pids."""

        async def publish() -> list[str]:
            timing = Timing(command_timeout=PATIENCE)
            publisher = broker_from_url(self.url, self.namespace, timing).publisher()
            try:
                return list(await publisher.publish_many(queue, [payload.encode() for payload in payloads]))
            finally:
                await publisher.close()

        return asyncio.run(publish())

    def reading(self, queue: str = "q") -> QueueReading:
        """As the product reads it."""

        async def read() -> QueueReading:
            inspector = broker_from_url(self.url, self.namespace, Timing()).inspector()
            try:
                return await inspector.read(queue)
            finally:
                await inspector.close()

        return asyncio.run(read())

    def key(self, kind: str, queue: str = "q") -> str:
        return f"{self.namespace}.{kind}.{queue}"

    def ready(self, queue: str = "q") -> list[str]:
        """Envelopes in the order in which workers take them."""
        return list(reversed(self.client.lrange(self.key("queue", queue), 0, -1)))

    def count(self, kind: str, queue: str = "q") -> int:
        name = self.key(kind, queue)
        size: int = {
            "list": self.client.llen,
            "hash": self.client.hlen,
            "zset": self.client.zcard,
            "string": lambda key: int(self.client.get(key)),
            "none": lambda key: 0,
        }[self.client.type(name)](name)
        return size

    def succeeded(self, queue: str = "q") -> int:
        return int(self.client.get(f"{self.namespace}.stats.{queue}.success") or 0)

    def failed(self, queue: str = "q") -> int:
        return int(self.client.get(f"{self.namespace}.stats.{queue}.failed") or 0)

    def nothing_left(self, queue: str = "q") -> bool:
        """Everything that can hold a message or be left behind is empty."""
        places = ("queue", "staging", "reservations", "owners", "liveness", "processing", "failed")
        return not any(self.count(place, queue) for place in places)


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(url: str, **options: Any) -> Bench:
        client = redis.Redis.from_url(url, decode_responses=True, **options)
        benches.append(Bench(url, f"t{secrets.token_hex(4)}", tmp_path, client))
        return benches[-1]

    yield make
    for bench in benches:
        for worker in bench.workers:
            if worker.process.poll() is None:
                worker.kill_group()
        bench.client.close()


@pytest.fixture
def bench(server: EmbeddedRedis, make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(server.url)
