"""Three nats-servers that keep each stream three times, on free ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
from typing import Self

from tests.nats_routes import Routes
from tests.services import EmbeddedNats, free_port


class NatsCluster:
    """Ready for clients when the context is entered; its JetStream elects a leader shortly after."""

    def __init__(self, size: int = 3) -> None:
        self.routes = Routes(size)
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.routes.ports)
        self._stack = contextlib.ExitStack()
        self.nodes = [
            EmbeddedNats(
                port=free_port(),
                config=f"server_name: n{number}\n"
                f'cluster {{ name: c, listen: "127.0.0.1:{self.routes.targets[number]}",'
                f' advertise: "127.0.0.1:{port}", routes: [{urls}] }}',
            )
            for number, port in enumerate(self.routes.ports)
        ]

    @property
    def url(self) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def node(self, name: str) -> EmbeddedNats:
        """By the server's own name."""
        return self.nodes[int(name.removeprefix("n"))]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.routes)
            for node in self.nodes:
                stack.enter_context(node)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
