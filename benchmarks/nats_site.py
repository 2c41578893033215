"""A private nats-server with JetStream, and our queue as a stream on it. Counters come from its monitoring
port, so that watching makes no message."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.contenders import NAMESPACE
from benchmarks.site import Counters
from benchmarks.tree import usage
from benchmarks.workload import Workload
from worker_runtime.brokers.base import Timing
from worker_runtime.brokers.embedded import free_port
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.address import parse_address
from worker_runtime.brokers.nats.broker import NatsBroker
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import DURABLE, names_of
from worker_runtime.brokers.nats.server import EmbeddedNats
from worker_runtime.brokers.nats.topology import Plan


@contextlib.contextmanager
def nats_site(workload: Workload) -> Iterator[NatsSite]:
    """See `OpenSite`."""
    port = free_port()
    with EmbeddedNats(config=f'http: "127.0.0.1:{port}"') as server:
        yield NatsSite(server, port)


class NatsSite:
    """Implements `Site`."""

    def __init__(self, server: EmbeddedNats, monitoring: int) -> None:
        self._server = server
        self._monitoring = monitoring

    @property
    def url(self) -> str:
        return self._server.url

    def prepare(self, workload: Workload, ours: bool) -> None:
        """Peers make their own streams."""
        if ours:
            broker = NatsBroker(parse_address(self.url), NAMESPACE, Timing())
            asyncio.run(broker.provision(workload.kind, Plan()))

    def counters(self, sends: Sequence[str]) -> Counters:
        told, used = self._told("varz"), usage([self._server.pid])
        return Counters(
            cpu=used.cpu,
            memory=used.memory,
            requests=told["in_msgs"],
            commands=told["in_msgs"] + told["out_msgs"],
            bytes_in=told["in_bytes"],
            bytes_out=told["out_bytes"],
        )

    def clients(self) -> int:
        return int(self._told("varz")["connections"])

    def booked(self, workload: Workload) -> tuple[int, int]:
        """What has left the stream is done; what is in the dead stream failed."""
        names = names_of(NAMESPACE, workload.kind)
        accounts = self._told("jsz?streams=true")["account_details"]
        held = {
            one["name"]: int(one["state"]["messages"]) for each in accounts for one in each["stream_detail"]
        }
        return workload.messages - held[names.stream], held.get(names.dead_stream, 0)

    def hold_back(self, workload: Workload) -> None:
        self._pause(workload, {"pause_until": "2999-01-01T00:00:00Z"})

    def let_go(self, workload: Workload) -> None:
        self._pause(workload, {})

    def _pause(self, workload: Workload, body: dict[str, str]) -> None:
        stream = names_of(NAMESPACE, workload.kind).stream

        async def ask() -> None:
            link = Link(parse_address(self.url), 10.0, "benchmark")
            try:
                await api.call(link, f"CONSUMER.PAUSE.{stream}.{DURABLE}", body, "pause the consumer")
            finally:
                await link.close()

        asyncio.run(ask())

    def _told(self, what: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitoring}/{what}", timeout=10) as answer:
            return json.load(answer)
