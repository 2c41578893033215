"""The benchmark harness: its arithmetic, its verdicts, what it writes down. It measures nothing here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments, report
from benchmarks.__main__ import main
from benchmarks.bars import Verdict, bars, nats_bars
from benchmarks.contenders import all_peers, nats_peers
from benchmarks.nats_scenarios import NATS_SCENARIOS
from benchmarks.operator_command import Figures as OperatorFigures, markdown as operator_markdown
from benchmarks.operator_site import asked, samples
from benchmarks.payloads import payload, sent_of
from benchmarks.profiling import read
from benchmarks.recorder import recorder
from benchmarks.records import Records
from benchmarks.running import Figures
from benchmarks.scenarios import SCENARIOS, quick
from benchmarks.session import Result, Results
from benchmarks.snapshot import Snapshot, others
from benchmarks.spread import quantile, spread
from benchmarks.tree import Usage
from benchmarks.watchdog import Limits, StuckError, Watchdog
from benchmarks.workload import Workload, shaped

FIGURES = Figures(
    contender="queueworker",
    workload="null",
    messages=1000,
    seconds=1.0,
    per_second=50_000.0,
    client_cpu=15.0,
    server_cpu=10.0,
    requests=0.06,
    commands=2.0,
    bytes_in=200.0,
    bytes_out=200.0,
    retries=0,
    processes=2,
    memory_early=40_000_000,
    memory_peak=41_000_000,
    memory_last=41_000_000,
    server_memory=5_000_000,
    age_p50=0.5,
    age_p99=2.0,
    published_per_second=120_000.0,
    others=0.01,
)


def of(scenario: str, peer: str, turn: int, workload: Workload = Workload(), **changed: Any) -> Result:  # noqa: B008
    changed.setdefault("contender", peer)
    return Result(scenario, peer, turn, workload, replace(FIGURES, **changed))


def verdicts(*runs: Result) -> dict[str, Verdict]:
    return {bar.text: bar.verdict for bar in bars(Results(list(runs)), [s.name for s in SCENARIOS])}


# -- arithmetic --------------------------------------------------------------------------------------


def test_a_spread_is_the_median_between_the_lowest_and_the_highest() -> None:
    found = spread([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.low, found.high) == (2.5, 1.0, 10.0)
    with pytest.raises(ValueError, match="no run"):
        spread([])


@pytest.mark.parametrize(("part", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_a_quantile_is_the_nearest_rank(part: float, expected: float) -> None:
    assert quantile([float(n) for n in range(100, 0, -1)], part) == expected


def test_a_quantile_between_two_ranks_is_the_upper_one() -> None:
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.99) == 2.0


def test_a_shape_is_processes_coroutines_and_prefetch() -> None:
    workload = shaped("2p x 4c x 100f")
    assert (workload.processes, workload.coroutines, workload.prefetch) == (2, 4, 100)
    assert workload.shape == "2p x 4c x 100f"
    with pytest.raises(ValueError, match="2p x 4c"):
        shaped("2 x 4 x 100")


def test_a_workload_says_what_is_unusual_about_it() -> None:
    assert Workload().name == "1p x 1c x 100f, null, 100 B"
    unusual = Workload(kind="io", size=1000, rate=50.0, appendonly=True, history=10_000, hooks=True)
    for word in ("io", "1,000 B", "50/s", "everysec", "10,000 in processing", "hooks"):
        assert word in unusual.name
    with pytest.raises(ValueError, match="handler 'sleepy'"):
        Workload(kind="sleepy")


@pytest.mark.parametrize("size", [100, 1_000, 100_000])
def test_a_payload_has_the_size_that_was_asked_for(size: int) -> None:
    made = payload(size)
    assert len(json.dumps(made, separators=(",", ":"))) == size
    assert 0 < sent_of(made) < sent_of(payload(size))


def test_what_others_take_is_busy_time_that_is_not_ours() -> None:
    before = Snapshot(Usage(1.0, 0, 1), 1.0, 0, 0, 0, 0, 0, 0.5, 100.0, 200.0)
    after = Snapshot(Usage(2.0, 0, 1), 1.5, 0, 0, 0, 0, 0, 0.6, 103.6, 204.0)
    assert others(before, after) == pytest.approx((3.6 - 1.0 - 0.5 - 0.1) / 4.0)


# -- what a worker writes down -----------------------------------------------------------------------


def test_the_harness_reads_what_workers_write_down(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.starts().count == 0
    started = recorder({"BENCH_RECORDS": str(tmp_path), "BENCH_EVERY": "2"})
    assert records.starts().count == 0, "a worker that has started nothing does not count"
    for _ in range(5):
        started(sent_of(payload(100)))
    # Of another process, by hand: 3 starts, earlier ones, no ages.
    (tmp_path / "1.rec").write_bytes(b"".join(n.to_bytes(8, "little") for n in (3, 1, 2, 0)))
    found = records.starts()
    assert (found.count, found.first) == (8, 1)
    assert found.last > 2
    assert len(records.ages()) == 3, "one start of two: the first, third and fifth"
    assert all(0 <= age < 60 for age in records.ages())


# -- the watchdog ------------------------------------------------------------------------------------


def test_the_watchdog_ends_a_run_without_progress_and_says_what_it_saw(tmp_path: Path) -> None:
    now = [0.0]
    (tmp_path / "worker.log").write_text("first\nno such broker\n")
    watch = Watchdog(Limits(stall=10.0, total=1000.0), "ours, null", tmp_path, lambda: now[0])
    for second, count in ((9.0, 1), (18.0, 2), (27.0, 2)):
        now[0] = second
        watch.look("consuming", count)
    now[0] = 29.0
    with pytest.raises(
        StuckError, match=r"ours, null: no progress for 10 s while consuming, at 2 .*such broker"
    ):
        watch.look("consuming", 2)


def test_the_watchdog_ends_a_run_that_gets_on_too_slowly(tmp_path: Path) -> None:
    now = [0.0]
    watch = Watchdog(Limits(stall=10.0, total=25.0), "ours, null", tmp_path, lambda: now[0])
    for count in (1, 2, 3):
        now[0] = count * 8.0
        watch.look("consuming", count)
    now[0] = 26.0
    with pytest.raises(StuckError, match="not done after 25 s, consuming, at 4 messages"):
        watch.look("consuming", 4)


# -- the bars ----------------------------------------------------------------------------------------


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine was twice as slow in the second round, for both."""
    runs = [
        of("headline", "queueworker", 0, per_second=60_000.0),
        of("headline", "dramatiq", 0, per_second=10_000.0),
        of("headline", "queueworker", 1, per_second=30_000.0),
        of("headline", "dramatiq", 1, per_second=5_000.0),
    ]
    found = bars(Results(runs), ["headline"])[0]
    assert found.value is not None
    assert (found.value.low, found.value.median, found.value.high) == (6.0, 6.0, 6.0)
    assert found.verdict is Verdict.PASS


