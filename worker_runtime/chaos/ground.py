"""What a run stands on: the place on one broker that is its own, and the harm that only that broker knows."""

from __future__ import annotations

from typing import Protocol

from worker_runtime.brokers.base import QueueReading
from worker_runtime.chaos.record import Account
from worker_runtime.chaos.verdict import Published, Verdict


class Ground(Protocol):
    """Every part raises BrokerError when the broker fails it."""

    #: What the server is made to forget now and then; empty where it keeps nothing for its clients.
    forgets: str
    #: What `fault` does, in the plural.
    faults: str

    async def occupied(self) -> str:
        """What is in the place already; empty when nothing is, as it has to be before a run."""
        ...

    async def prepare(self) -> None:
        """Make what a queue needs there."""
        ...

    async def forget(self) -> None:
        """Make the server forget what `forgets` names. Not called where that is empty."""
        ...

    async def fault_interval(self) -> float:
        """Seconds to leave between two faults of the server, for --server-faults. Raises BrokerRefusedError
        where none can be had that loses nothing."""
        ...

    async def fault(self) -> bool:
        """One fault of the server. False when it did not happen."""
        ...

    async def judge(self, account: Account, published: Published, reading: QueueReading) -> Verdict:
        """After the last worker has ended: was anything lost, and is every book right?"""
        ...

    async def remove(self) -> None:
        """Everything that is in the place."""
        ...
