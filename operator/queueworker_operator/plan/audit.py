"""UsageAccounting beyond the broker's books: what a Job or a Prometheus says of a durable store. Pure.

The window is over and kept in the status before anybody is asked, so that each try, also that of an operator
that goes on after a crash, is asked the same. The canary works on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from queueworker_operator.api.audits import Totals
from queueworker_operator.api.gates import AuditStatus, BooksStatus, Gate, Verdict
from queueworker_operator.api.sentences import inside
from queueworker_operator.plan.gates import Judged
from queueworker_operator.plan.queue_facts import Unknown

#: Beyond its own time: until a pod is scheduled, and until what it said is seen.
_SLACK = timedelta(seconds=30)
#: Before another one is begun: what kept the first one from answering may pass.
PAUSE = timedelta(seconds=10)
#: An instant query is answered in less.
_QUERY = timedelta(seconds=30)
_WAY = "Correct spec.rollout.gates, or what it counts"


@dataclass(frozen=True, slots=True)
class NotAudited:
    """Nobody is asked, or is not found yet."""


NOT_AUDITED = NotAudited()


@dataclass(frozen=True, slots=True)
class AuditRefused:
    """No such Job can be made, of whatever name, with whatever environment; or nobody can sign in to ask."""

    #: What the API server said, or the local starter, or what is wrong with a Secret.
    message: str


@dataclass(frozen=True, slots=True)
class AuditAbsent:
    """It was looked for, and it is not there."""

    name: str


@dataclass(frozen=True, slots=True)
class AuditRuns:
    name: str


@dataclass(frozen=True, slots=True)
class AuditAnswered:
    """It ended well, and this is its answer."""

    name: str
    totals: Totals


@dataclass(frozen=True, slots=True)
class AuditMeasured:
    """A Prometheus says how many are lost."""

    name: str
    lost: float


@dataclass(frozen=True, slots=True)
class AuditBroken:
    """It ended in another way, or its answer is none."""

    name: str
    #: What was read, without a subject: "ended with exit code 3: ...".
    message: str


AuditFact = (
    NotAudited
    | AuditRefused
    | AuditAbsent
    | AuditRuns
    | AuditAnswered
    | AuditMeasured
    | AuditBroken
    | Unknown
)


@dataclass(frozen=True, slots=True)
class Asked:
    """It may be made now, if it is not there."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Its answer is waited for."""


def answered(
    gate: Gate, audit: AuditStatus, fact: AuditFact, began: BooksStatus, now: datetime
) -> Judged | Asked | Awaited:
    """What is known of the one that the status names. Never Passed without its answer."""
    who = called(gate, audit)
    match fact:
        case AuditAnswered(name, totals) if name == audit.name and gate.job:
            return _judge(gate, audit, totals, began)
        case AuditMeasured(name, lost) if name == audit.name and gate.prometheus:
            verdict = Verdict.FAILED if lost > 0 else Verdict.PASSED
            return Judged(verdict, f"by {who}, {max(0.0, lost):g} are lost")
        case AuditBroken(name, message) if name == audit.name:
            return Judged(Verdict.ERROR, f"{who}: {inside(message)}. {_WAY}.")
        case _:
            pass
    if now > audit.due_at + patience(gate) + _SLACK:
        read = "it does not run" if isinstance(fact, AuditAbsent) else "it gave no answer"
        seconds = patience(gate).total_seconds()
        return Judged(Verdict.ERROR, f"{who}: {read} within {seconds:.0f} s. {_WAY}.")
    if gate.job and fact == AuditAbsent(audit.name) and now >= audit.due_at:
        return Asked()
    return Awaited()


def called(gate: Gate, audit: AuditStatus) -> str:
    """How people are told of it."""
    return f"the Job {audit.name}" if gate.prometheus is None else f"the Prometheus {gate.prometheus.url}"


def patience(gate: Gate) -> timedelta:
    """How long its answer may take."""
    return timedelta(seconds=gate.job.timeout_seconds) if gate.job else _QUERY


def due(gate: Gate, now: datetime) -> datetime:
    """When it may be asked about a window that ended now."""
    settle = gate.prometheus.settle_seconds if gate.prometheus else 0
    return now + timedelta(seconds=settle)


