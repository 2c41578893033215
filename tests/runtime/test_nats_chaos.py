"""`queueworker chaos` on NATS JetStream, whole and small, and its judge on counts that are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.brokers.nats_proxy import Fault, NatsProxy, Sent
from tests.nats_cluster import NatsCluster
from tests.runtime.running import PATIENCE, wait_until
from tests.services import EmbeddedNats
from worker_runtime.brokers.base import BrokerError, QueueReading
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.address import parse_address
from worker_runtime.brokers.nats.link import Link
from worker_runtime.chaos.record import Record, read_account
from worker_runtime.chaos.verdict import Published, Streams, judge_streams

T = TypeVar("T")
_LONG = PATIENCE * 3


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "worker_runtime.cli.main", "chaos", *arguments]


def _chaos(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"TMPDIR": str(tmp_path)}
    return subprocess.run(_command(*arguments), env=env, capture_output=True, text=True, timeout=_LONG)


def _ask(url: str, question: Callable[[Link], Awaitable[T]]) -> T:
    async def ask() -> T:
        link = Link(parse_address(url), PATIENCE, "test")
        try:
            return await question(link)
        finally:
            await link.close()

    return asyncio.run(ask())


async def _streams(link: Link) -> list[str]:
    names = (await api.call(link, "STREAM.NAMES", None, "list the streams")).get("streams")
    return sorted(names or ())


def _right(result: dict[str, Any]) -> bool:
    assert (result["lost"], result["faults"]) == (0, [])
    return bool(result["published"] == result["handled"] > 0)


def test_kills_lose_nothing_and_the_streams_are_gone_afterwards(tmp_path: Path) -> None:
    async def make_another(link: Link) -> None:
        body = {"name": "OTHER", "subjects": ["other"], "storage": "memory"}
        await api.call(link, "STREAM.CREATE.OTHER", body, "make a stream")

    with EmbeddedNats() as server:
        _ask(server.url, make_another)
        ran = _chaos(tmp_path, "--broker", server.url, "--kills", "60", "--seed", "7", "--json")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert _ask(server.url, _streams) == ["OTHER"]
    result = json.loads(ran.stdout)
    assert _right(result)
    assert result["kills"] >= 60
    assert result["committed_twice"] == 0
    assert result["outcomes"]["committed"] > 0
    assert not list(tmp_path.iterdir()), "the record of a run without a fault is removed"


def _chaos_until(
    happened: Callable[[int], bool], what: str, tmp_path: Path, *arguments: str
) -> dict[str, Any]:
    """The result of harm that ends when `happened` says so of the process with that id: not by the clock."""
    process = subprocess.Popen(
        _command("--minutes", "60", "--server-faults", "--json", *arguments),
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: happened(process.pid) or process.poll() is not None, what)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=_LONG)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    result: dict[str, Any] = json.loads(out)
    return result


def test_a_private_server_that_is_killed_meanwhile(tmp_path: Path) -> None:
    seen: set[int] = set()

    def restarted(pid: int) -> bool:
        seen.update(child for child in _children(pid) if _program(child) == "nats-server")
        return len(seen) >= 2

    result = _chaos_until(restarted, "a server that was started again", tmp_path, "--broker", "embedded-nats")
    assert _right(result)
    assert result["failovers"] >= 1


def _children(pid: int) -> list[int]:
    """Of all threads of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def test_a_cluster_whose_leaders_change_meanwhile(tmp_path: Path) -> None:
    changes: list[str] = []

    async def leader(link: Link) -> str:
        info = await api.stream_info(link, "Q_MOVES")
        return str((info or {}).get("cluster", {}).get("leader") or "")

    with NatsCluster() as cluster:

        def changed_twice(_: int) -> bool:
            """Before the second change begins, the run has seen the end of the first."""
            try:
                now = _ask(cluster.url, leader)
            except BrokerError:
                return False
            if now and changes[-1:] != [now]:
                changes.append(now)
            return len(changes) > 2

        arguments = ("--broker", cluster.url, "--namespace", "moves", "--workers", "4")
        result = _chaos_until(changed_twice, "two changes of the leader", tmp_path, *arguments)
        assert _ask(cluster.url, _streams) == []
    assert _right(result)
    assert result["failovers"] >= 1


