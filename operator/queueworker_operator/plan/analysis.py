"""One analysis of a canary, pass by pass: begin, kill if asked for, warm up, measure, judge, and where the
totals of a durable store count, have them counted.

What it needs later is in the status: whoever goes on after a crash compares with the same readings. A window
that was not watched throughout is measured again; the accounts are kept from the very beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from queueworker_operator.api.audits import audit_name
from queueworker_operator.api.gates import (
    Analysis,
    AnalysisStatus,
    AuditStatus,
    BooksStatus,
    Counts,
    Gate,
    OnFailure,
    Verdict,
)
from queueworker_operator.api.reasons import ConditionReason
from queueworker_operator.api.schema import whole_seconds
from queueworker_operator.api.types import Protocol
from queueworker_operator.plan.actions import StartAudit
from queueworker_operator.plan.audit import (
    PAUSE,
    Asked,
    AuditFact,
    AuditRefused,
    Awaited,
    answered,
    called,
    due,
    joined,
    patience,
    refused,
    variables,
)
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.gates import NEED_BOOKS, WITHOUT_BOOKS, Judged, Measured, Side, judge
from queueworker_operator.plan.guards import Guard, Pass, Wait
from queueworker_operator.plan.queue_facts import Books, QueueFacts, Row, Unknown
from queueworker_operator.plan.samples import NotSampled, Samples
from queueworker_operator.plan.steps import fell_since, told_restarts

#: As often as its whole length an analysis may begin to measure anew before nobody waits for it any longer.
_PATIENCE = 3
_LEAD_ON = (Verdict.PASSED, Verdict.WAIVED)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, and beside what."""

    canary: Side
    stable: Side
    stable_protocol: Protocol
    #: The most deliveries that one process of the arm may own.
    bound: int
    #: The arm is a revision of its own, so that others serve when a worker of it is killed.
    may_kill: bool = True
    #: The workers of the arm; None where it is the stable revision itself.
    arm: RevisionFacts | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What the spec says of an analysis."""

    analysis: Analysis
    gates: Sequence[Gate]
    on_failure: OnFailure
    on_inconclusive: OnFailure
    #: Beyond its own length: the time in which nothing else may hold it up.
    deadline: timedelta
    #: The resource and its queue, for whoever counts totals.
    resource: str = ""
    queue: str = ""

    @property
    def chosen(self) -> tuple[Gate, ...]:
        return self.analysis.chosen(self.gates)

    @property
    def audited(self) -> Gate | None:
        return self.analysis.audited(self.gates)

    @property
    def fingerprint(self) -> str:
        return self.analysis.fingerprint(self.gates)


@dataclass(frozen=True, slots=True)
class Analysed:
    """Where an analysis stands after a pass. Pass only if each gate passed or is waived."""

    state: AnalysisStatus
    guard: Guard
    #: A worker of the canary is to be killed now.
    kills: bool = False
    #: What the gates found, where they judged for good in this pass.
    found: tuple[tuple[Gate, Judged], ...] = ()
    #: The change is not to go on.
    aborts: bool = False
    #: Who is to count the totals now, if nobody does.
    starts: StartAudit | None = None


def analysed(
    terms: Terms,
    subject: Subject,
    queue: QueueFacts,
    samples: Samples | Unknown | NotSampled,
    audit: AuditFact,
    before: AnalysisStatus | None,
    now: datetime,
) -> Analysed:
    """The next state. `before` is that of the last pass, None where none was begun at this step."""
    books = read(subject, queue)
    kept = isinstance(queue.books, Books)
    if before is None or (before.revision, before.settings) != (subject.canary.revision, terms.fingerprint):
        state = AnalysisStatus(
            revision=subject.canary.revision, settings=terms.fingerprint, began=books, began_at=now
        )
        return Analysed(state, _measuring(terms, subject))
    if before.verdict is not None:
        return _stands(terms, before)
    audited = terms.audited
    if audited is not None and isinstance(audit, AuditRefused):
        judged = refused(audited, audit)
        told = ((audited, judged),)
        return replace(_ended(terms, before, Verdict.INCONCLUSIVE, _text(told)), found=told)
    if audited is not None and before.audit is not None:
        return _counted(terms, subject, audited, before, before.audit, audit, books, now)
    waits = timedelta(seconds=terms.analysis.warm_up_seconds)
    length = timedelta(seconds=terms.analysis.duration_seconds)
    if terms.analysis.force_failure and subject.may_kill and before.killed_at is None:
        return Analysed(before.model_copy(update={"killed_at": now}), _measuring(terms, subject), kills=True)
    if now - before.began_at > longest(terms.analysis) + terms.deadline:
        fell = told_restarts(subject.arm)
        who = "the canary fell" if fell else "the broker or the operator was away"
        text = f"it could not be measured in one piece: {who} again and again.{fell}"
        return _ended(terms, before, Verdict.INCONCLUSIVE, text)
    if now - (before.killed_at or before.began_at) < waits:
        return Analysed(before, _measuring(terms, subject))
    blind = [gate for gate in terms.chosen if gate.type in NEED_BOOKS and gate.waiver is None]
    if blind and not kept:
        # No time would change that.
        return _judged(terms, subject, before, tuple((gate, WITHOUT_BOOKS) for gate in blind), books)
    watched = queue.watched_since
    if (
        before.measured is None
        or (watched and before.measured.at < whole_seconds(watched))
        or fell_since(before.measured.at, subject.arm)
    ):
        # Nothing that fell in a window, or that nobody saw, passes it.
        return Analysed(before.model_copy(update={"measured": books}), _measuring(terms, subject))
    if books.at - before.measured.at < length:
        return Analysed(before, _measuring(terms, subject))
    since = queue.books.backlog_since if isinstance(queue.books, Books) else None
    own = subject.canary.revision
    ours = isinstance(samples, Samples) and whole_seconds(samples.window) == before.measured.at
    measured = Measured(
        before.began,
        before.measured,
        books,
        kept,
        subject.canary,
        subject.stable,
        backlogged=since is not None and whole_seconds(since) <= before.measured.at,
        most_owned=queue.books.most_owned(own) if isinstance(queue.books, Books) else 0,
        bound=subject.bound,
        samples=samples if ours or isinstance(samples, Unknown) else NotSampled(),
        now=now,
        killed=before.killed_at is not None,
    )
    found = tuple((gate, judge(gate, measured)) for gate in terms.chosen)
    if audited is not None and all(one.verdict in _LEAD_ON for _, one in found):
        return _to_be_counted(terms, audited, before, found, books, now)
    return _judged(terms, subject, before, found, books)


def longest(analysis: Analysis) -> timedelta:
    """How long it may take to measure one window in one piece, when nothing else holds it up."""
    return _PATIENCE * timedelta(seconds=analysis.duration_seconds + analysis.warm_up_seconds)


def _to_be_counted(
    terms: Terms,
    gate: Gate,
    before: AnalysisStatus,
    found: tuple[tuple[Gate, Judged], ...],
    ended: BooksStatus,
    now: datetime,
) -> Analysed:
    """The books are in order. The window is kept before anybody is asked about it."""
    kept = tuple(is_.found(one) for one, is_ in found)
    audit = AuditStatus(name=_audit_name(terms, before), due_at=due(gate, now), ended=ended)
    return Analysed(before.model_copy(update={"found": kept, "audit": audit}), _counting(gate, audit))


def _counted(
    terms: Terms,
    subject: Subject,
    gate: Gate,
    before: AnalysisStatus,
    audit: AuditStatus,
    fact: AuditFact,
    books: BooksStatus,
    now: datetime,
) -> Analysed:
    """Wait for the answer, and judge it with what was found of the window."""
    told = answered(gate, audit, fact, before.began, now)
    if isinstance(told, Awaited):
        return Analysed(before, _counting(gate, audit))
    if isinstance(told, Asked):
        assert gate.job is not None, "only such a gate is audited"
        names = (subject.canary.revision, subject.stable.revision)
        given = variables(terms.queue, *names, before.began, audit.ended)
        start = StartAudit(audit.name, gate.job, given)
        return Analysed(before, _counting(gate, audit), starts=start)
    if told.verdict is Verdict.ERROR and before.errors < gate.error_limit:
        again = before.model_copy(update={"errors": before.errors + 1})
        another = audit.model_copy(update={"name": _audit_name(terms, again), "due_at": now + PAUSE})
        return Analysed(again.model_copy(update={"audit": another}), _counting(gate, another))
    settings = {one.type: one for one in terms.chosen}
    kept = [(settings[one.type], Judged.of(one)) for one in before.found]
    found = tuple((one, joined(is_, told) if one.type is gate.type else is_) for one, is_ in kept)
    return _judged(terms, subject, before.model_copy(update={"found": (), "audit": None}), found, books)


def _audit_name(terms: Terms, state: AnalysisStatus) -> str:
    number = state.failures + state.errors
    return audit_name(terms.resource, state.revision, state.settings, state.began_at, number)


def _counting(gate: Gate, audit: AuditStatus) -> Wait:
    most = patience(gate) + due(gate, audit.due_at) - audit.due_at
    text = f"This step waits for {called(gate, audit)} of {gate.type}, at most {most.total_seconds():.0f} s."
    return Wait(ConditionReason.ANALYZING, text)


def read(subject: Subject, queue: QueueFacts) -> BooksStatus:
    """The books as the status keeps them; all zeros where the broker keeps none."""
    books, at = queue.books, whole_seconds(queue.observed_at)
    if not isinstance(books, Books):
        return BooksStatus(at=at, canary=Counts(), stable=Counts())
    stable = (
        _counts(books.legacy(), 0)
        if subject.stable_protocol is Protocol.LEGACY
        else _of(books, subject.stable.revision)
    )
    canary = _of(books, subject.canary.revision)
    cpu = None if books.cpu_seconds is None else round(1000 * books.cpu_seconds)
    return BooksStatus(
        at=at,
        server=books.server[:253],
        canary=canary,
        stable=stable,
        settled=books.committed + books.failed,
        server_cpu_ms=cpu,
    )


def _of(books: Books, revision: str) -> Counts:
    return _counts(books.row(revision), books.unbooked(revision))


def _counts(row: Row, unbooked: int) -> Counts:
    return Counts(
        claimed=row.claimed,
        committed=row.committed,
        rejected=row.rejected,
        released=row.released,
        taken_over=row.taken_over,
        poisoned=row.poisoned,
        unbooked=unbooked,
    )


def _judged(
    terms: Terms,
    subject: Subject,
    before: AnalysisStatus,
    found: tuple[tuple[Gate, Judged], ...],
    again_from: BooksStatus,
) -> Analysed:
    """What follows from the verdicts of a window."""
    by = {verdict: [(g, j) for g, j in found if j.verdict is verdict] for verdict in Verdict}
    if failed := by[Verdict.FAILED]:
        if before.failures < min(gate.failure_limit for gate, _ in failed):
            more = {"failures": before.failures + 1, "measured": again_from}
            return Analysed(before.model_copy(update=more), _measuring(terms, subject))
        return replace(_ended(terms, before, Verdict.FAILED, _text(failed)), found=found)
    if errors := by[Verdict.ERROR]:
        if before.errors < min(gate.error_limit for gate, _ in errors):
            more = {"errors": before.errors + 1}
            return Analysed(before.model_copy(update=more), _measuring(terms, subject))
        return replace(_ended(terms, before, Verdict.INCONCLUSIVE, _text(errors)), found=found)
    if unsure := by[Verdict.INCONCLUSIVE]:
        return replace(_ended(terms, before, Verdict.INCONCLUSIVE, _text(unsure)), found=found)
    return Analysed(before, Pass(), found=found)


def _text(found: Sequence[tuple[Gate, Judged]]) -> str:
    return "; ".join(f"{gate.type}: {one.message.rstrip('.')}" for gate, one in found) + "."


def _ended(terms: Terms, before: AnalysisStatus, verdict: Verdict, text: str) -> Analysed:
    return _stands(terms, before.model_copy(update={"verdict": verdict, "message": text[:1024]}))


def _stands(terms: Terms, state: AnalysisStatus) -> Analysed:
    """A verdict that does not lead on, until a person asks for something."""
    failed = state.verdict is Verdict.FAILED
    reason = ConditionReason.GATE_FAILED if failed else ConditionReason.GATE_INCONCLUSIVE
    text = (state.message or "").rstrip(".")
    way = "Request Retry to measure again, SkipStep or Promote to go on all the same, or Abort."
    aborts = (terms.on_failure if failed else terms.on_inconclusive) is OnFailure.ABORT
    return Analysed(state, Wait(reason, f"{state.revision} did not pass: {text}. {way}"), aborts=aborts)


def _measuring(terms: Terms, subject: Subject) -> Wait:
    told = told_restarts(subject.arm)
    counted = " without a restart of it" if told else ""
    text = f"This step measures the canary for {terms.analysis.duration_seconds} s{counted}.{told}"
    return Wait(ConditionReason.ANALYZING, text)
