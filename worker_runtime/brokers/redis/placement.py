"""On Redis Cluster all keys of a queue must lie in one slot, since one script touches them together."""

from __future__ import annotations

from redis.crc import key_slot

from worker_runtime.brokers.base import UnsafePlacementError
from worker_runtime.brokers.redis.keys import QueueKeys


def slot_of(keys: QueueKeys) -> int:
    """The slot of the ready list; with a safe placement, of everything."""
    return key_slot(keys.ready.encode())


def verify_placement(keys: QueueKeys) -> None:
    """Raises UnsafePlacementError that names two keys, their slots and the way out."""
    first, *others = [str(key) for key in keys.samples()]
    slot = key_slot(first.encode())
    for other in others:
        elsewhere = key_slot(other.encode())
        if elsewhere != slot:
            raise UnsafePlacementError(
                f"on Redis Cluster all keys of a queue must share one slot, but {first} is in slot {slot}"
                f" and {other} in slot {elsewhere}; put a hash tag into the namespace,"
                f" such as {{{keys.namespace.strip('{}') or 'utopia-queue'}}}"
            )