def test_a_peer_counts_with_its_best_settings() -> None:
    text = "throughput, to BullMQ's best"
    ours = of("headline", "queueworker", 0, per_second=40_000.0)
    slow = of("headline", "bullmq", 0, contender="bullmq slow", per_second=10_000.0)
    fast = of("headline", "bullmq", 0, contender="bullmq fast", per_second=39_000.0)
    assert verdicts(ours, slow)[text] is Verdict.PASS
    assert verdicts(ours, slow, fast)[text] is Verdict.FAIL


def test_what_was_not_measured_does_not_pass() -> None:
    assert set(verdicts().values()) == {Verdict.UNKNOWN}
    alone = verdicts(of("headline", "queueworker", 0))
    assert alone["requests a message"] is Verdict.PASS
    assert alone["client CPU a message, to dramatiq's"] is Verdict.UNKNOWN


def test_bars_of_other_scenarios_are_not_judged() -> None:
    assert {bar.scenario for bar in bars(Results(), ["sparse", "memory"])} == {"sparse", "memory"}


@pytest.mark.parametrize(("faster", "verdict"), [(3.6, Verdict.PASS), (2.9, Verdict.FAIL)])
def test_the_bars_of_nats_are_its_own(faster: float, verdict: Verdict) -> None:
    runs = [
        of("headline", "queueworker", 0, per_second=10_000.0 * faster),
        of("headline", "taskiq-nats", 0, per_second=10_000.0),
        of("headline", "faststream", 0, per_second=10_000.0),
        of("sparse", "queueworker", 0, age_p50=1.0, age_p99=5.5),
    ]
    names = [scenario.name for scenario in NATS_SCENARIOS]
    found = {bar.text: bar.verdict for bar in bars(Results(runs), names, nats_bars)}
    assert found["throughput, to taskiq-nats's best"] is verdict
    assert found["throughput, to FastStream's best"] is verdict
    assert found["publish to handler start, p50 ms"] is Verdict.PASS
    assert found["publish to handler start, p99 ms"] is Verdict.FAIL
    assert found["100 acknowledgements confirmed, p50 ms"] is Verdict.UNKNOWN


