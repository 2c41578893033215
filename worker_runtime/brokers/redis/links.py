"""Connections to the queues that are asked about, made when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link


class QueueLinks:
    """`keys_of` refuses a queue that cannot be used before anything is sent; `make_link` opens nothing.

    Queues of one `place_of` share a connection; without it, each has its own."""

    def __init__(
        self,
        keys_of: Callable[[str], QueueKeys],
        make_link: Callable[[QueueKeys], Link],
        place_of: Callable[[QueueKeys], Hashable] | None = None,
    ) -> None:
        self._keys_of = keys_of
        self._make_link = make_link
        self._place_of = place_of
        self._links: dict[Hashable, Link] = {}

    def of(self, queue: str) -> tuple[QueueKeys, Link]:
        """The keys of a queue and the connection to the server that holds them."""
        keys = self._keys_of(queue)
        place = queue if self._place_of is None else self._place_of(keys)
        if place not in self._links:
            self._links[place] = self._make_link(keys)
        return keys, self._links[place]

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()
