"""How `queueworker run` ends: each exit code, signals, and what a stop leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import EXPIRES_SOON, environment, gone, queueworker, wait_until
from tests.services import EmbeddedRedis, free_port
from worker_runtime.supervisor import ONE_REQUEST

NOTES_PID = """
    import asyncio, time
    from worker_runtime import App, Message
    app = App.from_env()

    def note(message, name="ran"):
        with open(name, "a") as file:
            file.write(message.pid + "\\n")
"""

#: Runs until a file called "go" appears.
GATED = (
    NOTES_PID
    + """
    import pathlib
    @app.job("q", prefetch=50)
    async def gated(payload: dict, message: Message) -> None:
        note(message, "began")
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
        note(message)
"""
)


def run_to_end(directory: Path, source: str, env: dict[str, str], *flags: str) -> tuple[int, str]:
    (directory / "jobs.py").write_text(textwrap.dedent(source))
    root = str(Path(__file__).parents[2])
    done = queueworker("run", "jobs:app", *flags, env=env | {"PYTHONPATH": f"{directory}:{root}"})
    return done.returncode, done.stderr


def test_graceful_stop_gives_back_what_never_started_in_order(bench: Bench) -> None:
    pids = bench.publish("q", *[f'{{"n": {n}}}' for n in range(60)])
    before = bench.ready()
    worker = bench.run(GATED).consuming()
    wait_until(lambda: worker.wrote("began") and bench.count("owners") == 50, "a full prefetch")

    worker.signal(signal.SIGTERM)
    wait_until(lambda: len(bench.ready()) == 59, "the release")
    assert bench.ready() == before[1:], "the very bytes, in the old order, at the head"
    assert worker.process.poll() is None, "the running handler is waited for"
    assert worker.get("/readyz") == (503, "stopping\n")
    assert worker.status()["state"] == "stopping"
    (worker.directory / "go").touch()

    assert worker.ended() == 0
    assert worker.wrote() == pids[:1]
    assert bench.succeeded() == 1
    assert not any(bench.count(place) for place in ("staging", "reservations", "owners", "processing"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('@app.job("q", coroutines=4, prefetch=2)\n    async def job(payload: dict): ...', "prefetch is 2"),
        ('@app.job("q")\n    async def job(payload: dict, database): ...', "'database'"),
        (
            '@app.on_worker_start\n    def broken(): raise OSError("no disk")\n'
            '    @app.job("q")\n    async def job(payload: dict): ...',
            "no disk",
        ),
    ],
    ids=["prefetch below coroutines", "missing resource", "start hook"],
)
def test_a_job_that_cannot_work_ends_with_1(bench: Bench, body: str, says: str) -> None:
    code, stderr = run_to_end(bench.directory, f"{NOTES_PID}\n    {body}\n", bench.env, "--processes", "2")
    assert code == 1
    assert says in stderr


@pytest.mark.parametrize(
    ("variables", "source", "says"),
    [
        ({}, "import no_such_module_at_all", "no_such_module_at_all"),
        ({}, "1 / 0", "ZeroDivisionError"),
        ({}, "def broken(", "jobs.py, line 1)."),
        ({}, "application = 1", "no 'app'"),
        ({"QUEUEWORKER_PREFETCH": "none"}, GATED, "QUEUEWORKER_PREFETCH"),
        ({"QUEUEWORKER_QUEUE": "other"}, GATED, "'other'"),
        ({"QUEUEWORKER_COROUTINES": "51"}, GATED, "prefetch is 50 and coroutines 51"),
        ({"QUEUEWORKER_BROKER_URL": "smtp://localhost"}, GATED, "redis"),
    ],
)
def test_bad_usage_ends_with_2_and_one_line(
    bench: Bench, variables: dict[str, str], source: str, says: str
) -> None:
    code, stderr = run_to_end(bench.directory, source, bench.env | variables)
    assert code == 2, stderr
    assert says in stderr
    assert "Traceback" not in stderr
    assert len(stderr.splitlines()) == 1


def test_a_taken_admin_port_ends_with_2(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, stderr = run_to_end(
            bench.directory, GATED, bench.env, "--admin-port", port, "--admin-host", "127.0.0.1"
        )
    assert code == 2
    assert port in stderr
    assert "QUEUEWORKER_ADMIN_PORT" in stderr


def test_a_refusing_broker_ends_with_3(bench: Bench) -> None:
    with EmbeddedRedis(args=("--requirepass", "right")) as locked:
        env = environment(f"redis://:incorrect-secret@127.0.0.1:{locked.port}", bench.namespace)
        code, stderr = run_to_end(bench.directory, GATED, env)
    assert code == 3
    assert "password" in stderr.lower()
    assert "incorrect-secret" not in stderr, "the password itself is never shown"
    assert "Traceback" not in stderr


def test_an_absent_broker_is_waited_for(bench: Bench, make_bench: Callable[..., Bench]) -> None:
    port = free_port()
    absent = make_bench(f"redis://127.0.0.1:{port}")
    worker = absent.run(GATED)
    worker.wait_for("waits for the broker")
    wait_until(lambda: str(port) in worker.get("/readyz")[1], "a reason in /readyz")
    assert worker.get("/readyz")[0] == 503
    with EmbeddedRedis(port=port):
        worker.consuming()
        assert len(worker.said("waits for the broker")) == 1
        assert worker.stop() == 0


def test_the_deadline_ends_with_4_and_others_finish(bench: Bench) -> None:
    pids = bench.publish("q", *["{}"] * 3)
    worker = bench.run(GATED, "--shutdown-seconds", "0.5", *EXPIRES_SOON).consuming()
    wait_until(lambda: worker.wrote("began"), "a running handler")
    assert worker.stop() == 4
    assert worker.said("the deadline of 0.5 s passed", level="error")

    (worker.directory / "go").touch()
    second = bench.run(GATED, *EXPIRES_SOON).consuming()
    wait_until(lambda: bench.succeeded() == 3, "recovery by another worker")
    assert sorted(second.wrote()) == sorted(pids)
    wait_until(bench.nothing_left, "an empty queue")


@pytest.mark.parametrize("blocks", ["the loop", "a thread"])
def test_the_deadline_holds_against_a_blocking_handler(bench: Bench, blocks: str) -> None:
    define = "async def" if blocks == "the loop" else "def"
    bench.publish("q", "{}")
    worker = bench.run(
        f"""{NOTES_PID}
    @app.job("q")
    {define} blocking(payload: dict, message: Message) -> None:
        note(message, "began")
        time.sleep(600)
    """,
        "--shutdown-seconds",
        "0.5",
    )
    wait_until(lambda: worker.wrote("began"), "a running handler")
    assert worker.stop() == 4
    assert worker.said("jobs.blocking", level="error")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_with_5_and_leaves_work_recoverable(bench: Bench, number: int) -> None:
    bench.publish("q", *["{}"] * 3)
    worker = bench.run(GATED, "--shutdown-seconds", "600").consuming()
    wait_until(lambda: worker.wrote("began"), "a running handler")
    worker.signal(number)
    wait_until(lambda: len(bench.ready()) == 2, "the graceful stop")
    began = time.monotonic()
    time.sleep(2 * ONE_REQUEST)  # sooner, the two would be one request; the stop has begun already
    worker.signal(number)
    assert worker.ended() == 5
    assert time.monotonic() - began < 60, "it does not wait for the deadline"
    assert bench.count("owners") == 1, "the message stays on the broker"


def test_two_signals_at_once_are_one_request(bench: Bench) -> None:
    """`timeout` signals a process, and then its group, in which the process is as well."""
    bench.publish("q", *["{}"] * 3)
    worker = bench.run(GATED).consuming()
    wait_until(lambda: worker.wrote("began"), "a running handler")
    # It sees both when it goes on, however long this test takes to send them.
    worker.signal(signal.SIGSTOP)
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)  # another number, since the kernel makes one of two that are the same
    worker.signal(signal.SIGCONT)
    wait_until(lambda: len(bench.ready()) == 2, "the graceful stop")
    (worker.directory / "go").touch()
    assert worker.ended() == 0
    assert bench.succeeded() == 1


def test_the_code_s_limits_can_be_overridden(bench: Bench) -> None:
    worker = bench.run(GATED, "--coroutines", "3", "--prefetch", "7", "--revision", "r9").consuming()
    status: dict[str, Any] = worker.status()
    assert (status["queues"]["q"]["coroutines"], status["queues"]["q"]["prefetch"]) == (3, 7)
    assert status["revision"] == "r9"
    assert all(line["revision"] == "r9" for line in worker.lines)


def test_signals_to_the_whole_group_while_it_starts_stop_it_gracefully(bench: Bench) -> None:
    """What a terminal does on Ctrl-C, and an operator that signals a process group."""
    worker = bench.run(GATED, "--processes", "2")
    wait_until(lambda: worker.get("/livez")[0], "the supervisor")
    os.killpg(worker.process.pid, signal.SIGINT)
    assert worker.ended() == 0, worker.transcript()
    assert not worker.said("Traceback")
    assert not worker.said("KeyboardInterrupt")


def test_sigterm_to_the_whole_group_is_one_graceful_stop(bench: Bench) -> None:
    worker = bench.run(GATED).consuming()
    os.killpg(worker.process.pid, signal.SIGTERM)
    assert worker.ended() == 0, worker.transcript()
    assert worker.said("stopped")


@pytest.mark.parametrize("how", ["os.system('sleep 600 >/dev/null 2>&1 & echo $! >left')", "fork()"])
def test_what_a_handler_leaves_running_does_not_hold_the_stop_up(bench: Bench, how: str) -> None:
    bench.publish("q", "{}")
    worker = bench.run(
        f"""{NOTES_PID}
    import os
    def fork():
        pid = os.fork()
        if pid == 0:
            for fd in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), fd)
            time.sleep(600)
            os._exit(0)
        with open("left", "w") as file:
            file.write(str(pid))

    @app.job("q")
    async def leaving(payload: dict, message: Message) -> None:
        {how}
    """
    )
    wait_until(lambda: bench.succeeded() == 1 and worker.wrote("left"), "the handled message")
    left = int(worker.wrote("left")[0])
    try:
        assert worker.stop() == 0, worker.transcript()
        assert not worker.said("did not end in time")
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_thread_of_a_handler_ends_with_the_deadline_also_without_a_supervisor(bench: Bench) -> None:
    bench.publish("q", "{}")
    worker = bench.run(
        f"""{NOTES_PID}
    import threading
    @app.job("q")
    async def threading_on(payload: dict, message: Message) -> None:
        threading.Thread(target=time.sleep, args=(600,)).start()
    """,
        "--shutdown-seconds",
        "2",
    ).consuming()
    wait_until(lambda: bench.succeeded() == 1, "the handled message")
    pid = worker.status()["processes"][0]["pid"]
    worker.process.kill()
    wait_until(lambda: gone(pid), "the end of the worker process")
