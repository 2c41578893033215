"""Handlers that return before their work is durable, against a consumer that the test controls."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from typing import Any

import pytest

from tests.runtime.scripted import ScriptedConsumer, deliveries
from tests.runtime.test_worker_loop import app_with, until, working
from worker_runtime import App, Commit, Context, Message, Retry
from worker_runtime.brokers.base import Action, Outcome


def asked(consumer: ScriptedConsumer) -> list[tuple[str, Action]]:
    return [(one.delivery.pid, one.action) for batch in consumer.settled for one in batch]


async def test_the_handler_is_free_and_the_delivery_stays_outstanding_until_it_is_confirmed() -> None:
    commits: dict[str, Commit] = {}

    async def handler(payload: dict[str, Any], message: Message, commit: Commit) -> None:
        commits[message.pid] = commit

    consumer = ScriptedConsumer(deliveries(10))
    async with working(app_with(handler, prefetch=4), consumer) as (_, state):
        await until(lambda: len(commits) == 4)
        for _ in range(50):
            await asyncio.sleep(0)
        assert list(commits) == ["p0", "p1", "p2", "p3"], "one slot ran four, and prefetch bounds the rest"
        assert (state.gauges(), len(state.deferred)) == ((0, 0, 4), 4)
        assert consumer.settled == []
        assert len(state.held()) == 4, "all are renewed"
        assert commits["p2"].confirm() is True
        assert commits["p2"].confirm() is False, "a second time is harmless"
        assert commits["p2"].fail("too late") is False
        await until(lambda: state.committed == 1 and len(commits) == 5)
        for name in ("p0", "p1", "p3", "p4"):
            commits[name].confirm()
        await until(lambda: len(commits) == 9)
        for name in list(commits):
            commits[name].confirm()
        await until(lambda: "p9" in commits)
        commits["p9"].confirm()
        await until(lambda: state.committed == 10)
        assert (state.gauges(), len(state.deferred)) == ((0, 0, 0), 0)
    assert max(consumer.exposed) == 4
    assert {action for _, action in asked(consumer)} == {Action.COMMIT}
    assert len(asked(consumer)) == 10


async def test_confirming_from_other_threads() -> None:
    arrived: list[Commit] = []

    async def handler(commit: Commit) -> None:
        arrived.append(commit)

    consumer = ScriptedConsumer(deliveries(400))
    async with working(app_with(handler, prefetch=400), consumer) as (_, state):
        await until(lambda: len(arrived) == 400)
        wins: list[bool] = []

        def confirm_all() -> None:
            wins.extend([commit.confirm() for commit in arrived])

        threads = [threading.Thread(target=confirm_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        await until(lambda: state.committed == 400)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert wins.count(True) == 400
    assert len(asked(consumer)) == 400


async def test_a_confirmation_inside_the_handler_counts_when_it_returns() -> None:
    async def handler(message: Message, commit: Commit) -> None:
        assert commit.confirm()
        if message.pid == "p1":
            raise ValueError("after all")
        if message.pid == "p2":
            commit.fail("no matter")

    consumer = ScriptedConsumer(deliveries(3))
    async with working(app_with(handler, prefetch=3), consumer) as (_, state):
        await until(lambda: state.committed == 2 and state.rejected == 1)
    assert dict(asked(consumer)) == {"p0": Action.COMMIT, "p1": Action.REJECT, "p2": Action.COMMIT}


async def test_a_failure_goes_the_way_of_the_policy_with_hooks() -> None:
    app = App()
    commits: list[Commit] = []
    errors: list[tuple[str, str, Any]] = []
    succeeded: list[Any] = []

    @app.on_error
    def failed(error: Exception, message: Message, context: Context) -> None:
        errors.append((message.pid, str(error), context.get("mark")))

    @app.on_success
    def success(context: Context) -> None:
        succeeded.append(context["mark"])

    @app.job("q", prefetch=3, retry=Retry(max_attempts=2, dead_on=(KeyError,)))
    async def handler(commit: Commit, context: Context) -> None:
        context["mark"] = len(commits)
        commits.append(commit)

    consumer = ScriptedConsumer(deliveries(3))
    async with working(app, consumer) as (_, state):
        await until(lambda: len(commits) == 3)
        commits[0].fail(OSError("disk full"))
        commits[1].fail(KeyError("x"))
        commits[2].confirm()
        await until(lambda: state.rejected == 2 and succeeded == [2])
        assert (state.handler_errors, state.retried, state.dead_lettered) == (2, 1, 1)
    assert errors == [("p0", "disk full", 0), ("p1", "'x'", 1)]
    assert dict(asked(consumer)) == {"p0": Action.RETRY, "p1": Action.DEAD, "p2": Action.COMMIT}
    [reason] = [one.reason for batch in consumer.settled for one in batch if one.action is Action.RETRY]
    assert reason == "OSError: disk full"


async def test_a_handler_that_raises_takes_the_handle_s_power_away() -> None:
    kept: list[Commit] = []

    async def handler(commit: Commit) -> None:
        kept.append(commit)
        raise ValueError("no")

    consumer = ScriptedConsumer(deliveries(1))
    async with working(app_with(handler), consumer) as (_, state):
        await until(lambda: state.rejected == 1)
        assert kept[0].confirm() is False
    assert asked(consumer) == [("p0", Action.REJECT)]


async def test_what_is_never_decided_is_reported_and_rejected(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[Commit] = []

    async def handler(commit: Commit) -> None:
        kept.append(commit)
        if len(kept) == 2:  # behind its return, and long before its time is over
            asyncio.get_running_loop().call_soon(commit.confirm)

    consumer = ScriptedConsumer(deliveries(3))
    with caplog.at_level(logging.ERROR):
        async with working(app_with(handler, prefetch=3, commit_timeout=1), consumer) as (_, state):
            await until(lambda: state.rejected == 2 and state.committed == 1)
            assert kept[0].confirm() is False
    assert dict(asked(consumer)) == {"p0": Action.REJECT, "p1": Action.COMMIT, "p2": Action.REJECT}
    assert caplog.text.count("neither confirmed nor failed within 1 s") == 2


async def test_a_returned_future_decides() -> None:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(3)]
    foreign: concurrent.futures.Future[None] = concurrent.futures.Future()
    gate = asyncio.Event()

    async def later() -> None:
        await gate.wait()

    async def handler(message: Message) -> Any:
        match message.pid:
            case "p3":
                return foreign
            case "p4":
                return asyncio.create_task(later())
            case "p5":
                return later()
            case "p6":
                return "any other value"
            case "p7":
                return None
        return futures[int(message.pid[1:])]

    consumer = ScriptedConsumer(deliveries(8))
    async with working(app_with(handler, prefetch=8), consumer) as (_, state):
        await until(lambda: state.committed == 2 and len(state.deferred) == 6)
        futures[0].set_result(None)
        futures[1].set_exception(ValueError("not written"))
        futures[2].cancel()
        foreign.set_result(None)
        await until(lambda: state.committed == 4 and state.rejected == 2)
        gate.set()
        await until(lambda: state.committed == 6)
    rejected = [pid for pid, action in asked(consumer) if action is Action.REJECT]
    assert sorted(rejected) == ["p1", "p2"]


async def test_plain_functions_may_defer_as_well() -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)

    def handler(message: Message) -> Any:
        return pool.submit(lambda: None)

    consumer = ScriptedConsumer(deliveries(20))
    async with working(app_with(handler, prefetch=20), consumer) as (_, state):
        await until(lambda: state.committed == 20)
    pool.shutdown()


async def test_a_stop_waits_for_what_is_not_decided() -> None:
    kept: list[Commit] = []

    async def handler(commit: Commit) -> None:
        kept.append(commit)

    consumer = ScriptedConsumer(deliveries(2))
    async with working(app_with(handler, prefetch=2), consumer) as (worker, state):
        await until(lambda: len(kept) == 2)
        worker.stop()
        for _ in range(100):
            await asyncio.sleep(0)
        assert (len(state.deferred), state.committed, state.released) == (2, 0, 0)
        threading.Timer(0.05, lambda: [commit.confirm() for commit in kept]).start()
        await until(lambda: state.committed == 2)


async def test_a_late_confirmation_of_taken_over_work_decides_nothing() -> None:
    kept: list[Commit] = []

    async def handler(commit: Commit) -> None:
        kept.append(commit)

    consumer = ScriptedConsumer(deliveries(1))
    consumer.answer = lambda _: Outcome.SUPERSEDED
    async with working(app_with(handler), consumer) as (_, state):
        await until(lambda: len(kept) == 1)
        assert kept[0].confirm() is True
        await until(lambda: state.superseded == 1)
        assert state.committed == 0
