"""The benchmarks run the product: a small session on a real server, and one that is stuck."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from benchmarks.__main__ import main
from benchmarks.contenders import Contender, queueworker
from benchmarks.nats_site import nats_site
from benchmarks.scenarios import Scenario
from benchmarks.session import Results, run_session
from benchmarks.watchdog import Limits
from benchmarks.workload import Workload

SMALL = Workload(messages=300)
#: More than is done before the harness looks for the first time.
LARGE = Workload(messages=40_000)
#: The same, where each message is asked for by itself.
SINGLE = Workload(messages=5_000)


def test_a_session_measures_every_round_of_every_workload() -> None:
    results = Results()
    backlog = Scenario("backlog", "A backlog", (LARGE, replace(SINGLE, prefetch=1)))
    paced = Scenario("paced", "At a rate", (replace(SMALL, rate=100.0, messages=30),))
    counted = Scenario("counted", "Requests", (SMALL,), count_only=True)
    run_session([backlog, paced, counted], queueworker(), [], 1, results)
    assert results.faults == []
    whole, single, slow = (run.figures for run in results.runs)
    for figures in (whole, single, slow):
        assert figures.retries == 0
        assert figures.processes >= 2, "the supervisor and its worker"
        assert figures.memory_peak > 0
        assert figures.bytes_in > 0
        assert figures.age_p50 > 0
    assert whole.requests < 1 < single.requests
    assert (whole.messages, single.messages, slow.messages) == (40_000, 5_000, 30)
    requests = results.counted[0].requests
    assert requests.batch > 1
    assert {"reserve", "claim", "settle"} <= set(requests.calls)


def test_a_session_on_nats_measures_the_same() -> None:
    results = Results()
    backlog = Scenario("backlog", "A backlog", (replace(LARGE, processes=2),))
    settle = Scenario("settle", "Confirmations", (SMALL,), program="settling")
    publish = Scenario("publish", "Publishing", (SMALL,), program="publishing")
    run_session([backlog, settle, publish], queueworker(), [], 1, results, open_site=nats_site)
    assert results.faults == []
    whole, settled, published = (run.figures for run in results.runs)
    assert whole.retries == 0
    assert whole.bytes_in > 0
    assert whole.age_p50 > 0
    assert 1 < whole.requests < whole.commands, "each message is acknowledged by itself"
    assert whole.processes >= 3, "a supervisor and two workers that began when both were idle"
    assert whole.messages == 40_000
    assert 0 < settled.age_p50 <= settled.age_p99
    assert published.per_second > 0


def test_a_stuck_run_is_ended_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def contender(name: str, program: str) -> Contender:
        publish = ["echo", '{"messages": 1, "seconds": 1}']
        return replace(
            queueworker(), name=name, publish=lambda _: publish, work=lambda _: ["sh", "-c", program]
        )

    started: list[int] = []
    kill = os.killpg

    def killpg(group: int, how: int) -> None:
        started.append(group)
        kill(group, how)

    monkeypatch.setattr(os, "killpg", killpg)
    results = Results()
    stuck = contender("stuck", "echo asleep; exec sleep 600")
    failing = contender("failing", "echo no; exit 7")
    scenario = Scenario("x", "Two that do not work", (SMALL,), with_peers=True)
    run_session([scenario], stuck, [failing], 1, results, Limits(stall=3.0))
    assert results.runs == []
    assert len(results.faults) == 2
    assert "no progress for 3 s while waiting for the first handler" in results.faults[0]
    assert "worker.log ends: asleep" in results.faults[0]
    assert "the worker ended with code 7" in results.faults[1]
    assert "worker.log ends: no" in results.faults[1]
    assert started
    for group in started:
        with pytest.raises(ProcessLookupError):
            kill(group, 0)


def test_a_run_that_was_too_short_to_measure_is_not_reported_as_one() -> None:
    results = Results()
    run_session([Scenario("x", "Too short", (replace(SMALL, messages=1),))], queueworker(), [], 1, results)
    assert results.runs == []
    assert "use more messages" in results.faults[0]


def test_the_scripts_of_this_checkout_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scripts", "--batch", "1", "20", "--rounds", "3"]) == 0
    out = capsys.readouterr().out
    assert "| messages a call | script | now, us |" in out
    figures = [float(line.split("|")[3]) for line in out.splitlines() if "all three" in line]
    assert len(figures) == 2
    assert all(one > 0 for one in figures)


def test_a_revision_without_scripts_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scripts", "--rounds", "1", "--against", "no-such-revision"]) == 2
    assert "no-such-revision" in capsys.readouterr().err
