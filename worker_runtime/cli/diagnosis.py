"""From where a message is to why it has not run. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from worker_runtime.brokers.base import Place, QueueReading, Role, Timing, Whereabouts, WorkerReading

_LEGACY_AGE = Timing().legacy_age
_NOTHING = "nothing has to be done"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    where: str
    why: str
    way_out: str


def diagnose(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    diagnosis = _DIAGNOSES[found.place](found, reading)
    if reading.role is not Role.REPLICA:
        return diagnosis
    return Diagnosis(
        f"{diagnosis.where}, by {reading.server}, a replica: it may lag behind",
        diagnosis.why,
        f"ask the primary; if it says the same: {diagnosis.way_out}",
    )


def _waiting(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    before = found.position or 0
    place = "in ready" if found.place is Place.READY else "in staging, which is taken before ready"
    where = f"{place}, with {before:,} messages before it" if before else f"{place}, taken next"
    return Diagnosis(where, *_why_nobody_takes(before, reading))


def _why_nobody_takes(before: int, reading: QueueReading) -> tuple[str, str]:
    """Also for what comes back to ready later on: who would take it from there."""
    queue, workers = reading.queue, reading.workers
    if not workers:
        fenced = f"; besides, {_fences(reading)}" if reading.fences else ""
        return (
            f"no live worker of this protocol is on the queue{fenced}",
            f"start one: queueworker run MODULE:APP --queue {shlex.quote(queue)}"
            " (older protocols are not listed)",
        )
    receiving = [each for each in workers if each.receiving]
    if not receiving:
        fenced_only = all(each.revision in reading.fences or "*" in reading.fences for each in workers)
        if fenced_only:
            return (
                f"all {len(workers)} live workers are fenced: {_fences(reading)}",
                "lift the fence: " + _lift(queue, {each.revision for each in workers}, reading),
            )
        return (
            f"none of {len(workers)} live workers receives: {_reasons(workers)}",
            "remove what those reasons name, or start another worker",
        )
    room = sum(max(0, each.prefetch - reading.owners.get(each.worker, 0)) for each in receiving)
    if room == 0:
        return (
            f"all {len(receiving)} receiving workers hold as much as their prefetch allows,"
            f" {sum(reading.owners.get(each.worker, 0) for each in receiving):,} messages in all",
            "wait for their handlers, or add workers, coroutines or prefetch",
        )
    if before:
        return f"{before:,} messages are before it and {len(receiving)} workers receive", _NOTHING
    return f"{len(receiving)} workers receive; it is about to be taken", _NOTHING


def _reserved(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    left = found.deadline_in or 0.0
    where = f"in reservation {found.reservation}, taken but not yet claimed"
    holder = next((w for w in reading.workers if (found.reservation or "").startswith(w.worker)), None)
    if left > 0:
        who = f"live worker {holder.worker}" if holder else "a worker that is not on the list of live ones"
        return Diagnosis(
            where,
            f"{who} reserved it; in {left:.1f} s anybody may recover it",
            _NOTHING if reading.workers else _start(reading),
        )
    why = f"its deadline passed {-left:.1f} s ago and nobody has recovered it yet"
    return Diagnosis(where, why, _recovery(reading))


def _owned(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    where = f"owned by worker {found.worker} of revision {found.revision}"
    worker = next((each for each in reading.workers if each.worker == found.worker), None)
    expired = found.expires_in is None or found.expires_in <= 0
    if not expired:
        renewed = f"its ownership holds for another {found.expires_in:.1f} s if it is not renewed"
        if worker is not None:
            return Diagnosis(
                where,
                f"the worker lives and has {reading.owners.get(worker.worker, 0):,} messages for"
                f" {worker.coroutines} handlers: it waits there, runs, or is being confirmed; {renewed}",
                "wait, or look at the worker's log and /status for a handler that stands still",
            )
        return Diagnosis(
            where,
            f"the worker is not on the list of live ones; {renewed}, then anybody may take it over",
            _recovery(reading),
        )
    since = "" if found.expires_in is None else f" {-found.expires_in:.1f} s ago"
    return Diagnosis(
        where, f"its ownership expired{since} and nobody has taken it over yet", _recovery(reading)
    )


def _without_token(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    where = "in processing without a token: a worker of an older protocol has it or left it"
    if found.published_ago is None:
        return Diagnosis(
            where, "its record is gone, so nothing can run; it is cleared away", _recovery(reading)
        )
    left = _LEGACY_AGE - found.published_ago
    if left > 0:
        why = f"it may still run there; it is recovered {_LEGACY_AGE:.0f} s after it was published"
        return Diagnosis(where, f"{why}, in {left:.0f} s", _NOTHING if reading.workers else _start(reading))
    return Diagnosis(where, "it is old enough to be recovered and nobody has done it yet", _recovery(reading))


def _delayed(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    due = found.due_in or 0.0
    if due > 0:
        return Diagnosis(f"delayed, due in {due:.1f} s", "it is a retry whose time has not come", _NOTHING)
    return Diagnosis("delayed, and due", "nobody has put it back into ready yet", _recovery(reading))


def _failed(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    if found.recorded:
        return Diagnosis(
            "failed", "its handler rejected it", f"queueworker retry {shlex.quote(reading.queue)}"
        )
    return Diagnosis("failed", "its handler rejected it, and its record is gone by now", "publish it again")


def _dead(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    if found.recorded:
        way_out = f"remove the cause, then queueworker retry {shlex.quote(reading.queue)} --dead"
        return Diagnosis("dead", "it was given up; its record is kept", way_out)
    return Diagnosis("dead", "it was given up; its record is gone by now", "publish it again")


def _poison(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    return Diagnosis(
        "put aside as poison",
        "it could not be decoded; its bytes are kept as they were",
        "correct the producer and publish the payload again",
    )


def _nowhere(found: Whereabouts, reading: QueueReading) -> Diagnosis:
    if not found.complete:
        return Diagnosis(
            f"not among the {found.scanned:,} entries that were looked at",
            "it may be further back",
            "search more: --scan with a larger number",
        )
    return Diagnosis(
        "nowhere in this queue",
        "it was committed, retried under a new pid, dropped, or never published to this queue and namespace",
        "check the queue, the namespace and the broker's URL; the log line of its handler names the pid",
    )


def _fences(reading: QueueReading) -> str:
    return ", ".join(
        f"{'every revision' if revision == '*' else revision} is fenced ({reason})"
        for revision, reason in sorted(reading.fences.items())
    )


def _lift(queue: str, revisions: Collection[str], reading: QueueReading) -> str:
    """What lets one of the revisions receive again: its own fence, and the one on all of them."""
    ways = (
        " and ".join(_unfence(queue, mark) for mark in ("*", revision) if mark in reading.fences)
        for revision in sorted(revisions)
    )
    return "; or ".join(dict.fromkeys(ways))


def _unfence(queue: str, revision: str) -> str:
    return f"queueworker unfence {shlex.quote(queue)}" + (
        "" if revision == "*" else f" --revision {revision}"
    )


def _reasons(workers: Sequence[WorkerReading]) -> str:
    return ", ".join(sorted({each.reason or "it does not say why" for each in workers}))


def _start(reading: QueueReading) -> str:
    return (
        f"start a worker, which recovers it: queueworker run MODULE:APP --queue {shlex.quote(reading.queue)}"
    )


def _recovery(reading: QueueReading) -> str:
    if not reading.workers:
        return _start(reading)
    return f"nothing: {len(reading.workers)} live workers look for such work, a third of the expiry apart"


_DIAGNOSES = {
    Place.READY: _waiting,
    Place.STAGING: _waiting,
    Place.RESERVED: _reserved,
    Place.OWNED: _owned,
    Place.WITHOUT_TOKEN: _without_token,
    Place.DELAYED: _delayed,
    Place.FAILED: _failed,
    Place.DEAD: _dead,
    Place.POISON: _poison,
    Place.NOWHERE: _nowhere,
}
