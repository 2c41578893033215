"""Going through the messages of a stream from the oldest on, without a consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator

from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.api import Stored
from worker_runtime.brokers.nats.link import Link

#: Messages asked for at once.
WINDOW = 100
#: Bytes of them at most, unless a single one is larger; counted from the first of a window.
_LARGEST = 8 * 1024 * 1024


async def windows(link: Link, stream: str, subject: str, end: int = 0) -> AsyncIterator[list[Stored]]:
    """Up to `WINDOW` messages of the subject at a time, in order; with `end` no further than that sequence.
    What is deleted or comes in meanwhile may or may not be among them."""
    last = 0
    while True:
        # This one jumps over whatever was deleted; those behind it are asked for by their numbers.
        first = await api.get_message(link, stream, {"seq": last + 1, "next_by_subj": subject})
        if first is None or (end and first.sequence > end):
            return
        size = max(1, min(WINDOW, _LARGEST // max(1, len(first.payload))))
        last = first.sequence + size - 1
        if end:
            last = min(last, end)
        rest = [{"seq": sequence} for sequence in range(first.sequence + 1, last + 1)]
        found = [first]
        if rest:
            found += [
                one
                for one in await api.get_messages(link, stream, rest)
                if one is not None and one.subject == subject
            ]
        yield found
