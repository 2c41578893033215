"""Setting and lifting fences: one hash for each queue, revision or "*" -> reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from worker_runtime.brokers.base import BrokerUsageError
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.link import Link
from worker_runtime.brokers.redis.links import QueueLinks
from worker_runtime.brokers.redis.wire import Command, LostReplyError

#: How often a call is tried when its answer is lost. Each of them may be repeated at will.
_TRIES = 3


class RedisFences:
    """Implements `Fences`. `keys_of` refuses a queue that cannot be used before anything is sent.
    `patience` in seconds: how long an absent broker is waited for."""

    def __init__(
        self, keys_of: Callable[[str], QueueKeys], make_link: Callable[[QueueKeys], Link], patience: float
    ) -> None:
        self._patience = patience
        self._links = QueueLinks(keys_of, make_link)

    async def fence(self, queue: str, revision: str, reason: str) -> bool:
        """See `Fences.fence`."""
        _check(revision)
        if not reason.strip():
            raise BrokerUsageError(
                f"a fence on {queue} needs a reason: it is what people read when nothing runs"
            )
        keys, link = self._links.of(queue)
        held = await self._ask(link, ("HGET", keys.fence, revision), "read its fences")
        if held == reason.encode():
            return False
        await self._ask(link, ("HSET", keys.fence, revision, reason), "set a fence")
        return True

    async def unfence(self, queue: str, revision: str) -> bool:
        """See `Fences.unfence`."""
        _check(revision)
        keys, link = self._links.of(queue)
        return bool(await self._ask(link, ("HDEL", keys.fence, revision), "lift a fence"))

    async def fences(self, queue: str) -> Mapping[str, str]:
        """See `Fences.fences`."""
        keys, link = self._links.of(queue)
        flat = await self._ask(link, ("HGETALL", keys.fence), "read its fences")
        text = [value.decode("utf-8", "backslashreplace") for value in flat]
        return dict(zip(text[::2], text[1::2], strict=True))

    async def close(self) -> None:
        await self._links.close()

    async def _ask(self, link: Link, command: Command, doing: str) -> Any:
        for _ in range(_TRIES - 1):
            try:
                return await link.call(command, doing, patience=self._patience)
            except LostReplyError:
                continue
        return await link.call(command, doing, patience=self._patience)


def _check(revision: str) -> None:
    if not revision or any(character.isspace() for character in revision):
        raise BrokerUsageError(
            f"the revision {revision!r} must be one word without spaces, or * for every revision"
        )
