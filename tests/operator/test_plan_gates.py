"""The gates: a row for each thing that they can find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueworker_operator.api.gates import BooksStatus, Counts, Gate, GateType, Verdict
from queueworker_operator.plan.gates import Measured, Side, judge
from queueworker_operator.plan.guards import Unknown
from tests.operator.resources import START, after

NOTHING = Counts()


def books(
    canary: Counts = NOTHING, stable: Counts = NOTHING, at: float = 0, server: str = "a"
) -> BooksStatus:
    return BooksStatus(at=after(at), server=server, canary=canary, stable=stable)


def done(committed: int, rejected: int = 0, **more: int) -> Counts:
    claimed = committed + rejected + sum(more.get(name, 0) for name in ("released", "taken_over"))
    return Counts(**{"claimed": claimed, "committed": committed, "rejected": rejected} | more)


def window(canary: Counts, stable: Counts, **changes: Any) -> Measured:
    """One canary worker beside three of the stable revision."""
    content = {
        "began": books(),
        "start": books(at=5),
        "end": books(canary, stable, at=65),
        "canary": Side("v2-p8", 1),
        "stable": Side("v1-p8", 3),
        "backlogged": True,
        "most_owned": 8,
        "bound": 9,
    }
    return Measured(**content | changes)


def found(type_: GateType, measured: Measured | Unknown, **settings: Any) -> Verdict:
    return judge(Gate(type=type_, **settings), measured).verdict


PROGRESS, USAGE = GateType.QUEUE_PROGRESS, GateType.USAGE_ACCOUNTING
PASSED, FAILED, UNSURE = Verdict.PASSED, Verdict.FAILED, Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("canary", "stable", "changes", "verdict"),
    [
        pytest.param(done(1000), done(3000), {}, PASSED, id="as fast"),
        pytest.param(done(2000), done(3000), {}, PASSED, id="faster"),
        pytest.param(done(500), done(3000), {}, FAILED, id="half as fast"),
        pytest.param(done(850), done(3000), {}, PASSED, id="slower, but that may be a coincidence"),
        pytest.param(done(8500), done(30000), {}, FAILED, id="slower by as much, and surely"),
        pytest.param(done(0), done(3000), {}, FAILED, id="it does nothing"),
        pytest.param(done(0, 1000), done(3000), {}, FAILED, id="it rejects all"),
        pytest.param(done(99), done(297), {}, UNSURE, id="too few"),
        pytest.param(done(0), done(297), {}, UNSURE, id="too few to say that it does nothing"),
        pytest.param(done(1000), done(0, 3000), {}, UNSURE, id="the stable revision commits nothing"),
        pytest.param(done(100), done(3000), {"backlogged": False}, PASSED, id="the queue ran empty"),
        pytest.param(done(99), done(3000), {"backlogged": False}, UNSURE, id="too few, and empty"),
        pytest.param(done(1000), done(3000), {"most_owned": 9}, PASSED, id="at the bound"),
        pytest.param(done(1000), done(3000), {"most_owned": 10}, FAILED, id="a broken bound"),
    ],
)
def test_queue_progress(canary: Counts, stable: Counts, changes: dict[str, Any], verdict: Verdict) -> None:
    assert found(PROGRESS, window(canary, stable, **changes)) is verdict


@pytest.mark.parametrize(
    ("canary", "stable", "verdict"),
    [
        pytest.param(done(1000), done(3000), PASSED, id="all is counted"),
        pytest.param(done(1000), NOTHING, PASSED, id="nothing to compare with, and nothing to ask"),
        pytest.param(done(990, taken_over=8, released=5), done(3000), PASSED, id="a worker was killed"),
        pytest.param(done(1000, unbooked=1), done(3000), FAILED, id="one is lost"),
        pytest.param(done(1000, unbooked=-1), done(3000), FAILED, id="one ended twice"),
        pytest.param(done(900, 100), done(3000), FAILED, id="it rejects, the other one does not"),
        pytest.param(done(900, 100), done(2700, 300), PASSED, id="both reject"),
        pytest.param(done(995, 5), done(3000), PASSED, id="less than one of a hundred more"),
        pytest.param(done(98, 2), done(3000, 30), PASSED, id="it may be a coincidence"),
        pytest.param(done(1000, poisoned=100), done(3000), FAILED, id="it cannot decode"),
        pytest.param(done(99), done(3000), UNSURE, id="too few"),
        pytest.param(done(900, 100), done(99), UNSURE, id="too few to compare with"),
    ],
)
def test_usage_accounting(canary: Counts, stable: Counts, verdict: Verdict) -> None:
    assert found(USAGE, window(canary, stable)) is verdict


def test_usage_is_counted_from_the_very_beginning() -> None:
    """What went astray in the warm-up, as after a forced failure, is astray."""
    lost = done(500, unbooked=1)
    measured = window(done(1500, unbooked=1), done(3000), start=books(lost, at=5))
    assert found(USAGE, measured) is FAILED
    assert found(PROGRESS, measured) is PASSED


def test_books_that_were_off_before_are_nobodys_fault() -> None:
    off = Counts(unbooked=7)
    measured = window(done(1000, unbooked=7), done(3000), began=books(off), start=books(off, at=5))
    assert found(USAGE, measured) is PASSED


@pytest.mark.parametrize("type_", GateType)
def test_what_is_not_one_piece_is_inconclusive(type_: GateType) -> None:
    good = window(done(1000), done(3000))
    assert found(type_, good) is PASSED
    failed_over = replace(good, end=good.end.model_copy(update={"server": "b"}))
    assert found(type_, failed_over) is UNSURE
    backwards = replace(good, start=books(done(2000), at=5))
    assert found(type_, backwards) is UNSURE
    assert found(type_, replace(good, start=books(stable=done(4000), at=5))) is UNSURE


@pytest.mark.parametrize("type_", GateType)
def test_what_nobody_saw_is_an_error_and_what_is_waived_is_not_asked(type_: GateType) -> None:
    nobody = Unknown("nobody could look", START)
    assert found(type_, nobody) is Verdict.ERROR
    assert found(type_, nobody, waiver="not at this time of the year") is Verdict.WAIVED


def test_settings_move_the_limits() -> None:
    half = window(done(500), done(3000))
    assert found(PROGRESS, half, min_percent_of_stable=40) is PASSED
    few = window(done(50), done(150))
    assert found(PROGRESS, few, min_samples=50) is PASSED


counts = st.integers(0, 10**9)
rows = st.builds(
    Counts,
    claimed=counts,
    committed=counts,
    rejected=counts,
    released=counts,
    taken_over=counts,
    poisoned=counts,
    unbooked=st.integers(-5, 5),
)
readings = st.builds(books, rows, rows, st.just(0), st.sampled_from("ab"))
sides = st.builds(Side, st.just("v"), st.integers(1, 1000))
windows = st.builds(
    Measured,
    readings,
    readings,
    readings,
    sides,
    sides,
    st.booleans(),
    st.integers(0, 99),
    st.integers(1, 99),
)


@given(st.sampled_from(GateType), windows, st.integers(1, 10**6))
def test_every_gate_has_a_verdict_for_everything(type_: GateType, measured: Measured, samples: int) -> None:
    judged = judge(Gate(type=type_, min_samples=samples), measured)
    assert judged.verdict in (PASSED, FAILED, UNSURE)
    assert judged.message
    if judged.verdict is PASSED:
        assert measured.began.server == measured.end.server
        assert judged.samples >= 0
