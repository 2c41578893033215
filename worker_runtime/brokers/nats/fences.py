"""Setting and lifting fences: one entry of the books for each revision, and one for all of them.

What a fence guarantees: its entry is confirmed by the stream behind the bucket before `fence` returns, every
worker asks that stream's leader before it pulls, and no pull lasts longer than two seconds. So a worker that
runs takes nothing more after about two and a half seconds; one that was paused between its question and its
pull can take the work of one pull when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worker_runtime.brokers.base import BrokerRefusedError, BrokerUsageError
from worker_runtime.brokers.nats import api, books
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import QueueNames
from worker_runtime.brokers.nats.topology import check_owner


class NatsFences:
    """Implements `Fences`. `patience` in seconds: how long an absent server is waited for."""

    def __init__(self, names_of: Callable[[str], QueueNames], link: Link, patience: float) -> None:
        self._names_of = names_of
        self._link = link
        self._patience = patience

    async def fence(self, queue: str, revision: str, reason: str) -> bool:
        """See `Fences.fence`."""
        _check(revision)
        if not reason.strip():
            raise BrokerUsageError(
                f"a fence on {queue} needs a reason: it is what people read when nothing runs"
            )
        names = await self._known(queue)
        held = await api.get_message(self._link, names.books, {"last_by_subj": names.fence(revision)})
        if held is not None and held.payload == reason.encode():
            return False
        await books.put(
            self._link, names.fence(revision), reason.encode(), "set a fence", patience=self._patience
        )
        return True

    async def unfence(self, queue: str, revision: str) -> bool:
        """See `Fences.unfence`."""
        _check(revision)
        names = await self._known(queue)
        held = await api.get_message(self._link, names.books, {"last_by_subj": names.fence(revision)})
        if held is None:
            return False
        return bool(await api.purge_subject(self._link, names.books, names.fence(revision)) and held.payload)

    async def fences(self, queue: str) -> Mapping[str, str]:
        """See `Fences.fences`."""
        return await books.all_fences(self._link, await self._known(queue))

    async def close(self) -> None:
        await self._link.close()

    async def _known(self, queue: str) -> QueueNames:
        names = self._names_of(queue)
        info = await api.stream_info(self._link, names.books, patience=self._patience)
        if info is None:
            raise BrokerRefusedError(
                f"NATS at {self._link.name} has no bucket {names.bucket} for fences; run: queueworker"
                f" provision {queue}"
            )
        check_owner(names, info["config"], self._link.name)
        return names


def _check(revision: str) -> None:
    if not revision or any(character.isspace() for character in revision):
        raise BrokerUsageError(
            f"the revision {revision!r} must be one word without spaces, or * for every revision"
        )