def test_every_peer_has_a_lock_file() -> None:
    for peer in {one.peer for one in (*all_peers(), *nats_peers())} - {"bullmq"}:
        lock = (environments.HERE / f"{peer}.txt").read_text()
        assert f"{peer}==" in lock


@pytest.mark.parametrize(("growth", "verdict"), [(1_000_000, Verdict.PASS), (9_000_000, Verdict.FAIL)])
def test_memory_that_grows_fails(growth: int, verdict: Verdict) -> None:
    run = of("memory", "queueworker", 0, memory_last=FIGURES.memory_early + growth)
    assert verdicts(run)["growth of memory from 100,000 to 1,000,000 messages, MB"] is verdict


def test_a_quick_session_is_a_twentieth() -> None:
    for scenario in map(quick, SCENARIOS):
        assert scenario.repeat == 1
        assert all(workload.messages <= 50_000 for workload in scenario.workloads)


# -- what people and programs read -------------------------------------------------------------------


def test_the_tables_hold_machine_bars_runs_and_faults() -> None:
    runs = [of("headline", "queueworker", turn, per_second=rate) for turn, rate in enumerate((1e4, 3e4, 2e4))]
    results = Results(runs, faults=["saq is not measured: no network"])
    judged = bars(results, ["headline"])
    text = report.markdown({"cpu": "an abacus"}, SCENARIOS[:1], results, judged)
    assert "- cpu: an abacus" in text
    assert "| queueworker | null | 20,000 (10,000..30,000) | 15.0 |" in text
    assert "| requests a message | <= 0.1 | 0.06 | 0.06..0.06 | pass |" in text
    assert "| throughput, to dramatiq's best | >= 5 | | | not measured |" in text
    assert "- Not measured: saq is not measured: no network" in text
    told = json.loads(report.as_json({"cpu": "an abacus"}, results, judged))
    assert [run["figures"]["per_second"] for run in told["runs"]] == [1e4, 3e4, 2e4]
    assert told["runs"][0]["workload"]["prefetch"] == 100
    assert {bar["verdict"] for bar in told["bars"]} == {"pass", "not measured"}


@pytest.mark.parametrize(("share", "said"), [(0.02, False), (0.4, True)])
def test_figures_of_a_busy_machine_say_so(share: float, said: bool) -> None:
    results = Results([of("headline", "queueworker", 0, others=share)])
    assert ("busy machine" in report.markdown({}, SCENARIOS[:1], results, [])) is said


def test_the_machine_is_told_with_the_versions_that_matter() -> None:
    told = report.machine([])
    assert "cores" in told["cpu"]
    assert "kernel" in told["system"]
    assert told["redis-server"][0].isdigit()
    assert "redis " in told["queueworker's packages"]
    assert report.machine([], "nats-server")["nats-server"][0].isdigit()


