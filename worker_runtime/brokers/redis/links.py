"""One connection for each queue that is asked about, made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable

from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link


class QueueLinks:
    """`keys_of` refuses a queue that cannot be used before anything is sent; `make_link` opens nothing."""

    def __init__(self, keys_of: Callable[[str], QueueKeys], make_link: Callable[[QueueKeys], Link]) -> None:
        self._keys_of = keys_of
        self._make_link = make_link
        self._links: dict[str, tuple[QueueKeys, Link]] = {}

    def of(self, queue: str) -> tuple[QueueKeys, Link]:
        """The keys of a queue and the connection to the server that holds them."""
        if queue not in self._links:
            keys = self._keys_of(queue)
            self._links[queue] = (keys, self._make_link(keys))
        return self._links[queue]

    async def close(self) -> None:
        for _, link in self._links.values():
            await link.close()
