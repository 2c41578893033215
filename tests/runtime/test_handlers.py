"""What handlers and hooks may do, and what becomes of the message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import wait_until


def test_whatever_a_handler_raises_the_worker_goes_on(bench: Bench) -> None:
    worker = bench.run(
        """
        import asyncio, os, sys
        from worker_runtime import App
        app = App.from_env()

        async def cancel_own_task():
            asyncio.current_task().cancel()
            await asyncio.sleep(60)

        @app.job("q", prefetch=10)
        async def failing(payload: str) -> None:
            with open("ran", "a") as file:
                file.write(f"{payload} {os.getpid()}\\n")
            if payload == "value": raise ValueError("a bad value")
            if payload == "exit": sys.exit(3)
            if payload == "cancelled": raise asyncio.CancelledError()
            if payload == "own task": await cancel_own_task()
            if payload == "interrupt": raise KeyboardInterrupt
            if payload == "group": raise ExceptionGroup("many", [OSError("disk"), KeyError("k")])
            if payload == "generator": raise GeneratorExit
        """
    )
    kinds = ["value", "exit", "cancelled", "own task", "interrupt", "group", "generator"]
    bench.publish("q", *[f'"{kind}"' for kind in [*kinds, "fine", "fine"]])
    wait_until(lambda: bench.succeeded() == 2 and bench.failed() == 7, "all outcomes")
    assert len({word for word in worker.wrote() if word.isdigit()}) == 1, "one process ran them all"
    worker.wait_for_counts(committed=2, rejected=7, handler_errors=7, waiting=0, running=0, unconfirmed=0)
    line = worker.wait_for("handler failed: ValueError: a bad value")
    assert line["queue"] == "q"
    assert line["message_id"]
    assert "Traceback" in line["error"]
    assert worker.stop() == 0


def test_plain_functions_run_in_threads_and_do_not_hold_each_other_up(bench: Bench) -> None:
    pids = bench.publish("q", "{}", "{}", '{"fail": true}')
    worker = bench.run(
        """
        import logging, threading, time
        from worker_runtime import App, Message
        app = App.from_env()
        together = threading.Barrier(3, timeout=120)

        @app.job("q", coroutines=3)
        def plain(payload: dict, message: Message) -> None:
            together.wait()  # passes only when three run at once
            logging.getLogger("mine").warning("seen")
            if payload.get("fail"): raise RuntimeError("in a thread")
        """
    )
    wait_until(lambda: bench.succeeded() == 2 and bench.failed() == 1, "all outcomes")
    worker.wait_for("seen", 3)
    assert {line["message_id"] for line in worker.said("seen")} == set(pids)
    assert worker.wait_for("handler failed: RuntimeError: in a thread")
    assert worker.stop() == 0


def test_whatever_a_plain_function_raises_its_slot_goes_on(bench: Bench) -> None:
    worker = bench.run(
        """
        import asyncio, sys
        from worker_runtime import App
        app = App.from_env()

        @app.job("q", coroutines=1, prefetch=10)
        def failing(payload: str) -> None:
            if payload == "next": next(iter([]))
            if payload == "exit": sys.exit(3)
            if payload == "cancelled": raise asyncio.CancelledError()
            if payload == "generator": raise GeneratorExit
        """
    )
    bench.publish("q", '"next"', '"exit"', '"cancelled"', '"generator"', '"fine"')
    wait_until(lambda: bench.succeeded() == 1 and bench.failed() == 4, "all outcomes")
    assert worker.stop() == 0
    assert worker.said("StopIteration", level="error")


def test_a_payload_that_does_not_fit_is_rejected(bench: Bench) -> None:
    worker = bench.run(
        """
        from pydantic import BaseModel
        from worker_runtime import App
        app = App.from_env()

        class Usage(BaseModel):
            project: str
            bytes: int

        @app.job("q", prefetch=10)
        async def usage(usage: Usage) -> None:
            with open("ran", "a") as file:
                file.write(f"{usage.project}={usage.bytes}\\n")
        """
    )
    bench.publish(
        "q", '{"project": "a", "bytes": 1}', '{"project": "b"}', "[]", '{"project": "c", "bytes": 3}'
    )
    wait_until(lambda: bench.succeeded() == 2 and bench.failed() == 2, "all outcomes")
    assert worker.wrote() == ["a=1", "c=3"]
    assert worker.stop() == 0
    assert len(worker.said("the payload does not fit Usage")) == 2
    assert worker.said("the payload does not fit Usage: bytes: Field required"), "what is wrong, and where"


def test_hooks_run_in_order_for_their_groups(bench: Bench) -> None:
    worker = bench.run(
        """
        from worker_runtime import App, Context, Message
        app = App.from_env()

        def note(*words):
            with open("ran", "a") as file:
                file.write("-".join(words) + "\\n")

        @app.on_worker_start
        async def start():
            app.resources["store"] = "db"
            note("start")

        @app.on_worker_stop
        def stop(store): note("stop", store)

        @app.on_init(groups=["audit"])
        async def init(context: Context):
            context["tenant"] = context.message.json()["t"]
            note("init", context["tenant"])

        @app.on_init(groups=["other"])
        def never(): note("never")

        @app.on_shutdown
        def after(message: Message): note("shutdown")

        @app.on_success
        async def success(context: Context, store): note("success", context["tenant"], store)

        @app.on_error
        async def error(failure: BaseException, context: Context): note("error", str(failure))

        @app.job("q", groups=["audit"])
        async def job(payload: dict, context: Context, *, store: str) -> None:
            note("run", context["tenant"], store)
            if payload["t"] == "bad": raise ValueError("oops")
        """
    )
    bench.publish("q", '{"t": "x"}')
    wait_until(lambda: "success-x-db" in worker.wrote(), "the success hook")
    bench.publish("q", '{"t": "bad"}')
    wait_until(lambda: bench.failed() == 1, "the rejection")
    assert worker.stop() == 0
    assert worker.wrote() == [
        *("start", "init-x", "run-x-db", "shutdown", "success-x-db"),
        *("init-bad", "run-bad-db", "error-oops", "stop-db"),
    ]


def test_a_handler_that_blocks_the_loop_keeps_its_message(bench: Bench) -> None:
    """It blocks for more than two expiries (of four seconds) while a second worker looks for expired work."""
    source = """
        import os, time
        from worker_runtime import App, Message
        app = App.from_env()

        @app.job("q", prefetch=5)
        async def blocking(payload: dict, message: Message) -> None:
            with open("ran", "a") as file:
                file.write(message.pid + "\\n")
            time.sleep(payload["seconds"])
    """
    expiry = ("--expiry-seconds", "4")
    pids = bench.publish("q", '{"seconds": 10}', '{"seconds": 0}', '{"seconds": 0}')
    first = bench.run(source, *expiry)
    wait_until(lambda: bench.count("owners") == 3 and first.wrote(), "a running handler")
    second = bench.run(source, *expiry).consuming()

    # A busy machine may hold the loop up at other times, too; only the handler's stall counts here.
    blocked = f"jobs.blocking handles message {pids[0]}"

    def told(what: str) -> list[dict[str, Any]]:
        return [line for line in first.said(blocked) if what in line["msg"]]

    stall = wait_until(lambda: told("event loop has stood still"), "the warning")[0]
    assert stall["level"] == "warning"
    first.wait_for_counts(running=1)  # reporting goes on during the stall
    assert first.get("/livez")[0] == 200
    over = wait_until(lambda: told("event loop runs again after a stall of"), "the end of the stall")[0]
    # Of its ten seconds; where the process itself got no turn at the beginning, that is not seen.
    assert float(over["msg"].split("stall of ")[1].split()[0]) > 5
    wait_until(lambda: bench.succeeded() == 3, "all commits")
    assert first.wrote() == pids, "each ran exactly once, although the second worker was looking"
    assert len(told("event loop has stood still")) == 1
    assert second.status()["queues"]["q"]["received"] == 0
    assert first.stop() == 0
    assert second.stop() == 0


def test_a_failure_that_can_hardly_be_told_is_told_and_settled(bench: Bench) -> None:
    """Texts that no encoding holds, that are megabytes long, or that raise when they are read; their
    neighbours in the same settlement are not concerned."""
    worker = bench.run(
        """
        import logging
        from worker_runtime import App, Retry
        app = App.from_env()

        class Mute(Exception):
            def __str__(self): raise RuntimeError("no text")

        class Exits(Exception):
            def __str__(self): raise SystemExit(3)

        @app.on_error
        def hook(error: Exception) -> None:
            logging.getLogger("mine").warning("\\udcff of %r", type(error))
            raise error

        @app.job("q", coroutines=10, prefetch=20, retry=Retry(max_attempts=1))
        async def failing(payload: str) -> None:
            if payload == "surrogate": raise ValueError("half a \\ud800 pair")
            if payload == "nul": raise ValueError("a\\x00b\\x1b[31m")
            if payload == "long": raise ValueError("x" * 5_000_000)
            if payload == "mute": raise Mute
            if payload == "exits": raise Exits
        """
    )
    kinds = ["surrogate", "nul", "long", "mute", "exits"]
    pids = bench.publish("q", *[f'"{kind}"' for kind in [*kinds, "fine", "fine"]])
    wait_until(lambda: bench.succeeded() == 2 and bench.count("dead") == 5, "all outcomes")
    worker.wait_for_counts(committed=2, rejected=5, unknown=0, superseded=0, unconfirmed=0)
    assert sorted(bench.client.lrange(bench.key("dead"), 0, -1)) == sorted(pids[:5])
    texts = [bench.client.get(bench.key("reason") + f".{pid}") for pid in pids[:5]]
    details = dict(zip(kinds, [json.loads(text)["detail"] for text in texts], strict=True))
    assert details["surrogate"] == r"ValueError: half a \ud800 pair"
    assert details["nul"] == r"ValueError: a\x00b\x1b[31m"
    assert details["long"].startswith("ValueError: xxx")
    assert len(details["long"]) <= 500
    assert details["mute"] == "Mute: (its text could not be read)"
    assert details["exits"] == "Exits: (its text could not be read)"
    for kind in kinds:
        assert worker.wait_for(f"handler failed: {details[kind]}")["level"] == "error"
    assert len(worker.wait_for("handler failed: ValueError: xxx")["error"]) < 30_000
    assert worker.stop() == 0
    assert len(worker.said("\udcff of", message_id=pids[0])) == 1
    assert not worker.said("Logging error")


@pytest.mark.parametrize("others", [0, 1])
def test_a_native_call_that_stops_the_whole_process(others: int, bench: Bench) -> None:
    """No thread of it can renew meanwhile. With nobody else its late settlement counts; else there is one
    takeover, and the one that took over wins."""
    source = """
        import asyncio, ctypes, pathlib
        from worker_runtime import App
        app = App.from_env()

        @app.job("q")
        async def native(payload: str) -> None:
            first = not pathlib.Path("ran").exists()
            with open("ran", "a") as file:
                file.write("began\\n")
            if first:
                ctypes.PyDLL(None).usleep(MICROSECONDS)  # keeps the interpreter to itself
            await asyncio.sleep(0.2)
    """
    source = source.replace("MICROSECONDS", str(1_700_000 + 1_600_000 * others))
    workers = [bench.run(source, "--expiry-seconds", "1").consuming()]
    (pid,) = bench.publish("q", '"slow"')
    wait_until(workers[0].wrote, "the beginning of the call")
    workers += [bench.run(source, "--expiry-seconds", "1") for _ in range(others)]

    def told() -> list[dict[str, Any]]:
        """Of this call: a busy machine may have held the process up before, too."""
        said = workers[0].said("the whole process has stood still")
        return [line for line in said if f"jobs.native handles message {pid}" in line["msg"]]

    assert wait_until(told, "the warning")[0]["level"] == "warning"
    wait_until(lambda: bench.succeeded() == 1, "the one commit")
    wait_until(bench.nothing_left, "empty places")
    # With such an expiry a machine that stands still for a second makes takeovers of its own.
    taken_over = bench.reading().ledger["local"].taken_over
    assert len(workers[0].wrote()) <= 1 + taken_over
    assert others or not taken_over
    assert [worker.stop() for worker in workers] == [0] * len(workers)
    assert bench.succeeded() == 1