async def test_a_question_without_an_answer_does_not_end_the_run(tmp_path: Path) -> None:
    """As with servers that are still electing their first leader."""

    def once(sent: Sent) -> Fault:
        asked = sum(one.subject == sent.subject for one in proxy.log)
        first = sent.subject.startswith("$JS.API.STREAM.INFO.") and asked == 1
        return Fault.CUT if first else Fault.PASS

    with EmbeddedNats() as server:
        async with NatsProxy(server.port, once) as proxy:
            process = await asyncio.create_subprocess_exec(
                *_command("--broker", proxy.url, "--kills", "3", "--workers", "2"),
                env=os.environ | {"TMPDIR": str(tmp_path)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await asyncio.wait_for(process.communicate(), _LONG)
        assert process.returncode == 0, said.decode()
        assert proxy.event.is_set()


def test_a_message_that_somebody_deletes_is_reported_as_lost(tmp_path: Path) -> None:
    async def delete_the_last(link: Link) -> int:
        """Its number in the stream; 0 while none waits there."""
        for name in await _streams(link):
            info = await api.stream_info(link, name)
            if info is None or info["config"]["retention"] != "workqueue" or name.endswith("_DEAD"):
                continue
            last = int(info["state"]["last_seq"])
            waits = int(info["state"]["messages"]) > 100  # the last of so many is with nobody
            if waits and await api.delete_message(link, name, last):
                return last
        return 0

    with EmbeddedNats() as server:
        process = subprocess.Popen(
            _command("--broker", server.url, "--minutes", "60", "--workers", "2"),
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            stolen = wait_until(lambda: _ask(server.url, delete_the_last), "a message that waits")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=_LONG)
        finally:
            process.kill()
        assert _ask(server.url, _streams) == []
    assert process.returncode == 1, out + err
    assert f"1 messages were lost: published and never handled to the end: {stolen - 1}" in out
    assert f"(number {stolen - 1}): nowhere" in out
    assert "record and the workers' log are kept in" in err


def test_server_faults_of_one_server_of_somebody_else_are_refused(tmp_path: Path) -> None:
    with EmbeddedNats() as server:
        ran = _chaos(tmp_path, "--broker", server.url, "--kills", "1", "--server-faults")
        assert _ask(server.url, _streams) == []
    assert ran.returncode == 3
    assert "leave --server-faults out" in ran.stderr


def test_a_queue_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    async def make(link: Link) -> None:
        body = {"name": "Q_MINE", "subjects": ["q.mine.normal"], "storage": "memory"}
        await api.call(link, "STREAM.CREATE.Q_MINE", body, "make a stream")

    with EmbeddedNats() as server:
        _ask(server.url, make)
        ran = _chaos(tmp_path, "--broker", server.url, "--kills", "1", "--namespace", "mine")
        assert (ran.returncode, _ask(server.url, _streams)) == (2, ["Q_MINE"])
    assert "it has the stream Q_MINE" in ran.stderr


# -- the judge ---------------------------------------------------------------------------------------

EMPTY = QueueReading(
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
    total=3,
    success=2,
)
PUBLISHED = Published(confirmed={0: "p0", 1: "p1"}, doubtful={2})
COUNTS = Streams(stored=2, left=0, buried=0, handed_out=3, harmed=False)


def test_each_kind_of_fault_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "record"
    record = Record(path)
    record.started(0, "k1")
    for number in (0, 1):
        record.started(number, "k2")
        record.finished(number, "k2")
        record.settled(number, "k2", "committed")

    def faults(reading: QueueReading = EMPTY, **counts: Any) -> str:
        streams = dataclasses.replace(COUNTS, **counts)
        with path.open() as lines:
            return "; ".join(judge_streams(read_account(lines), PUBLISHED, reading, streams).faults)

    assert not faults()
    assert "stored 3 messages, published were 2" in faults(stored=3)
    assert "1 messages are left in the stream" in faults(left=1)
    assert "1 messages went to the dead stream" in faults(buried=1)
    assert "handed out 2 messages, and 3 were started" in faults(handed_out=2)
    assert not faults(handed_out=2, harmed=True)
    assert "1 messages are left owned" in faults(dataclasses.replace(EMPTY, owned=1))
    record.settled(1, "k3", "committed")
    assert "committed twice: 1" in faults()
    assert not faults(harmed=True)
    record.started(9, "k3")
    assert "nobody published them: 9" in faults()
