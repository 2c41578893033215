"""Finding what the server does not hand out any more.

A message that was delivered `max_deliver` times and never settled stays in its stream and counts nowhere:
neither as pending nor as unacknowledged. The server says so once, and a stream keeps that; where it was not
there yet, such messages are told by the difference, as soon as nothing is in work. They go to the dead
letters.
"""

from __future__ import annotations

import msgspec

from worker_runtime.brokers.base import WorkerIdentity
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.api import Stored
from worker_runtime.brokers.nats.dead import DEAD, attempts_of, bury
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.names import DURABLE, QueueNames

#: Stuck messages looked for in one pass.
_WINDOW = 1000


class _Advisory(msgspec.Struct):
    """What the server says of a message that it stops handing out."""

    stream_seq: int = 0


class Sweep:
    """Remembers what one pass suspects; only what the next one still finds there is moved, so that a
    settlement on its way is not mistaken for a stuck message."""

    def __init__(self, link: Link, names: QueueNames, identity: WorkerIdentity) -> None:
        self._link = link
        self._names = names
        self._identity = identity
        self._suspects: set[int] = set()

    async def run(self) -> int:
        """One bounded pass. How many went to the dead letters. Raises BrokerError."""
        moved = await self._run_what_was_said()
        names = self._names
        found = await _stuck_below(self._link, names)
        if not found:
            self._suspects = set()
            return moved
        last = 0
        seen: set[int] = set()
        while len(seen) < _WINDOW:
            stored = await api.get_message(
                self._link, names.stream, {"seq": last + 1, "next_by_subj": names.normal}
            )
            if stored is None or stored.sequence > found:
                break
            last = stored.sequence
            seen.add(last)
            if last in self._suspects:
                moved += await self._bury(stored)
        self._suspects = seen
        return moved

    async def _run_what_was_said(self) -> int:
        """Those that the server told of, also while others are in work."""
        names, moved, last = self._names, 0, 0
        info = await api.stream_info(self._link, names.exhausted)
        if info is None or not info["state"]["messages"]:
            return 0
        consumer = await api.consumer_info(self._link, names.stream, DURABLE)
        if consumer is None:
            return 0
        made_at = api.seconds_of(consumer["created"])
        for _ in range(_WINDOW):
            said = await api.get_message(
                self._link, names.exhausted, {"seq": last + 1, "next_by_subj": names.advisories}
            )
            if said is None:
                break
            last = said.sequence
            try:
                sequence = msgspec.json.decode(said.payload, type=_Advisory).stream_seq
            except msgspec.DecodeError:
                sequence = 0
            # A consumer that was made anew hands everything out again; a stream that was has other messages.
            if sequence and said.at >= made_at:
                stored = await api.get_message(self._link, names.stream, {"seq": sequence})
                if stored is not None and stored.subject == names.normal and stored.at <= said.at:
                    moved += await self._bury(stored)
            await api.delete_message(self._link, names.exhausted, last)
        return moved

    async def _bury(self, stored: Stored) -> bool:
        """False when somebody else has done so."""
        wire = await self._link.opened()
        why = "the server stopped handing it out: its consumer has a max_deliver"
        subject, headers, body = bury(
            self._names,
            stored.payload,
            stored.sequence,
            int(stored.at * 1_000_000),
            wire.max_payload,
            place=DEAD,
            why="exhausted",
            reason=why,
            attempts=attempts_of(stored),
            by=self._identity,
        )
        reply = await self._link.request(subject, body, headers)
        api.read_pub_ack(reply, self._link.name, f"move message {stored.sequence} to the dead letters")
        return await api.delete_message(self._link, self._names.stream, stored.sequence)


async def stuck(link: Link, names: QueueNames) -> int:
    """How many messages nobody will be given. Counts that change meanwhile are read again."""
    for _ in range(5):
        before = await api.consumer_info(link, names.stream, DURABLE)
        info = await api.stream_info(link, names.stream, names.normal)
        after = await api.consumer_info(link, names.stream, DURABLE)
        if before is None or after is None or info is None:
            return 0
        one, other = (
            (each["num_pending"], each["num_ack_pending"], each["delivered"]["stream_seq"])
            for each in (before, after)
        )
        if one == other:
            stored = (info["state"].get("subjects") or {}).get(names.normal, 0)
            return max(0, int(stored) - int(one[0]) - int(one[1]))
    return 0


async def _stuck_below(link: Link, names: QueueNames) -> int:
    """Messages up to this sequence are stuck; 0 when none is."""
    info = await api.consumer_info(link, names.stream, DURABLE)
    if info is None or int(info["config"].get("max_deliver", -1)) <= 0 or not await stuck(link, names):
        return 0
    if not info["num_ack_pending"]:
        return int(info["delivered"]["stream_seq"])
    # The floor lies below everything that somebody still has.
    return int(info["ack_floor"]["stream_seq"])
