"""Which answer belongs to which request, where many are on their way over one connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

import msgspec


class Reply(msgspec.Struct, gc=False):
    """`status` is 0 where the answer carries none."""

    status: int
    headers: bytes
    payload: bytes

    @property
    def words(self) -> str:
        """What the server says beside the status."""
        line = self.headers.split(b"\r\n", 1)[0]
        return line[12:].decode("utf-8", "replace").strip()


#: What confirms an acknowledgement.
_EMPTY = Reply(0, b"", b"")

#: The index of a request, and its answer.
OnReply = Callable[[int, Reply], None]
#: Some requests by their index, each confirmed by an empty message.
OnConfirmed = Callable[[list[int]], None]


class Asking:
    """Requests that went out together. Their answers are numbered from `start`."""

    __slots__ = ("done", "left", "on_confirmed", "on_reply", "open", "start", "stop", "subjects")

    def __init__(
        self,
        start: int,
        subjects: Sequence[bytes],
        on_reply: OnReply,
        on_confirmed: OnConfirmed | None,
        done: asyncio.Future[None],
    ) -> None:
        self.start = start
        self.stop = start + len(subjects)
        self.subjects = subjects
        self.left = len(subjects)
        #: 1 for each that has no answer yet.
        self.open = bytearray(b"\1") * len(subjects)
        self.on_reply = on_reply
        self.on_confirmed = on_confirmed or self._one_by_one
        #: Ends with the last answer, or when no more are waited for.
        self.done = done

    def unanswered(self) -> list[int]:
        if not self.left:
            return []
        return [index for index, is_open in enumerate(self.open) if is_open]

    def give_up(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def confirm(self, indices: list[int]) -> None:
        """Those that had no answer before."""
        self.left -= len(indices)
        self.on_confirmed(indices)
        if not self.left:
            self.give_up()

    def answer(self, index: int, reply: Reply) -> None:
        """Nothing happens where it was answered before."""
        if self.open[index]:
            self.open[index] = 0
            self.left -= 1
            self.on_reply(index, reply)
            if not self.left:
                self.give_up()

    def _one_by_one(self, indices: list[int]) -> None:
        for index in indices:
            self.on_reply(index, _EMPTY)


class Answers:
    """Of one connection. Answers come to `to` and a number, as the subscription `sid`."""

    def __init__(self, to: bytes, sid: bytes) -> None:
        self.to = to
        #: The number of the next request.
        self.count = 0
        self._asked: list[Asking] = []
        head, tail = b"MSG " + to, b" %b 0\r\n\r\n" % sid
        self._head, self._tail, self._between = len(head), len(tail), tail + head
        #: Matches a run of confirmations, as they arrive for what went out together.
        self.confirmations = re.compile(b"(?:%b[0-9a-f]{1,15}%b)+" % (re.escape(head), re.escape(tail))).match

    def expect(
        self,
        subjects: Sequence[bytes],
        on_reply: OnReply,
        on_confirmed: OnConfirmed | None,
        done: asyncio.Future[None],
    ) -> Asking:
        asking = Asking(self.count, subjects, on_reply, on_confirmed, done)
        self.count = asking.stop
        self._asked.append(asking)
        return asking

    def forget(self, asking: Asking) -> None:
        """What still comes for it is nobody's."""
        if asking in self._asked:
            self._asked.remove(asking)

    def end(self) -> None:
        """Nothing comes any more."""
        for asking in self._asked:
            asking.give_up()
        self._asked.clear()

    def confirmed(self, run: bytes) -> None:
        """What `confirmations` matched."""
        asking: Asking | None = None
        found: list[int] = []
        for text in run[self._head : -self._tail].split(self._between):
            number = int(text, 16)
            if asking is None or not asking.start <= number < asking.stop:
                if asking is not None:
                    asking.confirm(found)
                asking, found = self._of(number), []
                if asking is None:
                    continue
            index = number - asking.start
            if asking.open[index]:
                asking.open[index] = 0
                found.append(index)
        if asking is not None:
            asking.confirm(found)

    def arrived(self, subject: bytes, reply: Reply) -> None:
        """Any other answer."""
        try:
            number = int(subject.rpartition(b".")[2], 16)
        except ValueError:
            return
        asking = self._of(number)
        if asking is not None:
            asking.answer(number - asking.start, reply)

    def refuse(self, subject: bytes, reply: Reply) -> None:
        """Answer all requests to this subject that are open."""
        for asking in list(self._asked):
            for index, asked in enumerate(asking.subjects):
                if asked == subject:
                    asking.answer(index, reply)

    def _of(self, number: int) -> Asking | None:
        for asking in self._asked:
            if asking.start <= number < asking.stop:
                return asking
        return None
