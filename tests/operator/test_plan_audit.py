"""Totals in a durable store: who counts them and when, what is made of the answer, and that only a good one
leads on."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st

from queueworker_operator.api.audits import AuditJob, AuditQuery, BadAnswerError, Totals, read_totals
from queueworker_operator.api.gates import AuditStatus, BooksStatus, Counts, Gate, GateType, Verdict
from queueworker_operator.api.reasons import Stage
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.audit import (
    NOT_AUDITED,
    Asked,
    AuditAbsent,
    AuditAnswered,
    AuditBroken,
    AuditFact,
    AuditMeasured,
    AuditRefused,
    AuditRuns,
    Awaited,
    answered,
    placeholders,
)
from queueworker_operator.plan.facts import Unknown
from queueworker_operator.plan.gates import Judged
from tests.operator.resources import GONE, START, V1, V2, after, template
from tests.operator.test_plan_analysis import MEASURE, Measured

JOB = {"template": template("demo:audit"), "timeoutSeconds": 60}


def totals(expected: int, lost: int = 0, duplicates: int = 0, more: int = 0) -> Totals:
    return Totals(expected=expected, counted=expected - lost + more, lost=lost, duplicates=duplicates)


def gate(**changes: Any) -> dict[str, Any]:
    return {"type": "UsageAccounting", "job": JOB, **changes}


class Audited(Measured):
    """A measured canary beside whose books a Job counts. `says` makes of its name what is known of it."""

    def __init__(self, *steps: dict[str, Any], **changes: Any) -> None:
        rollout = {"gates": [gate(**changes)]}
        super().__init__(*(steps or (MEASURE,)), rollout=rollout)
        self.says: Callable[[str], AuditFact] = AuditRuns
        self.refused = ""
        self.begun: list[str] = []
        self.told: list[AuditFact] = []

    @property
    def named(self) -> str:
        """Who counts, by the status."""
        analysis = self.status.rollout.analysis if self.status.rollout else None
        return analysis.audit.name if analysis and analysis.audit else ""

    def look(self, reading: Any = None) -> list[str]:
        self.audit = AuditRefused(self.refused) if self.refused and not self.named else NOT_AUDITED
        if self.named:
            there = self.named in self.audits
            self.audit = self.says(self.named) if there else AuditAbsent(self.named)
            self.told.append(self.audit)
        before = set(self.audits)
        done = super().look(reading)
        self.begun += [name for name in self.audits if name not in before]
        return done

    def to_the_audit(self) -> str:
        """Until somebody counts. Gives the name."""
        self.measured(80)
        for _ in range(10):
            if self.named in self.audits:
                return self.named
            self.look()
        raise AssertionError("nobody counts")


def test_a_job_is_asked_once_about_a_window_that_is_kept_and_its_answer_leads_on() -> None:
    story = Audited()
    name = story.to_the_audit()
    assert (story.stage, story.gates()) == (Stage.ANALYZING, ("Unknown", "Analyzing"))
    ready = story.status.condition("Ready")
    assert ready is not None
    assert name in ready.message
    assert list(story.status.gates) == [], "nothing is judged yet"
    told = story.audits[name].variables
    assert told["QUEUEWORKER_AUDIT_CANARY"] == V2.name
    assert told["QUEUEWORKER_AUDIT_CANARY_VERSION"] == V2.version
    assert told["QUEUEWORKER_AUDIT_STABLE"] == V1.name
    assert told["QUEUEWORKER_AUDIT_ARM"] == "100"
    assert told["QUEUEWORKER_QUEUE"] == "stats-usage"
    assert int(told["QUEUEWORKER_AUDIT_COMMITTED"]) >= 6000
    window = int(told["QUEUEWORKER_AUDIT_ENDED_EPOCH"]) - int(told["QUEUEWORKER_AUDIT_BEGAN_EPOCH"])
    assert 60 <= window <= 90

    for _ in range(5):
        story.wait(5)
        assert story.look() == []
    assert story.audits[name].variables == told
    story.says = lambda name: AuditAnswered(name, totals(6000))
    assert f"remove {name}" in story.look()
    assert story.verdicts() == dict.fromkeys(GateType, "Passed")
    (audit,) = [one for one in story.status.gates if one.type is GateType.USAGE_ACCOUNTING]
    assert f"Job {name} counted 6000 of 6000 expected" in audit.message
    assert "committed" in audit.message, "and what the books say"
    cpu = next(one for one in story.status.gates if one.type is GateType.CPU_EFFICIENCY)
    assert (cpu.percent, cpu.limit) == (100, 120), "and what the others measured"
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()
    assert story.begun == [name]
    assert story.audits == {}


def test_what_is_lost_is_taken_back_by_the_guarded_way() -> None:
    story = Audited()
    name = story.to_the_audit()
    story.says = lambda name: AuditAnswered(name, totals(6000, lost=1))
    assert story.look() == ["fence v2", "v1 to 4", f"remove {name}"]
    assert story.verdicts()["UsageAccounting"] is Verdict.FAILED
    story.until(Stage.IDLE)
    assert story.status.stable == V1.as_stable()
    ready = story.status.condition("Ready")
    assert ready is not None
    assert "1 lost" in ready.message


def test_nobody_is_asked_where_the_books_are_out_of_order() -> None:
    story = Audited()
    story.until(Stage.ANALYZING)
    story.look()
    story.lost = 1
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.begun == []
    assert story.verdicts()["UsageAccounting"] is Verdict.FAILED


def broken(name: str) -> AuditFact:
    return AuditBroken(name, "ended with exit code 3.")


def unseen(name: str) -> AuditFact:
    return Unknown("nobody could look", START)


@pytest.mark.parametrize("says", [broken, AuditRuns, AuditAbsent, unseen])
def test_whoever_gives_no_answer_is_replaced_as_often_as_the_limit_says(
    says: Callable[[str], AuditFact],
) -> None:
    story = Audited(errorLimit=2)
    story.says = says
    story.to_the_audit()
    for _ in range(100):
        story.wait(5)
        story.look()
        assert len(story.audits) <= 1, "the one before is removed"
    assert story.said() == ("False", "GateInconclusive")
    assert len(story.begun) == len(set(story.begun)) == 3
    assert story.audits == {}
    assert story.verdicts()["UsageAccounting"] is Verdict.ERROR
    ready = story.status.condition("Ready")
    assert ready is not None
    assert story.begun[-1] in ready.message

    story.says = lambda name: AuditAnswered(name, totals(6000))
    story.asked("Retry")
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_the_next_one_gives_what_went_wrong_time_to_pass() -> None:
    story = Audited()
    story.says = broken
    story.to_the_audit()
    story.look()
    begun = len(story.begun)
    story.look()
    story.look()
    assert len(story.begun) == begun
    story.wait(10)
    story.look()
    assert len(story.begun) == begun + 1


def test_a_failure_limit_measures_again_and_counts_again() -> None:
    story = Audited(failureLimit=1)
    first = story.to_the_audit()
    story.says = WORDS["lost"]
    story.look()
    assert story.stage is Stage.ANALYZING
    assert story.status.gates == ()
    story.says = AuditRuns
    assert story.to_the_audit() != first
    story.says = WORDS["good"]
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_a_job_that_nobody_can_make_ends_the_analysis_at_its_beginning() -> None:
    story = Audited()
    story.refused = 'the API server says: Job "x" is invalid'
    story.until(Stage.ANALYZING)
    story.look()
    assert story.said() == ("False", "GateInconclusive")
    ready = story.status.condition("Ready")
    assert ready is not None
    assert 'Job "x" is invalid' in ready.message
    story.refused = ""
    story.says = lambda name: AuditAnswered(name, totals(6000))
    other = gate(job={**JOB, "timeoutSeconds": 61})
    story.more = {"rollout": {"gates": [other]}}
    story.wants(story.spec(story.status))
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


@pytest.mark.parametrize("what", ["Abort", "SkipStep", "Promote", "undone", "other limits", "deleted"])
def test_whoever_counts_for_nobody_any_more_is_removed(what: str) -> None:
    story = Audited()
    story.to_the_audit()
    if what in ("Abort", "SkipStep", "Promote"):
        story.asked(what)
    elif what == "undone":
        story.wants(story.spec(story.status, spec__template=template("demo:v1")))
    elif what == "other limits":
        story.more = {"rollout": {"gates": [gate(minSamples=7)]}}
        story.wants(story.spec(story.status))
    else:
        story.wants(story.spec(story.status, **GONE))
    story.look()
    assert story.audits == {}


def test_it_is_found_again_by_its_name_after_a_crash() -> None:
    """Between its creation and the write of the status nothing but the status is lost."""
    story = Audited()
    story.measured(60)
    while not story.named:
        story.look()
    before = story.status
    story.look()
    assert len(story.begun) == 1
    story.asks(status=before)
    story.look()
    assert len(story.begun) == 1
    assert len(story.audits) == 1


def asked(**changes: Any) -> dict[str, Any]:
    return {"job": None, "prometheus": {"url": "http://prometheus:9090", "query": "lost", **changes}}


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [(0.0, Verdict.PASSED), (-40.0, Verdict.PASSED), (1.0, Verdict.FAILED), (0.5, Verdict.FAILED)],
)
def test_a_prometheus_is_asked_when_what_was_stored_has_come_there(lost: float, verdict: Verdict) -> None:
    story = Audited(**asked(settleSeconds=100))
    story.measured(80)
    while not story.named:
        story.look()
    ready = story.status.condition("Ready")
    assert ready is not None
    assert "http://prometheus:9090" in ready.message
    analysis = story.status.rollout.analysis if story.status.rollout else None
    assert analysis is not None
    assert analysis.audit is not None
    assert (analysis.audit.due_at - analysis.audit.ended.at).total_seconds() == 100
    story.wait(100)
    story.look()
    story.audits[story.named] = act.StartAudit("", AuditJob.model_validate(JOB), {})
    story.says = lambda name: AuditMeasured(name, lost)
    story.look()
    assert story.begun == []
    assert story.verdicts()["UsageAccounting"] is verdict
    story.until(Stage.IDLE)
    assert (story.status.stable == V2.as_stable()) == (verdict is Verdict.PASSED)


def test_a_prometheus_that_says_nothing_is_asked_again_and_then_waited_for() -> None:
    story = Audited(**asked(), errorLimit=1)
    story.measured(80)
    for _ in range(40):
        story.wait(10)
        story.look()
    assert story.said() == ("False", "GateInconclusive")
    assert story.verdicts()["UsageAccounting"] is Verdict.ERROR


def test_what_a_query_is_told() -> None:
    query = AuditQuery(
        url="http://p", query='clamp_min($committedEver - stored{r="$canary"}, 0) or x{a=~"b$"} $who'
    )
    ended = BooksStatus(at=after(70), canary=Counts(committed=9), stable=Counts())
    text = query.filled(placeholders("v2-p8", "v1-p8", books(0), ended))
    assert text == 'clamp_min(9 - stored{r="v2-p8"}, 0) or x{a=~"b$"} $who'


#: What may be known of whoever counts, in each of three thirds of its time, and then for good.
WORDS: dict[str, Callable[[str], AuditFact]] = {
    "good": lambda name: AuditAnswered(name, totals(6000)),
    "lost": lambda name: AuditAnswered(name, totals(6000, lost=1)),
    "few": lambda name: AuditAnswered(name, totals(99)),
    "another": lambda name: AuditAnswered(f"{name}0", totals(6000)),
    "broken": broken,
    "runs": AuditRuns,
    "absent": AuditAbsent,
    "unseen": unseen,
}


def test_nothing_but_a_good_answer_is_promoted() -> None:
    """S2, with totals: every sequence of three."""
    promoted, begun = set(), Audited(errorLimit=1)
    begun.to_the_audit()
    for words in product(WORDS, repeat=3):
        story = copy.deepcopy(begun)
        for word in (*words, *[words[-1]] * 9):
            story.says = WORDS[word]
            story.wait(20)
            story.look()
        took_over = story.status.stable != V1.as_stable() or story.status.promoted is not None
        if took_over:
            promoted.add(words)
            *others, last = story.told
            assert isinstance(last, AuditAnswered)
            assert last.totals == totals(6000), words
            assert last.name in story.begun, "not that of somebody else"
            assert not any(isinstance(one, AuditAnswered) and one.name in story.begun for one in others)
            assert {one.verdict for one in story.status.gates} == {Verdict.PASSED}
    assert ("good", "good", "good") in promoted
    assert ("broken", "runs", "good") in promoted
    assert ("lost", "good", "good") not in promoted


def books(at: float, canary: int = 0, stable: int = 0) -> BooksStatus:
    return BooksStatus(
        at=after(at), server="a", canary=Counts(taken_over=canary), stable=Counts(taken_over=stable)
    )


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        pytest.param(totals(1000), Verdict.PASSED, id="all is counted"),
        pytest.param(totals(1000, lost=1), Verdict.FAILED, id="one is lost"),
        pytest.param(totals(1000, duplicates=5), Verdict.PASSED, id="as many again as were taken over"),
        pytest.param(totals(1000, duplicates=6), Verdict.FAILED, id="one more again"),
        pytest.param(totals(1000, more=5, duplicates=5), Verdict.PASSED, id="which it counts as well"),
        pytest.param(totals(1000, more=1), Verdict.INCONCLUSIVE, id="one more than there should be"),
        pytest.param(totals(1000, more=6, duplicates=5), Verdict.INCONCLUSIVE, id="and one more"),
        pytest.param(totals(1000, lost=1, more=1), Verdict.FAILED, id="as many more as are lost"),
        pytest.param(totals(99), Verdict.INCONCLUSIVE, id="too few"),
        pytest.param(totals(0), Verdict.INCONCLUSIVE, id="it looked at nothing"),
        pytest.param(totals(99, lost=1), Verdict.FAILED, id="too few, and one of them is lost"),
    ],
)
def test_what_an_answer_says(said: Totals, verdict: Verdict) -> None:
    audit = AuditStatus(name="a", due_at=START, ended=books(60, canary=5, stable=3))
    found = answered(GATE, audit, AuditAnswered("a", said), books(0, canary=1, stable=2), after(61))
    assert isinstance(found, Judged)
    assert found.verdict is verdict


GATE = Gate.model_validate(gate())

counts = st.sampled_from([0, 99, 100, 2**53 - 1])
names = st.sampled_from(["a", "b"])
facts = st.one_of(
    st.just(NOT_AUDITED),
    st.builds(Unknown, st.text(), st.just(START)),
    st.builds(AuditRefused, st.text()),
    st.builds(AuditAbsent, names),
    st.builds(AuditRuns, names),
    st.builds(AuditBroken, names, st.text()),
    st.builds(AuditMeasured, names, st.floats(allow_nan=False)),
    st.builds(
        AuditAnswered,
        names,
        st.builds(
            Totals, expected=counts, counted=counts, lost=st.integers(0, 2), duplicates=st.integers(0, 4)
        ),
    ),
)


@given(
    way=st.sampled_from(["job", "prometheus"]), fact=facts, due=st.integers(0, 100), now=st.integers(0, 300)
)
def test_only_the_answer_of_the_right_one_passes(way: str, fact: AuditFact, due: int, now: int) -> None:
    audit = AuditStatus(name="a", due_at=after(due), ended=books(0, canary=2))
    one = GATE if way == "job" else Gate.model_validate(gate(**asked()))
    found = answered(one, audit, fact, books(0), after(now))
    if isinstance(found, Judged) and found.verdict is Verdict.PASSED:
        assert isinstance(fact, AuditAnswered if way == "job" else AuditMeasured)
        assert fact.name == "a"
        if isinstance(fact, AuditAnswered):
            assert fact.totals.lost == 0
            assert fact.totals.duplicates <= 2
            assert fact.totals.counted <= fact.totals.expected + fact.totals.duplicates
        else:
            assert fact.lost <= 0
    if isinstance(found, Asked):
        assert way == "job"
        assert fact == AuditAbsent("a")
        assert now >= due
    if isinstance(found, Awaited):
        assert now <= due + 60 + 30, "nobody waits for ever"


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "no answer"),
        (b" \n", "no answer"),
        (b"done", "its answer is done"),
        (b"[1]", "its answer is [1]"),
        (b'{"expected": 1, "counted": 1, "duplicates": 0}', "lost"),
        (b'{"expected": 1, "counted": 1, "duplicates": 0, "lost": "0"}', "lost"),
        (b'{"expected": 1, "counted": 1, "duplicates": 0, "lost": -1}', "lost"),
        (b'{"expected": 1.5, "counted": 1, "duplicates": 0, "lost": 0}', "expected"),
        (b'{"expected": true, "counted": 1, "duplicates": 0, "lost": 0}', "expected"),
        (b'{"expected": 10, "counted": 7, "duplicates": 0, "lost": 2}', "contradicts itself"),
        (b'{"expected": 1, "counted": 1, "duplicates": 0, "lost": 0}' + b" " * 4096, "4096 bytes"),
        (b"\xff\xfe", "its answer is"),
    ],
)
def test_what_is_no_answer(raw: bytes, part: str) -> None:
    with pytest.raises(BadAnswerError, match=re.escape(part)) as refused:
        read_totals(raw)
    assert len(str(refused.value)) < 400


def test_an_answer_may_say_more() -> None:
    raw = b'{"expected": 3, "counted": 3, "duplicates": 1, "lost": 0, "store": "db1"}\n'
    assert read_totals(raw) == totals(3, duplicates=1)


@given(st.binary(max_size=200))
def test_whatever_is_read_is_an_answer_or_told(raw: bytes) -> None:
    found = None
    with suppress(BadAnswerError):
        found = read_totals(raw)
    assert found is None or found.expected <= found.counted + found.lost
