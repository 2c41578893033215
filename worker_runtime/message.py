"""What a handler sees of one message, and the scratch space that its hooks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from worker_runtime.brokers.base import Delivery
from worker_runtime.deferred import Commit


@dataclass(frozen=True, slots=True)
class Message:
    """One message as its producer published it."""

    #: The producer's id: 14 hexadecimal digits, a dot, 8 digits.
    pid: str
    queue: str
    #: Seconds since the epoch, as the producer wrote them.
    timestamp: float
    #: How often it was tried before this delivery; 0 the first time.
    attempts: int
    #: The payload's JSON, byte for byte.
    payload: bytes
    _delivery: Delivery | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, delivery: Delivery) -> Message:
        return cls(
            delivery.pid, delivery.queue, delivery.timestamp, delivery.attempts, delivery.payload, delivery
        )

    @property
    def superseded(self) -> bool:
        """Whether this worker has learned that another one has taken the message over: what is done from
        then on is done twice, and the settlement will be refused. From any thread."""
        return self._delivery is not None and self._delivery.superseded

    def json(self) -> Any:
        """Parse the payload. Raises msgspec.DecodeError when it is not JSON."""
        return msgspec.json.decode(self.payload)


@dataclass(slots=True)
class Context:
    """Lives as long as one message: what an init hook puts in, the handler and the later hooks can read."""

    message: Message
    #: The resources of the app, shared by all messages of the process.
    resources: Mapping[str, Any]
    #: Free for hooks and handlers; thrown away with the message.
    values: dict[str, Any] = field(default_factory=dict)
    #: The handle of a handler that takes a Commit, else None.
    commit: Commit | None = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.values[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)
