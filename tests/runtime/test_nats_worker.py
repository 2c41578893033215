"""Real worker processes and commands on NATS JetStream."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.running import RunningWorker, environment, queueworker, wait_until
from tests.services import EmbeddedNats
from worker_runtime.brokers.base import QueueReading, Timing
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.address import parse_address
from worker_runtime.brokers.nats.broker import NatsBroker
from worker_runtime.brokers.nats.link import Link
from worker_runtime.brokers.nats.topology import Plan

SOURCE = """
    import asyncio
    from pathlib import Path
    from worker_runtime import App, Retry

    app = App.from_env()

    @app.job("q", coroutines=4, prefetch=20, retry=Retry(max_attempts=2, backoff=0.1))
    async def job(payload: dict) -> None:
        while "wait" in payload and not Path(payload["wait"]).exists():
            await asyncio.sleep(0.02)
        with open("ran", "a") as file:
            file.write(f"{payload['n']}\\n")
        if "fail" in payload:
            raise ValueError("it fails")
"""


class Place:
    """One server, and the workers that a test started on it."""

    def __init__(self, server: EmbeddedNats, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.env = environment(server.url, "utopia-queue", QUEUEWORKER_EXPIRY_SECONDS="30")
        self.workers: list[RunningWorker] = []

    def run(self, *flags: str, source: str = SOURCE, **more: Any) -> RunningWorker:
        self.workers.append(RunningWorker(self.directory, source, self.env, *flags, **more))
        return self.workers[-1]

    def command(self, *arguments: str, code: int = 0) -> str:
        done = queueworker(*arguments, env=self.env)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def reading(self) -> QueueReading:
        async def read() -> QueueReading:
            inspector = self.broker.inspector()
            try:
                return await inspector.read("q")
            finally:
                await inspector.close()

        return asyncio.run(read())

    def provision(self, ack_wait: float) -> None:
        asyncio.run(self.broker.provision("q", Plan(ack_wait=ack_wait), update=True))

    @property
    def broker(self) -> NatsBroker:
        return NatsBroker(parse_address(self.server.url), "utopia-queue", Timing())

    def publish(self, *payloads: dict[str, Any]) -> None:
        async def publish() -> None:
            publisher = self.broker.publisher()
            try:
                await publisher.publish_many("q", [json.dumps(one).encode() for one in payloads])
            finally:
                await publisher.close()

        asyncio.run(publish())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with EmbeddedNats() as server:
        found = Place(server, tmp_path)
        found.provision(ack_wait=30)
        yield found
        for worker in found.workers:
            if worker.process.poll() is None:
                worker.kill_group()


def test_every_command_on_one_queue(place: Place) -> None:
    worker = place.run("--revision", "r1", "--processes", "2").consuming()
    place.publish(*({"n": n} for n in range(500)), {"n": 500, "fail": True})
    wait_until(lambda: len(worker.wrote()) == 502, "every message once and the failing one twice")
    assert sorted(set(map(int, worker.wrote()))) == list(range(501))
    wait_until(lambda: place.reading().owned == 0, "everything settled")

    reading = place.reading()
    assert (reading.ready, reading.dead, reading.success) == (0, 1, 500)
    assert [each.revision for each in reading.workers] == ["r1", "r1"]
    assert "holds nothing private" in place.command("verify-empty", "q", "--quiet-seconds", "0.5")
    [dead] = json.loads(place.command("inspect", "q", "--retained", "5", "--json"))["retained"]["dead"]
    assert (dead["why"], dead["attempts"]) == ("exhausted", 1)
    shown = place.command("inspect", "q")
    assert re.search(r"failed +-  counted among the dead; --retained tells them apart", shown)
    assert re.search(r"dead +1  given up", shown)
    assert "exhausted" in place.command("explain", "q", dead["pid"])

    place.command("fence", "q", "--revision", "r1", "--reason", "being rolled back")
    wait_until(
        lambda: not any(each.receiving for each in place.reading().workers), "the fence at both processes"
    )
    place.publish({"n": 1000})
    assert place.reading().ready == 1
    place.command("unfence", "q", "--revision", "r1")
    wait_until(lambda: "1000" in worker.wrote(), "work after the fence was lifted")

    assert "Retried 1 dead letters" in place.command("retry", "q", "--dead")
    wait_until(lambda: worker.wrote().count("500") == 3, "one more try of the one that fails")
    assert worker.stop() == 0


def test_a_stopping_worker_gives_back_what_never_started(place: Place) -> None:
    gate = place.directory / "gate"
    place.publish(*({"n": n, "wait": str(gate)} for n in range(30)))
    worker = place.run().consuming()
    worker.wait_for_counts(waiting=16, running=4)
    worker.signal()
    worker.wait_for("gives back 16 messages")
    gate.touch()
    assert worker.ended() == 0
    assert sorted(map(int, worker.wrote())) == [0, 1, 2, 3]
    second = place.run().consuming()
    wait_until(lambda: len(second.wrote()) == 30, "the rest")
    assert sorted(map(int, second.wrote())) == list(range(30))
    assert second.stop() == 0
    assert place.reading().dead == 0


def test_a_killed_worker_leaves_its_work_to_the_next(place: Place) -> None:
    place.provision(ack_wait=2)
    gate = place.directory / "gate"
    place.publish(*({"n": n, "wait": str(gate)} for n in range(10)))
    flags = ("--expiry-seconds", "2")
    first = place.run(*flags).consuming()
    first.wait_for_counts(running=4)
    first.kill_group()
    gate.touch()
    second = place.run(*flags).consuming()
    wait_until(lambda: len(set(second.wrote())) == 10, "all of them")
    wait_until(lambda: place.reading().success == 10, "the commits")
    assert second.stop() == 0


def test_a_worker_that_slept_past_the_ack_wait_settles_nothing_of_others(place: Place) -> None:
    place.provision(ack_wait=5)
    gate = place.directory / "gate"
    place.publish({"n": 1, "wait": str(gate)})
    flags = ("--expiry-seconds", "5")
    sleeper = place.run(*flags).consuming()
    sleeper.wait_for_counts(running=1)
    os.killpg(sleeper.process.pid, signal.SIGSTOP)
    other = place.run(*flags).consuming()
    other.wait_for_counts(running=1)
    os.killpg(sleeper.process.pid, signal.SIGCONT)
    gate.touch()
    other.wait_for_counts(committed=1)
    sleeper.wait_for_counts(superseded=1, committed=0)
    assert "had taken the message over" not in sleeper.transcript(), "nobody can know that here"
    assert place.reading().success == 1
    assert (sleeper.stop(), other.stop()) == (0, 0)


def test_a_handler_that_takes_longer_than_the_ack_wait_runs_once(place: Place) -> None:
    place.provision(ack_wait=4)
    gate = place.directory / "gate"
    place.publish({"n": 1, "wait": str(gate)}, {"n": 2})
    flags = ("--expiry-seconds", "4")
    slow = place.run(*flags).consuming()
    slow.wait_for_counts(running=1, committed=1)
    other = place.run(*flags).consuming()
    deliveries = place.reading().total
    time.sleep(9)  # the server would have handed it out twice more
    assert place.reading().total == deliveries
    gate.touch()
    slow.wait_for_counts(committed=2)
    assert sorted(slow.wrote()) == ["1", "2"]
    other.wait_for_counts(committed=0)
    assert (slow.stop(), other.stop()) == (0, 0)


def test_a_worker_goes_on_after_its_queue_was_purged_and_deleted(place: Place) -> None:
    def ask(subject: str) -> None:
        async def ask() -> None:
            link = Link(parse_address(place.server.url), 30.0, "test")
            await api.call(link, subject, None, "meddle")
            await link.close()

        asyncio.run(ask())

    gate = place.directory / "gate"
    place.publish(*({"n": n, "wait": str(gate)} for n in range(30)))
    worker = place.run().consuming()
    worker.wait_for_counts(waiting=16, running=4)
    ask("STREAM.PURGE.Q_Q")
    gate.touch()
    wait_until(lambda: len(worker.wrote()) == 20, "what it had in hand")
    place.publish({"n": 100})
    wait_until(lambda: "100" in worker.wrote(), "work after the purge")
    wait_until(lambda: place.reading().owned == 0, "its commit")
    ask("STREAM.DELETE.Q_Q")
    worker.wait_for("queueworker provision q")
    place.provision(ack_wait=30)
    place.publish({"n": 101})
    wait_until(lambda: "101" in worker.wrote(), "work after the queue was made again")
    wait_until(lambda: place.reading().success == 1, "its commit")
    assert worker.stop() == 0


def test_a_worker_goes_on_after_its_server_was_killed(place: Place) -> None:
    worker = place.run().consuming()
    place.publish({"n": 1})
    wait_until(lambda: worker.wrote() == ["1"], "the first")
    place.server.kill()
    worker.wait_for("broker lost")
    place.server.restart()
    place.publish({"n": 2})
    wait_until(lambda: "2" in worker.wrote(), "work after the server is back")
    assert worker.stop() == 0


@pytest.mark.parametrize("full", [False, True], ids=["idle", "settling"])
def test_a_worker_whose_server_is_frozen_is_not_ready(full: bool, place: Place) -> None:
    gate = place.directory / "gate"
    worker = place.run().consuming()
    if full:
        place.publish(*({"n": n, "wait": str(gate)} for n in range(20)))
        worker.wait_for_counts(running=4, waiting=16)
    os.kill(place.server.pid, signal.SIGSTOP)
    gate.touch()
    try:
        wait_until(lambda: "has not answered for" in worker.get("/readyz")[1], "what it lacks")
    finally:
        os.kill(place.server.pid, signal.SIGCONT)
    worker.consuming()
    place.publish({"n": 100})
    wait_until(lambda: "100" in worker.wrote(), "work after it")
    assert worker.stop() == 0


def test_an_ack_wait_below_the_renewal_is_refused_at_the_start(place: Place) -> None:
    place.provision(ack_wait=5)
    worker = place.run(admin=False)
    assert worker.ended() == 3
    assert "takes work back after 5 s" in worker.transcript()


def test_an_account_without_jetstream_is_refused_at_the_start(tmp_path: Path) -> None:
    with EmbeddedNats(config="accounts { A { users: [{user: a, password: a}] } }") as server:
        env = environment(server.url.replace("//", "//a:a@"), "utopia-queue")
        worker = RunningWorker(tmp_path, SOURCE, env, admin=False)
        assert worker.ended() == 3
    assert "`jetstream: enabled`" in worker.transcript()


def test_the_line_of_a_file_that_is_too_large_is_named(place: Place) -> None:
    file = place.directory / "events.jsonl"
    file.write_text("\n".join(["1", "", "2", json.dumps("x" * 2**20), "3"]))
    told = place.command("publish", "q", "--file", str(file), code=2)
    assert re.match(r"Error: line 4: the payload has 1048578 bytes", told)
    assert place.reading().ready == 0


def test_provisioning_is_for_nats_only() -> None:
    env = environment("redis://127.0.0.1:1", secrets.token_hex(4))
    done = queueworker("provision", "q", env=env)
    assert done.returncode == 2
    assert "needs no provisioning" in done.stderr


def test_what_moves_messages_does_not_mind_a_short_ack_wait(place: Place) -> None:
    place.command("provision", "brief", "--ack-wait", "5")
    assert "Retried 0" in place.command("retry", "brief")
    assert place.command("recover", "brief")
    left = place.command("provision", "brief", "--ack-wait", "9")
    assert "ack_wait is 5 s, not 9 s" in left
    assert "ack_wait from 5 s to 9 s" in place.command("provision", "brief", "--ack-wait", "9", "--update")


def test_a_dead_stream_that_is_gone_is_named_with_the_command_that_makes_it(place: Place) -> None:
    worker = place.run("--revision", "r1").consuming()

    async def take_away() -> None:
        link = Link(parse_address(place.server.url), 30.0, "test")
        try:
            await api.call(link, "STREAM.DELETE.Q_Q_DEAD", None, "delete")
        finally:
            await link.close()

    asyncio.run(take_away())
    place.publish({"n": 1, "fail": True})
    lines = wait_until(lambda: worker.said("count as unknown"), "the warning")
    assert "queueworker provision" in lines[0]["msg"]
    assert "unknown" in lines[0]["msg"]
