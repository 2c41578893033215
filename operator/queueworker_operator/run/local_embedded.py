"""The brokers that a `queueworker up` starts itself: one of each kind at most, for the time of its run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from queueworker_operator.api.types import QueueWorkerSpec
from worker_runtime.brokers.base import BrokerError, BrokerRefusedError
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.embedded import EmbeddedServer
from worker_runtime.brokers.nats.broker import NatsBroker
from worker_runtime.brokers.nats.server import EmbeddedNats
from worker_runtime.brokers.nats.topology import Plan
from worker_runtime.brokers.redis.server import EmbeddedRedis


class EmbeddedBrokers:
    """Started when the first resource needs one; kept alive; gone with all they hold at the end."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        #: By the broker's type in the resource.
        self._servers: dict[str, EmbeddedServer] = {}
        #: Queues on JetStream.
        self._made: set[str] = set()

    async def url_for(self, spec: QueueWorkerSpec) -> str:
        """The URL of the one that fits, in which the queue of `spec` is there. Raises BrokerError."""
        kind = spec.broker.type
        server = self._servers.get(kind)
        if server is None:
            server = EmbeddedNats() if kind == "NATS" else EmbeddedRedis(appendonly=True)
            await server.start_async()
            self._servers[kind] = server
            self._say(
                f"an embedded broker serves at {server.url} and forgets everything at the end; "
                "give your own with --broker URL, or a Secret document in the file"
            )
        broker = broker_from_url(server.url, spec.broker.namespace)
        if isinstance(broker, NatsBroker):
            # On a server of our own nobody else provisions, and no older process depends on anything.
            nats = spec.broker.nats
            plan = Plan(**nats.stream.options()) if nats and nats.stream else Plan()
            await self._provision(broker, spec.queue.name, replace(plan, replicas=1))
        return server.url

    async def _provision(self, broker: NatsBroker, queue: str, plan: Plan) -> None:
        """Make it, or change it as the file was changed. What cannot be changed stays."""
        try:
            told = await broker.provision(queue, plan, update=True)
        except BrokerRefusedError as error:
            if queue not in self._made:
                raise
            self._say(f"{error}; it stays as it is until queueworker up is started anew")
            return
        self._made.add(queue)
        for line in told:
            if line.startswith("changed "):
                self._say(line)

    def directories(self) -> list[str]:
        """Where they keep what they hold."""
        return [str(server.directory) for server in self._servers.values()]

    def keep(self) -> None:
        """Start again what somebody killed; its data is on disk until the end."""
        for server in self._servers.values():
            try:
                _ = server.pid
            except BrokerError as error:
                self._say(f"{error}; it is started again")
                with suppress(BrokerError):
                    server.restart()

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop()
