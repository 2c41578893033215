"""A broker that is away, full or silent: for no time and for longer than anything waits, while handlers run,
before a start and around a stop."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import RunningWorker, wait_until
from tests.services import EmbeddedRedis, free_port

GATED = """
    import asyncio, dataclasses, pathlib
    from worker_runtime import App, Message
    app = App.from_env()
    app.timing = dataclasses.replace(app.timing, command_timeout=COMMAND_TIMEOUT)

    @app.job("q", coroutines=4, prefetch=20)
    async def gated(payload: str, message: Message) -> None:
        with open("ran", "a") as file:
            file.write(payload + "\\n")
        if payload.startswith("gated"):
            while not pathlib.Path(payload).exists():
                await asyncio.sleep(0.01)
"""
#: Waits for commands for less time than the outages last.
IMPATIENT = GATED.replace("COMMAND_TIMEOUT", "2.0")
PATIENT = GATED.replace("COMMAND_TIMEOUT", "600.0")
GATED = GATED.replace("COMMAND_TIMEOUT", "10.0")


@pytest.fixture
def broker() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(appendonly=True, args=("--appendfsync", "always")) as running:
        yield running


@pytest.fixture
def outer(broker: EmbeddedRedis, make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(broker.url)


def outage(bench: Bench, broker: EmbeddedRedis, worker: RunningWorker, seconds: float) -> None:
    """Three handlers run when the broker goes; they finish before it comes back."""
    name = f"gated-{seconds:g}"
    bench.publish("q", *[f'"{name}-{n}"' for n in range(3)])
    names = [f"{name}-{n}" for n in range(3)]
    wait_until(lambda: set(names) <= set(worker.wrote()), "three running handlers")
    done, lines, losses = bench.succeeded(), len(worker.lines), len(worker.said("broker lost"))
    began = time.monotonic()
    broker.kill()
    for each in names:
        (worker.directory / each).touch()
    worker.wait_for("broker lost", losses + 1)
    if seconds:
        time.sleep(seconds)  # the outage itself
    broker.restart()
    wait_until(lambda: bench.succeeded() == done + 3, "the commits of what finished in the outage")
    bench.publish("q", '"after"')
    wait_until(lambda: bench.succeeded() == done + 4, "new work")
    worker.consuming()
    said = [line for line in worker.lines[lines:] if "stood still" not in line["msg"]]
    lasted = time.monotonic() - began
    assert len(said) <= max(10, lasted), f"{len(said)} lines in {lasted:.0f} s: {said}"


def outages(bench: Bench, broker: EmbeddedRedis, *lengths: float) -> None:
    worker = bench.run(IMPATIENT if max(lengths) < 10 else GATED).consuming()
    for seconds in lengths:
        outage(bench, broker, worker, seconds)
    wait_until(bench.nothing_left, "empty places")
    worker.wait_for_counts(unknown=0, superseded=0, missing=0, rejected=0)
    assert len(worker.wrote()) == len(set(worker.wrote())) + len(lengths) - 1, "each ran once"
    assert worker.stop() == 0


def test_what_finishes_in_an_outage_is_committed_after_it(outer: Bench, broker: EmbeddedRedis) -> None:
    """For as long as a restart takes, and for longer than one command is given."""
    outages(outer, broker, 0, 4)


@pytest.mark.soak
def test_outages_of_twenty_and_of_sixty_seconds(outer: Bench, broker: EmbeddedRedis) -> None:
    outages(outer, broker, 20, 60)


def test_every_connection_is_cut_again_and_again(bench: Bench) -> None:
    worker = bench.run(GATED).consuming()
    for _ in range(3):
        done = bench.succeeded()
        bench.client.client_kill_filter(_type="normal", skipme=True)
        bench.publish("q", *['"x"'] * 5)
        wait_until(lambda done=done: bench.succeeded() >= done + 5, "work after the cut")  # type: ignore[misc]
    worker.consuming()
    assert worker.stop() == 0


def test_a_stop_after_the_broker_went_ends_in_time_and_names_what_it_leaves(
    outer: Bench, broker: EmbeddedRedis
) -> None:
    worker = outer.run(GATED, "--shutdown-seconds", "1", "--expiry-seconds", "1").consuming()
    pids = outer.publish("q", '"gated-never"', *['"gated-too"'] * 3, *['"waits"'] * 4)
    wait_until(lambda: len(worker.wrote()) == 4 and outer.count("owners") == 8, "full slots")
    broker.kill()
    worker.wait_for("broker lost")
    began = time.monotonic()
    assert worker.stop() == 4
    assert time.monotonic() - began < 1 + 1 + 10, "ten seconds are for a busy machine"
    assert not worker.said("is killed"), "it kept its deadline by itself"
    told = " ".join(line["msg"] for line in [*worker.said("ids: "), *worker.said("Ids: ")])
    assert {pid for pid in pids if pid in told} == set(pids)
    broker.restart()
    for name in ("gated-never", "gated-too"):
        (worker.directory / name).touch()
    second = outer.run(GATED, "--expiry-seconds", "1")
    wait_until(lambda: outer.succeeded() == 8, "the recovery of all")
    wait_until(outer.nothing_left, "empty places")
    assert second.stop() == 0


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_a_stop_before_the_broker_was_ever_there_is_prompt(
    silent: bool, make_bench: Callable[..., Bench]
) -> None:
    with socket.socket() as listening:
        port = free_port()
        listening.bind(("127.0.0.1", port))
        if silent:  # it takes connections and never answers
            listening.listen()
        worker = make_bench(f"redis://127.0.0.1:{port}").run(PATIENT, "--shutdown-seconds", "600")
        if silent:
            listening.settimeout(60)
            connection, _ = listening.accept()
        else:
            connection = socket.socket()
            worker.wait_for("waits for the broker")
        with connection:
            began = time.monotonic()
            assert worker.stop() == 0, "nothing was taken, so nothing is left"
            assert time.monotonic() - began < 120, "it does not wait for an answer that nobody needs"


@pytest.mark.parametrize("lacking", ["memory", "disk"])
def test_a_full_server_is_waited_for(lacking: str, make_bench: Callable[..., Bench]) -> None:
    """It takes nothing more; what is held is finished, and settled when there is room; nothing is lost."""
    with EmbeddedRedis(args=("--maxmemory-policy", "noeviction")) as broker:
        full = make_bench(broker.url)
        client, in_the_way = full.client, broker.directory / "dump.rdb"

        def take_room() -> None:
            if lacking == "memory":
                client.config_set("maxmemory", "1")
                return
            client.config_set("save", "3600 1")
            in_the_way.mkdir()  # a snapshot can be written, and not put in its place
            client.bgsave()
            wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "a failed save")

        def make_room() -> None:
            client.config_set("maxmemory", "0")
            if in_the_way.is_dir():
                in_the_way.rmdir()
                client.config_set("save", "")

        worker = full.run(GATED).consuming()
        gates = [f"gated-{n}" for n in range(4)]
        full.publish("q", *[f'"{name}"' for name in [*gates, *range(50)]])
        wait_until(lambda: full.count("owners") == 20 and len(worker.wrote()) == 4, "a full worker")
        take_room()
        for name in gates:
            (worker.directory / name).touch()
        # Settlements only free memory, so they go on; without a disk nothing is written at all.
        held = {"memory": (20, 0), "disk": (0, 20)}[lacking]
        wait_until(
            lambda: (full.succeeded(), full.count("owners")) == held, "what is held to be kept or settled"
        )
        wait_until(lambda: len(worker.wrote()) == 20, "the work that is held")
        assert (full.succeeded(), full.count("owners")) == held
        if lacking == "memory":
            wait_until(lambda: worker.get("/readyz")[0] == 503, "unreadiness")
            assert "maxmemory" in worker.status()["reason"]
        assert worker.get("/livez")[0] == 200
        make_room()
        wait_until(lambda: full.succeeded() == 54, "all commits")
        wait_until(full.nothing_left, "empty places")
        worker.consuming()
        worker.wait_for_counts(committed=54, unknown=0, superseded=0)
        assert len(worker.wrote()) == len(set(worker.wrote())) == 54
        assert worker.stop() == 0
        assert not worker.said("ended unexpectedly")
