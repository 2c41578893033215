"""What a live worker writes of itself on every broker, as JSON. A reader fills in what an older or newer
worker left out."""

from __future__ import annotations

import msgspec

from worker_runtime.brokers.base import LONGEST_END, PROTOCOL, Presence, WorkerIdentity, WorkerReading

#: Characters of `Presence.reason` that are kept.
_LONGEST_REASON = 500


class Announced(msgspec.Struct, kw_only=True):
    """One worker, as far as it is alike on every broker."""

    revision: str = ""
    protocol: str = ""
    host: str = ""
    receiving: bool = False
    reason: str = ""
    outstanding: int = 0
    coroutines: int = 0
    prefetch: int = 0
    restarts: int = 0
    last_end: str = ""
    place: str = ""

    def reading(self, worker: str, uptime: float, expires_in: float) -> WorkerReading:
        """`worker` is its name; both times are in seconds."""
        return WorkerReading(
            worker=worker,
            revision=self.revision,
            protocol=self.protocol,
            host=self.host,
            receiving=self.receiving,
            reason=self.reason,
            outstanding=self.outstanding,
            coroutines=self.coroutines,
            prefetch=self.prefetch,
            uptime=uptime,
            expires_in=expires_in,
            restarts=self.restarts,
            last_end=self.last_end[:LONGEST_END],
            place=self.place,
        )


def announced(identity: WorkerIdentity, presence: Presence) -> Announced:
    """What this worker writes now."""
    return Announced(
        revision=identity.revision,
        protocol=PROTOCOL,
        host=identity.host,
        receiving=presence.receiving,
        reason=presence.reason[:_LONGEST_REASON],
        outstanding=presence.outstanding,
        coroutines=presence.coroutines,
        prefetch=presence.prefetch,
        restarts=identity.restarts,
        last_end=identity.last_end[:LONGEST_END],
        place=identity.place,
    )
