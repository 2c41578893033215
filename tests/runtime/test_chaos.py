"""`queueworker chaos`, whole and small, and its judge on records that are wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.replicated_cluster import ReplicatedCluster
from tests.runtime.running import PATIENCE, wait_until
from tests.services import EmbeddedRedis, RedisCluster
from worker_runtime.brokers.base import LedgerRow, QueueReading
from worker_runtime.chaos.record import Record, read_account
from worker_runtime.chaos.verdict import Published, judge

_LONG = PATIENCE * 3


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "worker_runtime.cli.main", "chaos", *arguments]


def _group_alive(leader: int) -> bool:
    """Whether a process of the group is left. Those that were killed are gone when their new parent has
    looked at them, which may take a moment."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def _chaos(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"TMPDIR": str(tmp_path)}
    return subprocess.run(_command(*arguments), env=env, capture_output=True, text=True, timeout=_LONG)


def test_kills_lose_nothing_and_the_namespace_is_gone_afterwards(tmp_path: Path) -> None:
    with EmbeddedRedis() as server, redis.Redis(port=server.port) as client:
        client.set("somebody", "else's")
        ran = _chaos(tmp_path, "--broker", server.url, "--kills", "60", "--seed", "7", "--json")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        result = json.loads(ran.stdout)
        assert client.keys("*") == [b"somebody"]
    assert result["kills"] >= 60
    assert (result["seed"], result["lost"], result["committed_twice"], result["faults"]) == (7, 0, 0, [])
    assert result["published"] == result["handled"] > 0
    assert 0 < result["caught_with_work"] <= result["kills"]
    assert result["outcomes"]["committed"] > 0
    assert not list(tmp_path.iterdir()), "the record of a run without a fault is removed"


def test_on_a_cluster_that_replaces_primaries_meanwhile(six: ReplicatedCluster, tmp_path: Path) -> None:
    """A failover that was asked for loses nothing, so the verdict has to be as good as without one."""
    namespace = "{chaos-moves}"
    key = f"{namespace}.stats.chaos.success"
    before = six.primary(key)
    options = ("--namespace", namespace, "--minutes", "60", "--workers", "4", "--server-faults", "--json")

    def committed() -> int:
        """On whichever primary has its turn: the next failover may come at any moment."""
        try:
            return int(six.ask(six.primary(key), "GET", key) or 0)
        except redis.RedisError:
            return 0

    process = subprocess.Popen(
        _command("--broker", six.url, *options),
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: six.primary(key) is not before, "a failover")
        done = wait_until(committed, "a count on the new primary")
        wait_until(lambda: committed() > done + 50, "commits on the new primary")
        process.send_signal(signal.SIGINT)
        result = json.loads(process.communicate(timeout=_LONG)[0])
    finally:
        process.kill()
        for node in (before, six.primary(key)):
            six.elected(node)
    assert (process.returncode, result["lost"], result["committed_twice"], result["faults"]) == (0, 0, 0, [])
    assert result["failovers"] >= 1
    assert result["kills"] > 0
    assert six.ask(six.primary(key), "EXISTS", key) == 0, "the namespace is gone"


@pytest.mark.parametrize("kind", ["alone", "without replicas"])
def test_server_faults_are_refused_where_they_would_lose_work(kind: str, tmp_path: Path) -> None:
    with EmbeddedRedis() if kind == "alone" else RedisCluster(1) as broker:
        ran = _chaos(tmp_path, "--broker", broker.url, "--kills", "1", "--server-faults")
        assert ran.returncode == 3
        assert "leave --server-faults out" in ran.stderr


def test_ctrl_c_ends_the_harm_and_still_judges(tmp_path: Path) -> None:
    with EmbeddedRedis() as server, redis.Redis(port=server.port) as client:
        process = subprocess.Popen(
            _command("--broker", server.url, "--minutes", "60", "--json"),
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until(lambda: client.keys("*.stats.chaos.success"), "a first commit")
            process.send_signal(signal.SIGINT)
            result = json.loads(process.communicate(timeout=_LONG)[0])
        finally:
            process.kill()
        assert (process.returncode, result["faults"], client.keys("*")) == (0, [], [])


def test_a_message_that_somebody_steals_is_reported_as_lost(tmp_path: Path) -> None:
    with EmbeddedRedis() as server, redis.Redis(port=server.port) as client:
        process = subprocess.Popen(
            _command("--broker", server.url, "--minutes", "60", "--workers", "2"),
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            # The producer's end: nobody has it in work.
            taken = wait_until(
                lambda: next((client.lpop(key) for key in client.keys("*.queue.chaos")), None), "a message"
            )
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=_LONG)
        finally:
            process.kill()
        assert client.keys("*") == []
    assert process.returncode == 1
    stolen = json.loads(taken)
    assert "1 messages were lost" in out, err
    assert f"{stolen['pid']} (number {stolen['payload']['n']}): nowhere" in out
    assert "record and the workers' log are kept in" in err


def test_a_broker_that_dies_ends_with_3_and_leaves_no_process(tmp_path: Path) -> None:
    with EmbeddedRedis() as server, redis.Redis(port=server.port) as client:
        process = subprocess.Popen(
            _command("--broker", server.url, "--minutes", "60"),
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            wait_until(lambda: client.keys("*.stats.chaos.success"), "a first commit")
            server.kill()
            _, err = process.communicate(timeout=_LONG)
            wait_until(lambda: not _group_alive(process.pid), "the end of every process of the group")
        finally:
            process.kill()
    assert process.returncode == 3
    assert "Traceback" not in err
    assert f"kept in {tmp_path}" in err


def test_a_namespace_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    with EmbeddedRedis() as server, redis.Redis(port=server.port) as client:
        client.lpush("mine.queue.q", "x")
        ran = _chaos(tmp_path, "--broker", server.url, "--kills", "1", "--namespace", "mine")
        assert (ran.returncode, client.keys("*")) == (2, [b"mine.queue.q"])
    assert "mine.queue.q" in ran.stderr
    # A pattern's letters in a name are only letters.
    with EmbeddedRedis() as server, redis.Redis(port=server.port) as client:
        client.set("mxne.queue.q", "x")
        ran = _chaos(tmp_path, "--broker", server.url, "--kills", "1", "--namespace", "m?n[e]")
        assert (ran.returncode, client.keys("*")) == (0, [b"mxne.queue.q"]), ran.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--broker", "amqp://x", "--kills", "1"), 2),
        (("--broker", "redis://127.0.0.1:1", "--kills", "1"), 3),
        (("--broker", "embedded", "--kills", "0"), 2),
        (("--kills", "1"), 2),
    ],
)
def test_what_cannot_run_ends_with_its_code_and_no_traceback(
    arguments: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    ran = _chaos(tmp_path, *arguments)
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())


