"""What a worker knows of one delivery: where to answer, and until when an answer is its own to give."""

from __future__ import annotations

import msgspec

from worker_runtime.brokers.nats.api import seconds_of
from worker_runtime.brokers.nats.topology import Lease

#: An answer has to reach the server before the ack wait is over: this part of it, and at most so many
#: seconds, is kept for the way.
_MARGIN_PART, _LONGEST_MARGIN = 0.1, 1.0


class Receipt(msgspec.Struct, gc=False):
    """Shared by the thread that settles and the one that renews: each field is read and written whole.

    JetStream confirms a late acknowledgement like any other, and it deletes the message under the next
    holder. So whoever is past `deadline` does not answer at all.
    """

    #: The subject that is answered to.
    reply: bytes
    #: The message as it was published.
    body: bytes
    #: How often the server has handed the message out, this time included.
    deliveries: int = 1
    #: The ack wait of this delivery, in seconds.
    wait: float = 0.0
    #: Monotonic time after which nothing is sent for it.
    deadline: float = 0.0
    #: When the consumer was made that handed it out; see `of_another`.
    made: str = ""
    #: How often it was given back unstarted before.
    released: int = 0
    #: A settlement of it was sent.
    settled: bool = False

    @property
    def subject(self) -> str:
        return self.reply.decode()

    @property
    def sequence(self) -> int:
        """Of the message in its stream."""
        return _numbers(self.reply)[1]

    @property
    def stored_at(self) -> int:
        """Nanoseconds since the epoch by the server's clock."""
        return _numbers(self.reply)[2]

    def begin(self, since: float, lease: Lease) -> None:
        """`since`: a monotonic time before the server started to wait."""
        self.wait = lease.of(self.deliveries)
        self.extend(since)

    def of_another(self, lease: Lease) -> bool:
        """Whether it was handed out by a consumer that is gone: in the place of that one is another, to which
        an answer may be about another message with the same number. What was stored after the new one was
        made can only have come from it."""
        if self.made == lease.made or not (self.made and lease.made):
            return False
        return self.stored_at < seconds_of(lease.made) * 1e9

    def take_terms(self, lease: Lease) -> None:
        """The consumer may have been changed under it: a shorter ack wait counts from its last renewal, so
        that the server may have handed it to another one since."""
        before, self.wait = self.wait, lease.of(self.deliveries)
        if self.wait < before:
            self.deadline -= usable(before) - usable(self.wait)

    def extend(self, since: float) -> None:
        self.deadline = since + usable(self.wait)


def usable(wait: float) -> float:
    """The part of an ack wait, in seconds, in which an answer may be sent."""
    return wait - min(_LONGEST_MARGIN, wait * _MARGIN_PART)


def read_receipt(reply: bytes, body: bytes) -> Receipt:
    """From the reply subject of a delivery. Raises ValueError for any other subject."""
    return Receipt(reply, body, _numbers(reply)[0])


def _numbers(reply: bytes) -> tuple[int, int, int]:
    """Deliveries, sequence and time of $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<own count>.<time>
    .<pending>; the long form has two or three tokens more."""
    words = reply.split(b".")
    if words[:2] != [b"$JS", b"ACK"] or len(words) not in (9, 11, 12):
        raise ValueError(f"{reply!r} is not the reply subject of a delivery")
    # The long form has the domain and the account before the stream, and may have a random token at the end.
    base = 2 if len(words) == 9 else 4
    return int(words[base + 2]), int(words[base + 3]), int(words[base + 5])
