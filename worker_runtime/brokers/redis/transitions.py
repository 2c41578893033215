"""How each transition is called: which keys it declares and in which order its arguments go.

The headers in `lua/` are the catalogue; this is the only place that follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker_runtime.brokers.redis import scripts
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.scripts import Call

#: Entries in one call at most; Lua's stack and the server's patience set it.
MAX_ENTRIES = 1000
#: How long a reason is kept when records are kept for ever, in milliseconds: 30 days. Readers of another
#: protocol take entries away without it, so it may not stay for ever.
REASON_MS = 30 * 86_400_000
#: Takeovers are forgotten when none came for this long, in milliseconds: 7 days.
TAKEOVERS_MS = 7 * 86_400_000


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


def take(keys: QueueKeys, raw: bytes, pid: str, token: str, revision: str, expiry: float) -> Call:
    """`raw` is the message, `pid` the one inside it."""
    return Call(
        scripts.TAKE,
        (
            keys.staging,
            keys.fence,
            keys.owners,
            keys.liveness,
            keys.processing,
            keys.total,
            keys.processing_count,
            keys.ledger,
            keys.job_prefix + pid,
        ),
        (raw, token, milliseconds(expiry), revision, keys.job_prefix_length),
    )


def settle(
    keys: QueueKeys,
    pids: Sequence[str],
    tokens: Sequence[str],
    actions: str,
    job_ttl: float,
    extras: Sequence[str | bytes | int] = (),
) -> Call:
    """`actions` has one letter for each pid: c commit, r reject, d reject for good, y retry later, l release.
    `extras` holds, in order, one value for each r and d (why, or "") and three for each y (milliseconds, and
    the two parts of the new envelope)."""
    prefix = keys.job_prefix
    args: list[str | bytes | int] = [keys.job_prefix_length, milliseconds(job_ttl), actions, *tokens]
    reasons: list[str | bytes] = []
    if extras:
        args.append(_reason_ms(job_ttl))
        args += extras
        reasons = [keys.reason(pid) for pid, action in zip(pids, actions, strict=True) if action in "rd"]
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
            keys.dead,
            keys.delayed,
            keys.takeovers,
            *[prefix + pid for pid in pids],
            *reasons,
        ],
        args,
    )


def _reason_ms(job_ttl: float) -> int:
    return milliseconds(job_ttl) or REASON_MS


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
    keys: QueueKeys,
    candidates: Sequence[tuple[bytes, float | None]],
    legacy_age: float,
    max_takeovers: int = 0,
    job_ttl: float = 0.0,
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
            keys.takeovers,
            keys.dead,
            keys.failed_count,
            keys.delayed,
            *[keys.job(pid) for pid, _ in candidates],
            *[keys.reason(pid) for pid, _ in candidates],
        ],
        [
            keys.job_prefix_length,
            milliseconds(legacy_age),
            max_takeovers,
            milliseconds(job_ttl),
            _reason_ms(job_ttl),
            TAKEOVERS_MS,
            *["" if published is None else repr(published) for _, published in candidates],
        ],
    )


def read(commands: Sequence[Sequence[str | bytes | int]]) -> Call:
    """Commands that only read; the second word of each is a key, where there is one."""
    keys = [command[1] for command in commands if len(command) > 1]
    words = [word for command in commands for word in (len(command), *command)]
    return Call(scripts.READ, [key for key in keys if not isinstance(key, int)], words)


def unstage(keys: QueueKeys, limit: int = MAX_ENTRIES) -> Call:
    return Call(scripts.UNSTAGE, (keys.staging, keys.ready), (limit,))


def promote_delayed(keys: QueueKeys, limit: int = MAX_ENTRIES, *, everything: bool = False) -> Call:
    return Call(scripts.PROMOTE_DELAYED, (keys.delayed, keys.ready), (limit, int(everything)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One entry that a sweep wants to move. `letter`: q retry, p park, g drop. `place` counts from the right
    end; `one` and `other` are what the script's header says."""

    letter: str
    pid: bytes
    place: int
    sha1: str
    one: bytes = b""
    other: bytes = b""


def sweep(keys: QueueKeys, candidates: Sequence[Candidate], job_ttl: float, *, of_dead: bool) -> Call:
    args: list[str | bytes | int] = [
        keys.job_prefix_length,
        milliseconds(job_ttl),
        _reason_ms(job_ttl),
        "".join([each.letter for each in candidates]),
    ]
    for each in candidates:
        args += (each.place, each.sha1, each.one, each.other)
    return Call(
        scripts.SWEEP,
        [
            keys.dead if of_dead else keys.failed,
            keys.ready,
            keys.dead,
            *[keys.job(each.pid) for each in candidates],
            *[keys.reason(each.pid) for each in candidates],
        ],
        args,
    )


def beat(keys: QueueKeys, worker: str, expiry: float, record: bytes) -> Call:
    """`expiry` in seconds; 0 takes the worker off the list."""
    return Call(scripts.BEAT, (keys.workers, keys.roster), (worker, milliseconds(expiry), record))
