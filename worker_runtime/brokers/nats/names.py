"""The names of one queue on a JetStream account. They live here only.

Streams, subjects and the durable are those of utopia-php/queue 4, whose producers and workers share them.
There is no namespace in the names: each namespace has an account of its own, and the streams carry whose
they are in their metadata.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from worker_runtime.brokers.base import BrokerUsageError

#: The durable that all workers of a queue share.
DURABLE = "worker"
#: The durable of older workers on the priority subject.
PRIORITY_DURABLE = "worker_priority"
#: Where a stream says which queue of which namespace it belongs to.
IDENTITY = "utopia_queue_identity"

_PLAIN = re.compile(r"[A-Za-z0-9_-]")


def token(word: str) -> str:
    """`word` as one token of a subject: letters, digits, _ and - stand for themselves."""
    return "".join(
        one if _PLAIN.fullmatch(one) else "".join(f"={byte:02X}" for byte in one.encode()) for one in word
    )


def untoken(text: str) -> str:
    """The reverse of `token`; bytes that are not UTF-8 are shown with escapes."""
    raw = re.sub(
        rb"=([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), text.encode("utf-8", "surrogateescape")
    )
    return raw.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class QueueNames:
    """Names of one queue. `namespace` appears in the identity only."""

    namespace: str
    queue: str

    @property
    def _upper(self) -> str:
        return re.sub(r"[^A-Za-z0-9_-]", "_", self.queue.upper())

    @property
    def stream(self) -> str:
        return f"Q_{self._upper}"

    @property
    def dead_stream(self) -> str:
        return f"Q_{self._upper}_DEAD"

    @property
    def normal(self) -> str:
        """Where producers publish and workers take from."""
        return f"q.{self.queue}.normal"

    @property
    def priority(self) -> str:
        """Older producers only. Workers of this package never take from it."""
        return f"q.{self.queue}.priority"

    @property
    def dead(self) -> str:
        return f"q.{self.queue}.dead"

    @property
    def identity(self) -> str:
        return f"{len(self.namespace.encode())}:{self.namespace}:{self.queue}"

    @property
    def bucket(self) -> str:
        """The key-value bucket with the books of this package: fences, live workers, marks."""
        return f"QW_{self._upper}"

    @property
    def books(self) -> str:
        """The stream behind the bucket."""
        return f"KV_{self.bucket}"

    @property
    def exhausted(self) -> str:
        """The stream that keeps what the server says, once and to nobody else, of each message that it stops
        handing out."""
        return f"QW_{self._upper}_EXHAUSTED"

    @property
    def advisories(self) -> str:
        """The subject under which it says so."""
        return f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{self.stream}.{DURABLE}"

    def key(self, *words: str) -> str:
        """The subject of one entry of the books."""
        return f"$KV.{self.bucket}.{'.'.join(words)}"

    def fence(self, revision: str) -> str:
        return self.key("fence-all") if revision == "*" else self.key("fence", token(revision))

    def worker(self, worker: str) -> str:
        return self.key("worker", token(worker))

    def released(self, sequence: int, stored_at: int) -> str:
        """How often one message was given back unstarted. Its place in the stream and the time when it was
        stored (nanoseconds) name it, also when a stream is made anew."""
        return self.key("released", f"{sequence}-{stored_at}")


def names_of(namespace: str, queue: str) -> QueueNames:
    """Raises BrokerUsageError for a queue whose name cannot be part of a subject."""
    if not queue:
        raise BrokerUsageError("the queue's name is empty; give a name such as stats-usage")
    if not re.fullmatch(r"[^\s*>.\x00-\x1f\x7f]+(\.[^\s*>.\x00-\x1f\x7f]+)*", queue) or len(queue) > 200:
        raise BrokerUsageError(
            f"the queue's name {queue[:210]!r} cannot be part of a NATS subject; leave out spaces, * and >,"
            " dots at either end or in a row, and stay within 200 characters"
        )
    try:
        queue.encode()
    except UnicodeEncodeError:
        raise BrokerUsageError(f"the queue's name {queue!r} is not UTF-8; give it in UTF-8") from None
    return QueueNames(namespace, queue)
