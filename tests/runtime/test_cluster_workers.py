"""`queueworker run` on a Redis Cluster that loses primaries and moves slots: it goes on by itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.replicated_cluster import ReplicatedCluster
from tests.runtime.conftest import Bench
from tests.runtime.running import EXPIRES_SOON, queueworker, wait_until

#: Seconds within which a worker consumes again when the broker does: ten, and twenty for a busy machine.
BACK = 30.0

NOTES = """
    import asyncio
    import pathlib
    from worker_runtime import App, Message
    app = App.from_env()

    def note(name: str, number: int) -> None:
        with open(name, "a") as file:
            file.write(f"{number}\\n")

    @app.job("q", coroutines=4, prefetch=20)
    async def noting(payload: dict) -> None:
        note("began", payload["n"])
        await asyncio.sleep(payload["sleep"])
        while payload["sleep"] and not pathlib.Path("go").exists():
            await asyncio.sleep(0.02)
        note("ran", payload["n"])
"""


@pytest.fixture
def bench(six: ReplicatedCluster, make_bench: Callable[..., Bench]) -> Bench:
    made = make_bench(six.nodes[0].url)
    made.url, made.namespace = six.url, f"{{{made.namespace}}}"
    return made


def publish(bench: Bench, first: int, count: int, sleep: float = 0.0) -> None:
    bench.publish("q", *[f'{{"n": {n}, "sleep": {sleep}}}' for n in range(first, first + count)])


def kill_primary(six: ReplicatedCluster, key: str) -> None:
    primary, replica = six.primary(key), six.replica(key)
    primary.kill()
    six.promote(replica, key, "TAKEOVER")


def reset_connections(six: ReplicatedCluster, _: str) -> None:
    for node in six.nodes:
        six.ask(node, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.mark.parametrize(
    "lose", [ReplicatedCluster.fail_over, kill_primary, reset_connections], ids=lambda one: one.__name__
)
def test_what_is_published_after_a_loss_runs_soon(
    lose: Callable[[ReplicatedCluster, str], object], six: ReplicatedCluster, bench: Bench
) -> None:
    """Three times in a row, while the worker waits, without a restart and with two lines each."""
    worker = bench.run(NOTES).consuming()
    began = [process["pid"] for process in worker.status()["processes"]]
    for number in range(3):
        lose(six, bench.key("queue"))
        time.sleep(1)  # The promise is about a message that comes one second later.
        publish(bench, number, 1)

        def written(number: int = number) -> bool:
            return str(number) in worker.wrote()

        wait_until(written, f"message {number}", BACK)
        six.repair()
    assert [process["pid"] for process in worker.status()["processes"]] == began
    assert worker.stop() == 0
    lost, back = worker.said("broker lost"), worker.said("broker back")
    assert (len(lost), len(back)) <= (3, 3), worker.transcript()
    assert len(lost) == len(back)
    assert not worker.said("not expected"), "each of these faults is known by its name"
    assert bench.reading().private == 0


@pytest.mark.parametrize("how", ["killed", "stopped and resumed"])
def test_a_primary_lost_under_load_loses_no_message(how: str, six: ReplicatedCluster, bench: Bench) -> None:
    """What the replica had is all there: each message runs, and in the books of the new primary each counts
    once. Some run twice."""
    key = bench.key("queue")
    (bench.directory / "go").touch()
    workers = [bench.run(NOTES, *EXPIRES_SOON) for _ in range(2)]
    publish(bench, 0, 600, sleep=0.02)
    six.replicated(key)
    wait_until(lambda: len(workers[0].wrote()) > 100, "a good deal of the work")
    replica = six.replica(key)
    if how == "killed":
        kill_primary(six, key)
    else:
        with six.stopped(key):
            six.wait_for_promotion(replica, key)
    publish(bench, 600, 1)
    wait_until(lambda: set(map(int, workers[0].wrote())) == set(range(601)), "every message")
    wait_until(lambda: bench.reading().ready + bench.reading().private == 0, "empty places")
    reading = bench.reading()
    assert reading.server == f"127.0.0.1:{replica.port}"
    assert (reading.ready, reading.success, reading.failed, reading.dead) == (0, 601, 0, 0)
    row = reading.ledger["local"]
    assert row.claimed == row.committed + row.released + row.taken_over + row.rejected
    assert [worker.stop() for worker in workers] == [0, 0]


def test_handlers_in_work_commit_after_a_failover(six: ReplicatedCluster, bench: Bench) -> None:
    """Asked for by hand, a failover loses nothing: each runs once and commits once."""
    worker = bench.run(NOTES)
    publish(bench, 0, 8, sleep=0.01)
    wait_until(lambda: len(worker.wrote("began")) == 4, "four handlers in work")
    six.fail_over(bench.key("queue"))
    (bench.directory / "go").touch()
    worker.wait_for_counts(committed=8, superseded=0, unknown=0, missing=0)
    assert Counter(worker.wrote()) == Counter(map(str, range(8)))
    assert worker.stop() == 0
    assert (bench.reading().success, bench.reading().private) == (8, 0)


def test_a_slot_moved_there_and_back_under_load(six: ReplicatedCluster, bench: Bench) -> None:
    (bench.directory / "go").touch()
    worker = bench.run(NOTES).consuming()
    publish(bench, 0, 600, sleep=0.02)
    for _ in range(2):
        already = len(worker.wrote())

        def works(already: int = already) -> bool:
            return len(worker.wrote()) > already + 50

        wait_until(works, "work before the move")
        move = six.open_move(bench.key("queue"))
        while keys := move.keys()[:40]:
            move.take(*keys)
        move.finish()
        publish(bench, len(set(worker.wrote())) + 10_000, 1)
    wait_until(lambda: bench.reading().success == 602, "every commit")
    assert len(worker.wrote()) == len(set(worker.wrote())) == 602, "each ran once"
    assert worker.stop() == 0
    counts = bench.reading()
    assert (counts.private, counts.ledger["local"].committed) == (0, 602)


def test_the_queue_is_verified_empty_on_the_new_primary(six: ReplicatedCluster, bench: Bench) -> None:
    replica = six.replica(bench.key("queue"))
    url = f"redis+cluster://127.0.0.1:{replica.port}"
    verify = ("verify-empty", "q", "--broker-url", url)
    assert queueworker(*verify, env=bench.env).returncode == 0
    six.fail_over(bench.key("queue"), "TAKEOVER")
    worker = bench.run(NOTES)
    publish(bench, 0, 1, sleep=0.01)
    wait_until(lambda: worker.wrote("began"), "work")
    assert queueworker(*verify, env=bench.env).returncode == 6
    (bench.directory / "go").touch()
    wait_until(lambda: bench.reading().success == 1, "the commit")
    ran = queueworker(*verify, "--json", env=bench.env)
    assert ran.returncode == 0, ran.stderr
    assert f'"server": "127.0.0.1:{replica.port}"' in ran.stdout
