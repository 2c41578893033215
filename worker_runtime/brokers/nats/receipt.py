"""What a worker knows of one delivery: where to answer, and until when an answer is its own to give."""

from __future__ import annotations

from worker_runtime.brokers.nats.topology import Lease

#: An answer has to reach the server before the ack wait is over: this part of it, and at most so many
#: seconds, is kept for the way.
_MARGIN_PART, _LONGEST_MARGIN = 0.1, 1.0


class Receipt:
    """Shared by the thread that settles and the one that renews: each field is read and written whole.

    JetStream confirms a late acknowledgement like any other, and it deletes the message under the next
    holder. So whoever is past `deadline` does not answer at all.
    """

    __slots__ = (
        "body",
        "deadline",
        "deliveries",
        "released",
        "reply",
        "sequence",
        "settled",
        "stored_at",
        "wait",
    )

    def __init__(self, reply: str, sequence: int, stored_at: int, deliveries: int) -> None:
        self.reply = reply
        #: The message as it was published.
        self.body = b""
        self.sequence = sequence
        #: Nanoseconds since the epoch by the server's clock.
        self.stored_at = stored_at
        #: How often the server has handed the message out, this time included.
        self.deliveries = deliveries
        #: How often it was given back unstarted before.
        self.released = 0
        #: The ack wait of this delivery, in seconds.
        self.wait = 0.0
        #: Monotonic time after which nothing is sent for it.
        self.deadline = 0.0
        #: A settlement of it was sent.
        self.settled = False

    def begin(self, since: float, lease: Lease) -> None:
        """`since`: a monotonic time before the server started to wait."""
        self.wait = lease.of(self.deliveries)
        self.extend(since)

    def extend(self, since: float) -> None:
        self.deadline = since + self.wait - min(_LONGEST_MARGIN, self.wait * _MARGIN_PART)


def read_receipt(reply: bytes) -> Receipt:
    """From the reply subject: $JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.CONSUMER-SEQUENCE.TIME.PENDING in
    its short form, two or three tokens more in the long one. Raises ValueError for any other subject."""
    text = reply.decode()
    words = text.split(".")
    if words[:2] != ["$JS", "ACK"] or len(words) not in (9, 11, 12):
        raise ValueError(f"{text!r} is not the reply subject of a delivery")
    # The long form has the domain and the account before the stream, and may have a random token at the end.
    base = 2 if len(words) == 9 else 4
    return Receipt(text, int(words[base + 3]), int(words[base + 5]), int(words[base + 2]))