def test_a_profile_names_parts_and_functions_without_the_machines_paths() -> None:
    root = Path(report.__file__).resolve().parents[1]
    profile = read(
        [
            "main (benchmarks/x.py);handle (worker_runtime/worker.py) 3",
            f"main (worker_runtime/process.py);send ({root}/worker_runtime/brokers/redis/wire.py:12) 5",
            "main (worker_runtime/process.py);pack (/x/python3.11/site-packages/redis/connection.py) 2",
            "nonsense",
        ]
    )
    assert profile.samples == 10
    assert profile.functions["`send` in worker_runtime/brokers/redis/wire.py"] == 5
    assert profile.parts == {
        "our worker code (without brokers/)": 3,
        "our broker code (brokers/)": 5,
        "redis-py": 2,
    }


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["redis", "--plot", str(tmp_path / "plot.svg")]) == 2
    assert "scripts/environment.sh bench" in capsys.readouterr().err


def test_a_peer_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["redis", "--peers", "rabbit"])
    assert ended.value.code == 2
    assert "'bullmq', 'dramatiq', 'saq', 'taskiq'" in capsys.readouterr().err


def test_a_quick_run_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["redis", "--quick", "--check"]) == 2
    assert "leave out --quick" in capsys.readouterr().err


def test_the_lock_files_of_the_peers_name_no_host() -> None:
    files = [*environments.HERE.glob("*.txt"), environments.HERE / "bullmq" / "package-lock.json"]
    assert len(files) == 6
    for file in files:
        text = file.read_text()
        assert '"resolved"' not in text
        assert "--index-url" not in text
        assert "==" in text or '"version"' in text


# -- the operator ------------------------------------------------------------------------------------

OPERATOR = OperatorFigures(
    resources=1000,
    workers=0,
    created=90.0,
    restarted=8.0,
    resync=6.0,
    cpu_per_pass=0.004,
    memory_peak=180 * 2**20,
    idle_seconds=60.0,
    idle_cpu=0.2,
    idle_passes=4000,
    idle_reads=40,
    idle_writes=0,
    answer_before=0.2,
    answer_before_worst=0.5,
    answer_beside=0.2,
    answer_beside_worst=0.6,
    load=1.0,
)


def test_requests_are_counted_by_what_they_do_and_only_those_of_the_operator() -> None:
    text = """# HELP apiserver_request_total Counter of apiserver requests.
apiserver_request_total{code="200",dry_run="",resource="queueworkers",verb="LIST"} 7
apiserver_request_total{code="200",dry_run="",resource="secrets",verb="GET"} 2
apiserver_request_total{code="200",dry_run="",resource="queueworkers",verb="WATCH"} 90
apiserver_request_total{code="200",dry_run="",resource="queueworkers",subresource="status",verb="PATCH"} 5
apiserver_request_total{code="200",dry_run="All",resource="deployments",verb="APPLY"} 11
apiserver_request_total{code="201",dry_run="",resource="events",verb="POST"} 1
apiserver_request_total{code="200",dry_run="",resource="leases",verb="PUT"} 400
etcd_request_total{resource="queueworkers",verb="LIST"} 1000
"""
    found = asked(text)
    assert (found.reads, found.writes) == (9, 6)
    assert asked(text + 'apiserver_request_total{resource="events",verb="POST"} 2').since(found).writes == 2
    assert [one.value for one in samples("up 1\nload 2e+03\n")] == [1.0, 2000.0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"resync": 10.0}, ["a resync took 10.0 s"]),
        ({"memory_peak": 256 * 2**20}, ["memory reached 256 MiB"]),
        ({"idle_writes": 1}, ["1 writes while nothing changed"]),
        ({"answer_beside_worst": 1.6}, ["answered after 1.60 s beside a silent broker and after 0.50 s"]),
    ],
)
def test_what_many_resources_may_cost(changed: dict[str, float], words: list[str]) -> None:
    missed = replace(OPERATOR, **changed).missed()  # type: ignore[arg-type]
    assert len(missed) == len(words)
    assert all(word in text for word, text in zip(words, missed, strict=True))
    text = operator_markdown({"cpu": "a fast one"}, replace(OPERATOR, **changed), missed)  # type: ignore[arg-type]
    assert "- cpu: a fast one" in text
    assert "| peak memory" in text
    assert text.count("MISSED") == len(words)


def test_fewer_resources_than_brokers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "--resources", "3"]) == 2
    assert "give at least 10" in capsys.readouterr().err
