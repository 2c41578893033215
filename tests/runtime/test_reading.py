"""inspect --watch, verify-empty and explain as commands."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import redis

from tests.runtime.conftest import Bench
from tests.runtime.running import PATIENCE, queueworker, wait_until
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import WorkerReading
from worker_runtime.brokers.redis import transitions
from worker_runtime.brokers.redis.keys import QueueKeys
from worker_runtime.brokers.redis.scripts import Call

PAGE = Path(__file__).parents[2] / "docs" / "inspect.md"


@pytest.fixture(scope="module")
def replica(server: EmbeddedRedis) -> Iterator[EmbeddedRedis]:
    primary = server.url.rsplit(":", 1)[1]
    with redis.Redis.from_url(server.url) as client:
        client.config_set("repl-diskless-sync-delay", 0)
    with EmbeddedRedis(args=("--replicaof", "127.0.0.1", primary)) as replica:
        # While it loads what the primary has, it answers nobody.
        with redis.Redis.from_url(replica.url) as client:
            in_step = ("replication", "master_link_status", "up")
            wait_until(lambda: client.info(in_step[0])[in_step[1]] == in_step[2], "a replica in step")
        yield replica


def run(bench: Bench, call: Call) -> list[str]:
    reply: list[str] = bench.client.execute_command(*call.by_source())
    return reply


def own(bench: Bench, pids: list[str], worker: str = "w", expiry: float = 600) -> None:
    """As a worker that received these, the next ones of the queue."""
    keys = QueueKeys(bench.namespace, "q")
    taken = run(bench, transitions.reserve(keys, f"{worker}.1", "r1", len(pids), 600))
    token = f"r1 {worker} {worker}.1"
    call = transitions.claim(keys, f"{worker}.1", taken[1].encode(), token, "r1", expiry, pids)
    assert run(bench, call) == ["claimed"]


def explain(bench: Bench, pid: str, *flags: str, code: int = 0) -> dict[str, object]:
    done = queueworker("explain", "q", pid, "--json", *flags, env=bench.env)
    assert done.returncode == code, done.stdout + done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_page_names_every_field_and_no_other(bench: Bench) -> None:
    reading = json.loads(queueworker("inspect", "q", "--json", env=bench.env).stdout)
    page = PAGE.read_text()
    first, second = page.split("| field of a worker |")
    rows = [line for line in first.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == set(reading)
    rows = [line for line in second.split("## ")[0].splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {field.name for field in fields(WorkerReading)}


def test_people_read_where_everything_is(bench: Bench) -> None:
    pids = bench.publish("q", *(f'{{"n": {n}}}' for n in range(4)))
    own(bench, pids[:2])
    keys = QueueKeys(bench.namespace, "q")
    run(bench, transitions.reserve(keys, "x.1", "r1", 1, 600))
    run(
        bench,
        transitions.beat(keys, "alive", 60, b'{"revision":"r2","receiving":false,"reason":"fenced: no"}'),
    )
    bench.client.hset(keys.fence, "r2", "no")
    bench.client.zadd(keys.delayed, {"{}": 1})
    shown = queueworker("inspect", "q", env=bench.env).stdout
    for part in (
        r"ready +1 ",
        r"reserved +1 ",
        r"owned +2 ",
        r"delayed +1 .*the next is due",
        r"x\.1  1 messages, [\d.]+ s left",
        r"alive +r2 +0 +0 +\d+ s +no: fenced: no",
        r"not alive[^\n]*\n  w  2",
        r"Fences\n  r2  no",
        r"r1 +2 +0 +0 +0 +0 +0",
    ):
        assert re.search(part, shown), (part, shown)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_watching_goes_on_through_an_outage_until_it_is_interrupted(
    flags: tuple[str, ...], bench: Bench
) -> None:
    with EmbeddedRedis() as server:
        env = bench.env | {"QUEUEWORKER_BROKER_URL": server.url}
        process = subprocess.Popen(
            [sys.executable, "-m", "worker_runtime.cli.main", "inspect", "q", "--watch", "0.05", *flags],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        readings = _readings(process.stdout, bool(flags))
        try:
            assert [next(readings), next(readings)] == [0, 0]
            server.kill()
            assert "cannot" in process.stderr.readline()
            server.restart()
            server_url = env | {"QUEUEWORKER_BROKER_URL": server.url}
            assert queueworker("publish", "q", "{}", env=server_url).returncode == 0
            assert any(count == 1 for count in readings)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _readings(lines: Iterator[str], as_json: bool) -> Iterator[int]:
    """How many were ready, reading by reading."""
    for line in lines:
        if as_json:
            yield int(json.loads(line)["ready"])
        elif line.startswith("  ready"):
            yield int(line.split()[1])


def test_an_empty_queue_is_proven_and_what_others_can_read_does_not_count(bench: Bench) -> None:
    bench.publish("q", "1", "2")
    bench.client.lpush(bench.key("failed"), "x")
    done = queueworker("verify-empty", "q", env=bench.env)
    assert (done.returncode, "2 ready" in done.stdout) == (0, True)
    told = json.loads(queueworker("verify-empty", "q", "--json", env=bench.env).stdout)
    assert (told["empty"], told["why"], told["reading"]["ready"]) == (True, "", 2)


@pytest.mark.parametrize("place", ["staging", "reserved", "owned", "delayed"])
def test_anything_private_ends_with_6_and_is_named(place: str, bench: Bench) -> None:
    keys = QueueKeys(bench.namespace, "q")
    pids = bench.publish("q", "1")
    if place == "staging":
        bench.client.lmove(keys.ready, keys.staging)
    elif place == "reserved":
        run(bench, transitions.reserve(keys, "a.1", "r1", 1, 600))
    elif place == "owned":
        own(bench, pids)
    else:
        bench.client.zadd(keys.delayed, {"{}": 1})
    # Without a quiet time and with one: anything private ends it at once.
    for flags in ((), ("--quiet-seconds", "300")):
        done = queueworker("verify-empty", "q", *flags, env=bench.env)
        assert done.returncode == 6
        assert place in done.stderr
        assert place in done.stdout


def test_a_replica_proves_nothing(bench: Bench, replica: EmbeddedRedis) -> None:
    env = bench.env | {"QUEUEWORKER_BROKER_URL": replica.url}
    done = queueworker("verify-empty", "q", env=env)
    assert done.returncode == 3
    assert "is a replica" in done.stderr
    shown = queueworker("inspect", "q", env=env)
    assert (shown.returncode, "a replica: it may lag" in shown.stdout) == (0, True)
    shown = queueworker("explain", "q", "nowhere-yet", env=env)
    assert (shown.returncode, "a replica: it may lag" in shown.stdout) == (7, True)
    assert "ask the primary" in shown.stdout


@pytest.mark.parametrize("command", [("recover", "q"), ("retry", "q"), ("park", "q", "--older-than", "1")])
def test_a_replica_moves_nothing_and_says_so(
    bench: Bench, replica: EmbeddedRedis, command: tuple[str, ...]
) -> None:
    """What it lacks may be on the primary: "0 moved" would not be the truth."""
    done = queueworker(*command, env=bench.env | {"QUEUEWORKER_BROKER_URL": replica.url})
    assert (done.returncode, done.stdout) == (3, "")
    assert "is a replica" in done.stderr
    assert "point the URL at the primary" in done.stderr


def test_a_server_that_does_not_tell_its_role_proves_nothing(bench: Bench) -> None:
    bench.client.execute_command("ACL", "SETUSER", "shy", "reset", "on", ">pw", "+@all", "-role", "~*")
    env = bench.env | {"QUEUEWORKER_BROKER_URL": bench.url.replace("//", "//shy:pw@")}
    reading = queueworker("inspect", "q", "--json", env=env)
    assert (reading.returncode, json.loads(reading.stdout)["role"]) == (0, "unknown")
    done = queueworker("verify-empty", "q", env=env)
    assert (done.returncode, "+role" in done.stderr) == (3, True)


def test_explain_a_ready_message(bench: Bench) -> None:
    pids = bench.publish("q", *(f'{{"n": {n}}}' for n in range(5)))
    answer = explain(bench, pids[3])
    assert (answer["place"], answer["position"], answer["attempts"]) == ("ready", 3, 0)
    assert "no live worker" in str(answer["why"])
    assert "queueworker run" in str(answer["way_out"])
    shown = queueworker("explain", "q", pids[3], env=bench.env).stdout
    assert "3 messages before it" in shown
    # Behind the part that is searched.
    bench.client.lpush(bench.key("queue"), *["{}"] * 600)
    bench.client.lmove(bench.key("queue"), bench.key("queue"), "RIGHT", "LEFT")
    assert explain(bench, pids[0], "--scan", "500", code=7)["complete"] is False
    assert explain(bench, pids[0])["place"] == "ready"


def test_explain_names_the_fence_or_the_full_workers(bench: Bench) -> None:
    keys = QueueKeys(bench.namespace, "q")
    pids = bench.publish("q", "1", "2")
    bench.client.lmove(keys.ready, keys.staging, "RIGHT", "LEFT")
    record = b'{"revision":"r1","receiving":%b,"prefetch":1,"reason":"fenced: old"}'
    run(bench, transitions.beat(keys, "w", 60, record % b"false"))
    bench.client.hset(keys.fence, "r1", "old")
    answer = explain(bench, pids[0])
    assert (answer["place"], answer["position"]) == ("staging", 0)
    assert "r1 is fenced (old)" in str(answer["why"])
    assert "queueworker unfence q --revision r1" in str(answer["way_out"])
    bench.client.hset(keys.fence, mapping={"*": "maintenance", "of-nobody": "x"})
    way_out = str(explain(bench, pids[0])["way_out"])
    assert "unfence q and queueworker unfence q --revision r1" in way_out, "one of the two is not enough"
    assert "of-nobody" not in way_out
    bench.client.delete(keys.fence)
    own(bench, pids[:1])
    run(bench, transitions.beat(keys, "w", 60, record % b"true"))
    answer = explain(bench, pids[1])
    assert "prefetch" in str(answer["why"])


def test_explain_owned_reserved_and_what_is_overdue(bench: Bench) -> None:
    keys = QueueKeys(bench.namespace, "q")
    pids = bench.publish("q", "1", "2", "3", "4")
    own(bench, pids[:1])
    run(bench, transitions.beat(keys, "w", 60, b'{"revision":"r1","receiving":true,"coroutines":1}'))
    answer = explain(bench, pids[0])
    assert (answer["place"], answer["worker"], answer["revision"]) == ("owned", "w", "r1")
    assert 0 < float(str(answer["expires_in"])) <= 600
    assert "the worker lives" in str(answer["why"])
    own(bench, pids[1:2], "dead", expiry=0)
    bench.client.hset(keys.takeovers, pids[1], 3)
    answer = explain(bench, pids[1])
    assert (answer["takeovers"], explain(bench, pids[0])["takeovers"]) == (3, 0)
    assert "Takeovers  3" in queueworker("explain", "q", pids[1], env=bench.env).stdout
    assert "expired" in str(answer["why"])
    assert "1 live workers look for such work" in str(answer["way_out"])
    run(bench, transitions.reserve(keys, "dead.7", "r1", 1, 600))
    answer = explain(bench, pids[2])
    assert (answer["place"], answer["reservation"]) == ("reserved", "dead.7")
    run(bench, transitions.reserve(keys, "dead.8", "r1", 1, 0))
    wait_until(lambda: "deadline passed" in str(explain(bench, pids[3])["why"]), "the deadline")


def test_explain_the_other_places(bench: Bench) -> None:
    keys, client = QueueKeys(bench.namespace, "q"), bench.client
    text = '{"pid":"%s","queue":"q","timestamp":1700000000,"payload":{},"attempts":2}'
    client.zadd(keys.delayed, {text % "later": 9e15, text % "due": 1})
    client.set(keys.job("old"), text % "old")
    client.lpush(keys.processing, "old")
    client.set(keys.job("bad"), text % "bad")
    client.lpush(keys.failed, "bad", "gone")
    client.set(keys.reason("bad"), '{"at":1,"why":"handler","detail":"ValueError: no such user"}')
    client.lpush(keys.dead, "given-up", "kept")
    client.set(keys.job("kept"), text % "kept")
    client.lpush(keys.poison, '{"at":1,"reason":"timestamp","detail":"is missing"}\n{"pid":"sick"}')
    client.lpush(keys.ready, "junk")
    expected = {
        "later": ("delayed", "time has not come"),
        "due": ("delayed", "nobody has put it back"),
        "old": ("without-token", "old enough to be recovered"),
        "bad": ("failed", "rejected"),
        "gone": ("failed", "record is gone"),
        "given-up": ("dead", "given up"),
        "sick": ("poison", "could not be decoded"),
    }
    for pid, (place, why) in expected.items():
        answer = explain(bench, pid)
        assert answer["place"] == place
        assert why in str(answer["why"]), answer
    assert explain(bench, "bad")["attempts"] == 2
    assert explain(bench, "bad")["reason"] == "handler: ValueError: no such user"
    assert explain(bench, "later")["published_ago"] is None
    assert "timestamp: is missing" in str(explain(bench, "sick")["reason"])
    assert explain(bench, "kept")["way_out"] == "remove the cause, then queueworker retry q --dead"
    assert explain(bench, "given-up")["way_out"] == "publish it again"
    assert explain(bench, "sic", code=7)["place"] == "nowhere", "a part of the id of something else"
    answer = explain(bench, "never", code=7)
    assert (answer["place"], answer["complete"]) == ("nowhere", True)


@pytest.mark.parametrize("option", ["--watch", "--retained"])
def test_a_queue_behind_an_option_that_takes_a_number_is_told_where_to_go(option: str) -> None:
    done = queueworker("inspect", option, "orders", env={})
    assert done.returncode == 2
    assert f"If 'orders' is the queue, name it before {option}." in done.stderr
