"""How each transition is called: which keys it declares and in which order its arguments go.

The headers in `lua/` are the catalogue; this is the only place that follows them.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_runtime.brokers.redis import scripts
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.scripts import Call

#: Entries in one call at most; Lua's stack and the server's patience set it.
MAX_ENTRIES = 1000


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def reserve(keys: QueueKeys, reservation: str, revision: str, limit: int, seconds: float) -> Call:
    return Call(
        scripts.RESERVE,
        (keys.staging, keys.ready, keys.reservations, keys.reservation(reservation), keys.fence),
        (revision, reservation, min(limit, MAX_ENTRIES), milliseconds(seconds)),
    )


def claim(
    keys: QueueKeys,
    reservation: str,
    deadline: bytes,
    token: str,
    revision: str,
    expiry: float,
    pids: Sequence[str],
    poison: Sequence[tuple[int, bytes]] = (),
) -> Call:
    """`poison` holds (position in the reservation from 0, JSON object that says why)."""
    prefix = keys.job_prefix
    args: list[str | bytes | int] = [
        reservation,
        deadline,
        token,
        milliseconds(expiry),
        revision,
        keys.job_prefix_length,
        len(poison),
    ]
    for position, why in poison:
        args.append(position + 1)
        args.append(why)
    return Call(
        scripts.CLAIM,
        [
            keys.reservations,
            keys.reservation(reservation),
            keys.owners,
            keys.liveness,
            keys.processing,
            keys.total,
            keys.processing_count,
            keys.poison,
            keys.ledger,
            *[prefix + pid for pid in pids],
        ],
        args,
    )


def settle(keys: QueueKeys, pids: Sequence[str], tokens: Sequence[str], actions: str, job_ttl: float) -> Call:
    """`actions` has one letter for each pid: c commit, r reject, l release."""
    prefix = keys.job_prefix
    return Call(
        scripts.SETTLE,
        [
            keys.owners,
            keys.liveness,
            keys.processing,
            keys.ready,
            keys.failed,
            keys.total,
            keys.processing_count,
            keys.success,
            keys.failed_count,
            keys.ledger,
            *[prefix + pid for pid in pids],
        ],
        [keys.job_prefix_length, milliseconds(job_ttl), actions, *tokens],
    )


def extend(keys: QueueKeys, owned: Sequence[tuple[str, str]], expiry: float) -> Call:
    """`owned` holds (pid, token)."""
    args: list[str | int] = [milliseconds(expiry)]
    for pair in owned:
        args += pair
    return Call(scripts.EXTEND, (keys.owners, keys.liveness), args)


def recover_reservation(keys: QueueKeys, reservation: str | bytes) -> Call:
    return Call(
        scripts.RECOVER_RESERVATION,
        (keys.reservations, keys.reservation(reservation), keys.ready),
        (reservation,),
    )


def recover_delivery(
    keys: QueueKeys, candidates: Sequence[tuple[bytes, float | None]], legacy_age: float
) -> Call:
    """`candidates` holds (pid, second of publication, or None to leave it alone when it has no token)."""
    return Call(
        scripts.RECOVER_DELIVERY,
        [
            keys.owners,
            keys.liveness,
            keys.ready,
            keys.processing,
            keys.total,
            keys.processing_count,
            keys.ledger,
            *[keys.job(pid) for pid, _ in candidates],
        ],
        [
            keys.job_prefix_length,
            milliseconds(legacy_age),
            *["" if published is None else repr(published) for _, published in candidates],
        ],
    )


def unstage(keys: QueueKeys, limit: int = MAX_ENTRIES) -> Call:
    return Call(scripts.UNSTAGE, (keys.staging, keys.ready), (limit,))