def refused(gate: Gate, fact: AuditRefused) -> Judged:
    """It makes no sense to measure."""
    what = "its Job is refused" if gate.job else "its Prometheus cannot be asked"
    return Judged(Verdict.INCONCLUSIVE, f"{what}: {inside(fact.message)}. {_WAY}.")


def _judge(gate: Gate, audit: AuditStatus, totals: Totals, began: BooksStatus) -> Judged:
    absorbed = _taken_over(began, audit.ended)
    told = (
        f"the Job {audit.name} counted {totals.counted} of {totals.expected} expected, {totals.lost} lost, "
        f"{totals.duplicates} duplicates where {absorbed} were taken over"
    )
    if totals.lost or totals.duplicates > absorbed:
        return Judged(Verdict.FAILED, told, totals.counted)
    if totals.expected < gate.min_samples:
        text = f"{told}, and minSamples is {gate.min_samples}: measure for longer, or with more work."
        return Judged(Verdict.INCONCLUSIVE, text, totals.counted)
    if totals.surplus:
        text = (
            f"{told}: {totals.surplus} more are in the store than expected, and no duplicates. They could "
            "hide as many that are lost: let it count only what it expects."
        )
        return Judged(Verdict.INCONCLUSIVE, text, totals.counted)
    return Judged(Verdict.PASSED, told, totals.counted)


def joined(books: Judged, audit: Judged) -> Judged:
    """Both together, where the books were found to be in order."""
    return replace(audit, message=f"{audit.message.rstrip('.')}; {books.message}", samples=books.samples)


def _taken_over(began: BooksStatus, ended: BooksStatus) -> int:
    """Deliveries that were run again by others, of both sides: each may have been stored twice."""
    return (
        ended.canary.taken_over - began.canary.taken_over + ended.stable.taken_over - began.stable.taken_over
    )


def variables(
    queue: str, canary: str, stable: str, began: BooksStatus, ended: BooksStatus
) -> Mapping[str, str]:
    """What a Job is told in its environment. `canary` and `stable` are names of revisions; numbers are of the
    canary and of the window, but for COMMITTED_EVER."""
    told = {
        "CANARY": canary,
        "CANARY_VERSION": _version(canary),
        "STABLE": stable,
        "STABLE_VERSION": _version(stable),
        "ARM": canary.rpartition("-p")[2],
        "BEGAN": _rfc3339(began.at),
        "ENDED": _rfc3339(ended.at),
        "BEGAN_EPOCH": _epoch(began.at),
        "ENDED_EPOCH": _epoch(ended.at),
        **{name.upper(): str(number) for name, number in _numbers(began, ended).items()},
    }
    return {"QUEUEWORKER_QUEUE": queue} | {f"QUEUEWORKER_AUDIT_{name}": text for name, text in told.items()}


def placeholders(canary: str, stable: str, began: BooksStatus, ended: BooksStatus) -> Mapping[str, str]:
    """The same for a query, by the name behind the $. Times are in seconds since 1970."""
    numbers = _numbers(began, ended)
    return {
        "canary": canary,
        "canaryVersion": _version(canary),
        "stable": stable,
        "stableVersion": _version(stable),
        "began": _epoch(began.at),
        "ended": _epoch(ended.at),
        "seconds": str(int((ended.at - began.at).total_seconds())),
        "claimed": str(numbers["claimed"]),
        "committed": str(numbers["committed"]),
        "committedEver": str(numbers["committed_ever"]),
        "rejected": str(numbers["rejected"]),
        "takenOver": str(numbers["taken_over"]),
    }


def _numbers(began: BooksStatus, ended: BooksStatus) -> dict[str, int]:
    was, is_ = began.canary, ended.canary
    return {
        "claimed": is_.claimed - was.claimed,
        "committed": is_.committed - was.committed,
        "committed_ever": is_.committed,
        "rejected": is_.rejected - was.rejected,
        "taken_over": is_.taken_over - was.taken_over,
        "absorbed": _taken_over(began, ended),
    }


def _version(revision: str) -> str:
    return revision.rpartition("-p")[0]


def _rfc3339(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _epoch(moment: datetime) -> str:
    return str(int(moment.timestamp()))
