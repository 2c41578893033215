"""One reservation on the client's side: what was decoded, what is claimed, what is still to be claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker_runtime.brokers.base import Delivery
from worker_runtime.envelope import Envelope, Unreadable, decode_envelope, new_pid


class Reservation:
    """`id` names the reservation on the server, `token` owns what is claimed from it."""

    def __init__(self, reservation_id: str, token: str, queue: str) -> None:
        self.id = reservation_id
        self.token = token
        #: Asked for, and no answer yet: the server may hold it.
        self.asked = False
        self.reserved = False
        self.deadline = b""
        #: Decoded and not yet claimed, in the reservation's order.
        self.entries: list[Delivery] = []
        #: (position in the reservation, why) of what could not be decoded and is not yet put aside.
        self.poison: list[tuple[int, Unreadable]] = []
        self.owned: list[Delivery] = []
        self.poisoned = 0
        #: What a wait has moved into staging, and is asked for without a reservation.
        self.moved: tuple[bytes, Delivery] | None = None
        self._queue = queue

    @property
    def in_doubt(self) -> bool:
        """The server may hold something under this id, or in the name of this token."""
        return self.asked or self.reserved or self.moved is not None

    def move(self, raw: bytes) -> None:
        """Decode what a wait has moved. What cannot be decoded is left to reserve and claim."""
        envelope = decode_envelope(raw)
        if isinstance(envelope, Envelope):
            payload = bytes(envelope.payload)
            self.moved = (
                raw,
                Delivery(
                    envelope.pid, self._queue, payload, envelope.timestamp, envelope.attempts, self.token
                ),
            )

    def take(self, reply: Sequence[Any]) -> None:
        """Decode what reserve returned: a word, the deadline, raw payloads."""
        self.reserved = True
        self.deadline = reply[1]
        queue, token = self._queue, self.token
        entries, seen = self.entries, set()
        for position, raw in enumerate(reply[2:]):
            envelope = decode_envelope(raw)
            if envelope.__class__ is not Envelope:
                assert isinstance(envelope, Unreadable)
                self.poison.append((position, envelope))
                continue
            assert isinstance(envelope, Envelope)
            pid = envelope.pid
            if pid in seen:
                pid = new_pid()
            seen.add(pid)
            entries.append(
                Delivery(pid, queue, bytes(envelope.payload), envelope.timestamp, envelope.attempts, token)
            )

    def hand_over(self) -> tuple[list[Delivery], int]:
        """What is owned and how many were put aside since the last time."""
        owned, poisoned = self.owned, self.poisoned
        self.owned, self.poisoned = [], 0
        return owned, poisoned

    def pids(self) -> list[str]:
        return [one.pid for one in self.entries]

    def claimed_all_but(self, indexes: Sequence[int]) -> None:
        """Poison is put aside and all entries are ours, except those whose pid somebody has: they stay
        reserved and get fresh pids for the next claim. Their bytes on the server stay as they are."""
        self.poisoned += len(self.poison)
        self.poison = []
        if not indexes:
            self.owned += self.entries
            self.entries = []
            return
        left = set(indexes)
        self.owned += [one for index, one in enumerate(self.entries) if index not in left]
        self.entries = [one for index, one in enumerate(self.entries) if index in left]
        for one in self.entries:
            one.pid = new_pid()

    def claimed_before(self, indexes: Sequence[int]) -> None:
        """An earlier claim did it and its answer was lost, or others recovered the reservation."""
        self.owned += [self.entries[index] for index in indexes]
        if indexes or not self.entries:
            self.poisoned += len(self.poison)
        self.entries, self.poison = [], []
