"""The gates: a row for each thing that they can find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from queueworker_operator.api.gates import BooksStatus, Counts, Gate, GateType, Verdict
from queueworker_operator.plan.facts import Unknown
from queueworker_operator.plan.gates import Measured, Side, judge
from queueworker_operator.plan.samples import NOT_SAMPLED, Histogram, Pair, Sample, Samples
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
    content: dict[str, Any] = {
        "kept": True,
        "samples": NOT_SAMPLED,
        "now": after(65),
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


def found(type_: GateType, measured: Measured, **settings: Any) -> Verdict:
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


def test_a_rate_below_the_limit_that_passes_says_why() -> None:
    slower = judge(Gate(type=PROGRESS), window(done(850), done(3000)))
    assert (slower.verdict, slower.percent, slower.limit) == (PASSED, 85, 90)
    assert "85 % for each worker, at least 90 %; among so few messages that can be chance." in slower.message
    assert "chance" not in judge(Gate(type=PROGRESS), window(done(950), done(3000))).message


def test_a_canary_that_hangs_is_not_told_to_measure_for_longer() -> None:
    """The stable revision does all the work meanwhile, so that none waits and nothing is compared."""
    hangs = judge(Gate(type=PROGRESS), window(done(0), done(3000), backlogged=False, most_owned=4))
    assert hangs.verdict is UNSURE
    assert "one process of it owns 4 deliveries" in hangs.message
    assert "Retry or Abort" in hangs.message
    idle = judge(Gate(type=PROGRESS), window(done(0), done(3000), backlogged=False, most_owned=0))
    assert "measure for longer" in idle.message


@pytest.mark.parametrize(
    ("canary", "stable", "verdict"),
    [
        pytest.param(done(1000), done(3000), PASSED, id="all is counted"),
        pytest.param(done(1000), NOTHING, PASSED, id="nothing to compare with, and nothing to ask"),
        pytest.param(done(990, taken_over=8, released=5), done(3000), PASSED, id="a worker was killed"),
        pytest.param(done(290, taken_over=29), done(3000), UNSURE, id="its workers die again and again"),
        pytest.param(done(290, taken_over=29), done(3000, taken_over=300), PASSED, id="those beside, too"),
        pytest.param(done(290, 100, taken_over=29), done(3000), FAILED, id="and it rejects"),
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


def test_what_is_taken_over_from_a_worker_that_was_killed_on_purpose_is_no_fault() -> None:
    assert found(USAGE, window(done(290, taken_over=29), done(3000), killed=True)) is PASSED


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


BOUNDS = (0.001, 0.01, 0.1, 1.0, float("inf"))


def spread(*counts: int) -> Histogram:
    """How many fell into each bucket."""
    return tuple((bound, sum(counts[: index + 1])) for index, bound in enumerate(BOUNDS))


NONE_YET = spread(0, 0, 0, 0, 0)
FAST = spread(0, 1000, 0, 0, 0)


def pair(
    settled: int, cpu: float, durations: Histogram = FAST, latencies: Histogram = FAST, at: float = 65
) -> Pair:
    """One worker over a minute."""
    last = Sample(after(at), 0.0, 50 + cpu, 7 + settled, durations, latencies)
    return Pair(Sample(after(5), 0.0, 50, 7, NONE_YET, NONE_YET), last)


def sampled(canary: tuple[Pair, ...], stable: tuple[Pair, ...], **changes: Any) -> Measured:
    pairs = {"v2-p8": canary, "v1-p8": stable}
    return window(done(1000), done(3000), samples=Samples(after(5), pairs), **changes)


CPU, LATENCY = GateType.CPU_EFFICIENCY, GateType.LATENCY


@pytest.mark.parametrize(
    ("canary", "stable", "verdict"),
    [
        pytest.param([pair(1000, 10)], [pair(1000, 10)], PASSED, id="the same"),
        pytest.param([pair(1000, 5)], [pair(1000, 10)], PASSED, id="less"),
        pytest.param([pair(1000, 13)], [pair(1000, 10)], PASSED, id="more, by what an idle worker may cost"),
        pytest.param([pair(1000, 14)], [pair(1000, 10)], FAILED, id="more"),
        pytest.param([pair(100, 2)], [pair(1000, 10)], PASSED, id="dear, since it had little to do"),
        pytest.param([pair(1000, 10)], [pair(1000, 10), pair(1000, 40)], PASSED, id="the stable added up"),
        pytest.param([pair(1000, 1.1)], [pair(1000, 0)], PASSED, id="nothing measurable beside"),
        pytest.param([pair(1000, 1.3)], [pair(1000, 0)], FAILED, id="something beside nothing"),
        pytest.param([], [pair(1000, 10)], UNSURE, id="the canary was restarted"),
        pytest.param([pair(1000, 10)], [], UNSURE, id="nobody of the stable answers"),
        pytest.param([pair(1000, 10, at=40)], [pair(1000, 10)], UNSURE, id="it fell silent"),
        pytest.param([pair(99, 1)], [pair(1000, 10)], UNSURE, id="too few"),
        pytest.param([pair(1000, 1)], [pair(99, 10)], UNSURE, id="too few beside"),
    ],
)
def test_cpu_efficiency(canary: list[Pair], stable: list[Pair], verdict: Verdict) -> None:
    assert found(CPU, sampled(tuple(canary), tuple(stable))) is verdict


def test_what_is_compared_with_the_stable_revision_is_told_as_a_number() -> None:
    judged = judge(Gate(type=PROGRESS, min_percent_of_stable=80), window(done(500), done(3000)))
    assert (judged.percent, judged.limit) == (50, 80)
    judged = judge(Gate(type=CPU), sampled((pair(1000, 15),), (pair(1000, 10),)))
    assert "150 %, at most 120 % besides 20 ms a second for each worker" in judged.message
    assert (judged.percent, judged.limit) == (150, 120)
    assert judge(Gate(type=USAGE), window(done(1000), done(3000))).percent is None
    assert judge(Gate(type=PROGRESS), window(done(100), done(3000), backlogged=False)).percent is None


@pytest.mark.parametrize(
    ("durations", "latencies", "verdict"),
    [
        pytest.param(FAST, FAST, PASSED, id="the same"),
        pytest.param(spread(1000, 0, 0, 0, 0), FAST, PASSED, id="faster"),
        pytest.param(spread(0, 0, 1000, 0, 0), FAST, PASSED, id="the next bucket may be next door"),
        pytest.param(spread(0, 0, 0, 1000, 0), FAST, FAILED, id="slower"),
        pytest.param(spread(0, 0, 0, 0, 1000), FAST, FAILED, id="slower than every bucket"),
        pytest.param(spread(0, 880, 0, 120, 0), FAST, FAILED, id="more than a few are slow"),
        pytest.param(spread(0, 985, 0, 15, 0), FAST, PASSED, id="the slow ones may be a coincidence"),
        pytest.param(spread(0, 960, 0, 40, 0), FAST, FAILED, id="too many are very slow"),
        pytest.param(FAST, spread(0, 0, 0, 1000, 0), PASSED, id="a second is no difference"),
        pytest.param(spread(0, 99, 0, 0, 0), FAST, UNSURE, id="too few"),
    ],
)
def test_latency(durations: Histogram, latencies: Histogram, verdict: Verdict) -> None:
    canary = pair(1000, 1, durations, latencies)
    assert found(LATENCY, sampled((canary,), (pair(1000, 1),))) is verdict


def test_a_wait_in_the_buffer_counts_from_a_second_on() -> None:
    quick = ((1.0, 1000), (2.0, 1000), (4.0, 1000), (8.0, 1000))
    slow = ((1.0, 0), (2.0, 0), (4.0, 0), (8.0, 1000))
    next_door = ((1.0, 0), (2.0, 1000), (4.0, 1000), (8.0, 1000))
    zero = tuple((bound, 0) for bound, _ in quick)

    def waits(histogram: Histogram) -> Pair:
        one = pair(1000, 1, latencies=histogram)
        return replace(one, first=replace(one.first, latencies=zero))

    assert found(LATENCY, sampled((waits(slow),), (waits(quick),))) is FAILED
    assert found(LATENCY, sampled((waits(next_door),), (waits(quick),))) is PASSED
    assert found(LATENCY, sampled((waits(slow),), (waits(slow),))) is PASSED


def test_workers_with_other_buckets_are_compared_all_the_same() -> None:
    """The stable revision may have an older runtime."""
    coarse, none = ((0.1, 1000), (float("inf"), 1000)), ((0.1, 0), (float("inf"), 0))
    older = pair(1000, 1)
    older = Pair(replace(older.first, durations=none), replace(older.last, durations=coarse))
    assert found(LATENCY, sampled((pair(1000, 1),), (older,))) is PASSED
    slow = pair(1000, 1, spread(0, 0, 0, 0, 1000))
    assert found(LATENCY, sampled((slow,), (older,))) is FAILED


@pytest.mark.parametrize("type_", [CPU, LATENCY])
def test_workers_that_nobody_asked_are_an_error(type_: GateType) -> None:
    measured = sampled((pair(1000, 1),), (pair(1000, 1),))
    assert found(type_, replace(measured, samples=Unknown("no answer", START))) is Verdict.ERROR
    assert found(type_, replace(measured, samples=NOT_SAMPLED)) is Verdict.ERROR


@pytest.mark.parametrize("type_", [PROGRESS, USAGE])
def test_without_books_there_is_nothing_to_judge(type_: GateType) -> None:
    assert found(type_, window(done(1000), done(3000), kept=False)) is UNSURE


@pytest.mark.parametrize("type_", [PROGRESS, USAGE])
def test_what_is_not_one_piece_is_inconclusive(type_: GateType) -> None:
    good = window(done(1000), done(3000))
    assert found(type_, good) is PASSED
    failed_over = replace(good, end=good.end.model_copy(update={"server": "b"}))
    assert found(type_, failed_over) is UNSURE
    backwards = replace(good, start=books(done(2000), at=5))
    assert found(type_, backwards) is UNSURE
    assert found(type_, replace(good, start=books(stable=done(4000), at=5))) is UNSURE


def test_the_accounts_that_are_told_add_up() -> None:
    began = Counts(claimed=40, committed=30, unbooked=3)
    end = Counts(claimed=1040, committed=1000, rejected=5, released=10, taken_over=4, unbooked=3)
    measured = window(end, done(3000), began=books(began), start=books(began, at=5))
    told = judge(Gate(type=USAGE), measured).message
    assert told.startswith(
        "1000 claimed and 7 owned before: 970 committed, 5 rejected, 10 released, 4 taken over, "
        "18 still owned"
    )
    assert 1000 + 7 == 970 + 5 + 10 + 4 + 18


@pytest.mark.parametrize("type_", GateType)
def test_what_is_waived_is_not_asked(type_: GateType) -> None:
    nothing = window(NOTHING, NOTHING, kept=False)
    assert found(type_, nothing, waiver="not at this time of the year") is Verdict.WAIVED


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
small = st.integers(0, 10**6)
histograms = st.lists(small, min_size=5, max_size=5).map(lambda found: spread(*found))
pairs = st.builds(pair, small, st.floats(0, 10**6), histograms, histograms, st.sampled_from([40, 65]))
some = st.lists(pairs, max_size=2).map(tuple)
samples = st.one_of(
    st.just(NOT_SAMPLED),
    st.just(Unknown("nobody answers", START)),
    st.builds(Samples, st.just(after(5)), st.dictionaries(st.just("v"), some)),
)
windows = st.builds(
    Measured,
    *(readings, readings, readings, st.booleans(), sides, sides),
    *(st.booleans(), st.integers(0, 99), st.integers(1, 99), samples, st.just(after(65))),
)


@given(st.sampled_from(GateType), windows, st.integers(1, 10**6))
def test_every_gate_has_a_verdict_for_everything(type_: GateType, measured: Measured, least: int) -> None:
    judged = judge(Gate(type=type_, min_samples=least), measured)
    assert judged.verdict in (PASSED, FAILED, UNSURE, Verdict.ERROR)
    assert judged.message
    if judged.verdict is PASSED and type_ in (PROGRESS, USAGE):
        assert measured.kept
        assert measured.began.server == measured.end.server
    if judged.verdict is PASSED and type_ in (CPU, LATENCY):
        assert isinstance(measured.samples, Samples)
        assert judged.samples >= least


@pytest.mark.parametrize(
    ("was", "is_", "server", "told"),
    [
        (1000, 3000, "a", "; the broker spends 0.5 ms for each of 4000."),
        (None, 3000, "a", None),
        (1000, None, "a", None),
        (3000, 1000, "a", None),
        (1000, 3000, "b", None),
    ],
)
def test_what_the_broker_spends_explains_and_judges_nothing(
    was: int | None, is_: int | None, server: str, told: str | None
) -> None:
    def at(seconds: float, settled: int, cpu: int | None, name: str) -> BooksStatus:
        more = {"settled": settled, "server_cpu_ms": cpu, "server": name}
        return books(done(settled), done(settled), at=seconds).model_copy(update=more)

    ends = {"start": at(5, 0, was, "a"), "end": at(65, 4000, is_, server)}
    judged = judge(Gate(type=CPU), sampled((pair(1000, 10),), (pair(1000, 10),), **ends))
    assert judged.verdict is PASSED
    assert ("broker" in judged.message) == (told is not None)
    if told:
        assert judged.message.endswith(told)