# -- the judge ---------------------------------------------------------------------------------------

RIGHT = QueueReading(
    queue="chaos",
    ready=0,
    oldest_ready_age=None,
    staging=0,
    reserved=0,
    owned=0,
    processing=0,
    delayed=0,
    failed=0,
    dead=0,
    poison=0,
    total=2,
    success=2,
    ledger={"chaos-a": LedgerRow(claimed=3, committed=2, taken_over=1)},
)
PUBLISHED = Published(confirmed={0: "p0", 1: "p1"}, doubtful={2})
KEYS = ["ns.stats.chaos.total", "ns.ledger.chaos"]


def _record(path: Path) -> Record:
    """Number 0 was killed in its first owner's handler; both were committed once."""
    record = Record(path)
    record.started(0, "k1")
    for number in (0, 1):
        record.started(number, "k2")
        record.finished(number, "k2")
        record.settled(number, "k2", "committed")
    return record


def _faults(path: Path, reading: QueueReading = RIGHT, keys: list[str] = KEYS) -> str:
    with path.open() as lines:
        return "; ".join(judge(read_account(lines), PUBLISHED, reading, keys).faults)


def test_no_entry_reaches_over_the_end_of_a_page_where_a_kill_could_cut_it(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    for number in range(400):
        record.started(number, f"chaos-{number}")
        record.finished(number, f"chaos-{number}")
        record.settled(number, f"chaos-{number}", "superseded")
    lines = (tmp_path / "record").read_bytes().splitlines(keepends=True)
    assert len(lines) == 1200
    at = 0
    for line in lines:
        assert at // 4096 == (at + len(line) - 1) // 4096, line
        at += len(line)


def test_a_run_without_a_fault(tmp_path: Path) -> None:
    _record(tmp_path / "record")
    with (tmp_path / "record").open() as lines:
        account = read_account(lines)
    verdict = judge(account, PUBLISHED, RIGHT, KEYS)
    assert (verdict.faults, verdict.duplicated, verdict.lost) == ([], 1, [])
    assert (account.in_hand["k1"], account.in_hand["k2"]) == (1, 0)


def test_each_kind_of_fault_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "record"
    record = _record(path)
    for place in (
        "ready",
        "staging",
        "reserved",
        "owned",
        "processing",
        "delayed",
        "failed",
        "dead",
        "poison",
    ):
        left: dict[str, Any] = {place: 1}
        assert "left" in _faults(path, dataclasses.replace(RIGHT, **left)), place
    assert "successes says 3" in _faults(path, dataclasses.replace(RIGHT, success=3))
    assert "all messages says 1" in _faults(path, dataclasses.replace(RIGHT, total=1))
    row = dataclasses.replace(RIGHT.ledger["chaos-a"], claimed=4)
    assert "claimed 4 and ended 3" in _faults(path, dataclasses.replace(RIGHT, ledger={"chaos-a": row}))
    assert "private keys are left: ns.owners.chaos" in _faults(path, keys=[*KEYS, "ns.owners.chaos"])
    assert not _faults(path)
    record.settled(1, "k3", "committed")
    assert "committed twice: 1" in _faults(path)
    record.started(9, "k3")
    assert "nobody published them: 9" in _faults(path)


def test_a_started_message_that_was_never_finished_is_lost(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.started(0, "k1")
    record.started(1, "k1")
    record.finished(1, "k1")
    assert "1 messages were lost: published and never handled to the end: 0" in _faults(tmp_path / "record")


def test_a_publish_whose_answer_was_lost_may_have_happened(tmp_path: Path) -> None:
    record = _record(tmp_path / "record")
    record.started(2, "k2")
    record.finished(2, "k2")
    reading = dataclasses.replace(
        RIGHT, total=3, success=3, ledger={"chaos-a": LedgerRow(claimed=3, committed=3)}
    )
    assert not _faults(tmp_path / "record", reading)
