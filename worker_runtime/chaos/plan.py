"""What the processes of one run have in common."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from worker_runtime.brokers.base import Timing

QUEUE = "chaos"
#: Two, so that the books of each have to balance on their own.
REVISIONS = ("chaos-a", "chaos-b")
#: Short, so that what a killed worker held comes back while others are killed.
TIMING = Timing(expiry=2.0, reservation=1.0, block=0.5, command_timeout=5.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Handed to each process as JSON, by the environment: a password has no place in the arguments."""

    url: str
    namespace: str
    #: The append-only file.
    record: str
    #: Standard error of all workers.
    log: str
    queue: str = QUEUE

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Plan:
        return cls(**json.loads(text))

    @property
    def record_path(self) -> Path:
        return Path(self.record)
