"""The loop of one worker against a consumer that a test controls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.runtime.scripted import ScriptedConsumer, deliveries
from worker_runtime import App, Commit, Message
from worker_runtime.brokers.base import Action, Delivery, Outcome, Settlement
from worker_runtime.state import QueueState
from worker_runtime.worker import Worker

EXPIRY = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not happened():  # noqa: ASYNC110 - each turn of the loop is a step of the worker
            await asyncio.sleep(0)


@asynccontextmanager
async def working(
    app: App, consumer: ScriptedConsumer, clock: Clock | None = None, verify: Any = None
) -> AsyncIterator[tuple[Worker, QueueState]]:
    job = app.jobs["q"]
    state = QueueState("q", job.name, job.coroutines, job.prefetch, EXPIRY, clock or Clock())

    async def confirm() -> bool:
        state.confirmed_at = state.clock()
        return True

    worker = Worker(job, state, consumer, verify or confirm, app.hooks, app.resources)
    run = asyncio.create_task(worker.run())
    try:
        yield worker, state
        consumer.let_go()
        worker.stop()
        async with asyncio.timeout(120):
            await run
    finally:
        run.cancel()


def app_with(handler: Any, **limits: Any) -> App:
    app = App()
    app.job("q", **limits)(handler)
    return app


async def test_a_slot_is_freed_only_by_the_broker_s_confirmation() -> None:
    ran: list[str] = []

    async def handler(message: Message) -> None:
        ran.append(message.pid)

    consumer = ScriptedConsumer(deliveries(10))
    consumer.hold()
    async with working(app_with(handler, prefetch=4), consumer) as (_, state):
        await until(lambda: len(ran) == 4 and consumer.settled)
        for _ in range(100):
            await asyncio.sleep(0)
        assert consumer.asked == [4], "nothing is asked for while nothing is confirmed"
        assert state.gauges() == (0, 0, 4)
        consumer.let_go()
        await until(lambda: state.committed == 10)
        assert state.gauges() == (0, 0, 0)
    assert len(consumer.settled) > 3, "answers came in several steps"
    assert max(consumer.exposed) == 4, "room is made by answers only, also when some are still missing"


async def test_results_that_wait_go_out_together() -> None:
    async def handler() -> None: ...

    consumer = ScriptedConsumer(deliveries(1))
    consumer.hold()
    async with working(app_with(handler, prefetch=50), consumer) as (_, state):
        await until(lambda: consumer.settled)
        consumer.add(deliveries(49, start=1))
        await until(lambda: state.gauges() == (0, 0, 50))
        consumer.let_go()
        await until(lambda: state.committed == 50)
    assert [len(batch) for batch in consumer.settled] == [1, 49]


async def test_an_unknown_outcome_is_neither_success_nor_failure(caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    succeeded: list[str] = []
    failed: list[str] = []

    @app.on_success
    def success(message: Message) -> None:
        succeeded.append(message.pid)

    @app.on_error
    def error(message: Message) -> None:
        failed.append(message.pid)

    @app.job("q", prefetch=3)
    async def handler() -> None: ...

    consumer = ScriptedConsumer(deliveries(6))
    consumer.answer = lambda one: Outcome.UNKNOWN if one.delivery.pid == "p1" else Outcome.COMMITTED
    with caplog.at_level(logging.WARNING):
        async with working(app, consumer) as (_, state):
            await until(lambda: state.committed == 5 and state.unknown == 1)
            await until(lambda: len(succeeded) == 5)
            assert state.gauges() == (0, 0, 0), "its slot is free again"
    assert succeeded == ["p0", "p2", "p3", "p4", "p5"]
    assert failed == []
    assert [one.delivery.pid for batch in consumer.settled for one in batch].count("p1") == 1
    assert "lost for 1 settlements" in caplog.text


async def test_success_hooks_wait_for_the_confirmation() -> None:
    app = App()
    order: list[str] = []
    app.on_success(lambda: order.append("success"))

    @app.job("q")
    async def handler() -> None:
        order.append("ran")

    consumer = ScriptedConsumer(deliveries(1))
    consumer.hold()
    async with working(app, consumer) as (_, state):
        await until(lambda: state.gauges() == (0, 0, 1) and consumer.settled)
        for _ in range(50):
            await asyncio.sleep(0)
        assert order == ["ran"]
        consumer.let_go()
        await until(lambda: order == ["ran", "success"])


async def test_slow_success_hooks_hold_receiving_back() -> None:
    app = App()
    gate = asyncio.Event()
    hooked: list[str] = []

    @app.on_success
    async def slow(message: Message) -> None:
        await gate.wait()
        hooked.append(message.pid)

    @app.job("q", prefetch=4)
    async def handler() -> None: ...

    consumer = ScriptedConsumer(deliveries(100))
    async with working(app, consumer) as (_, state):
        await until(lambda: state.committed >= 4)
        for _ in range(200):
            await asyncio.sleep(0)
        assert state.received <= 8, "hooks that lag cannot pile up without bound"
        gate.set()
        await until(lambda: len(hooked) == 100)


async def test_a_consumer_that_raises_leaves_unknown_outcomes_and_a_working_loop() -> None:
    async def handler() -> None: ...

    class Raising(ScriptedConsumer):
        async def settle(self, settlements: Any, on_result: Any) -> None:
            if not self.settled:
                self.settled.append(list(settlements))
                on_result(settlements[0], Outcome.COMMITTED, "")
                raise RuntimeError("a bug of a third party")
            await super().settle(settlements, on_result)

    consumer = Raising(deliveries(10))
    async with working(app_with(handler, prefetch=10), consumer) as (_, state):
        await until(lambda: state.committed + state.unknown == 10)
        assert state.unknown == len(consumer.settled[0]) - 1 > 0
        assert state.gauges() == (0, 0, 0)
        consumer.add(deliveries(2, start=10))
        await until(lambda: state.committed + state.unknown == 12)
        assert state.unknown == len(consumer.settled[0]) - 1


async def test_what_another_worker_took_over_while_it_waited_is_not_run() -> None:
    clock, gate = Clock(), asyncio.Event()
    ran: list[str] = []

    async def handler(message: Message) -> None:
        ran.append(message.pid)
        await gate.wait()

    async def verify() -> bool:
        lost = next(one for one in state.held() if one.pid == "p2")
        state.lost[id(lost)] = lost
        state.confirmed_at = clock()
        return True

    consumer = ScriptedConsumer(deliveries(4))
    async with working(app_with(handler, prefetch=4), consumer, clock, verify) as (_, state):
        await until(lambda: ran == ["p0"])
        clock.now += EXPIRY  # nobody renewed in the meantime
        gate.set()
        await until(lambda: state.committed == 3)
        assert ran == ["p0", "p1", "p3"]
        assert state.superseded == 1
        assert state.gauges() == (0, 0, 0)
    assert "p2" not in [one.delivery.pid for batch in consumer.settled for one in batch]


async def test_deliveries_that_arrived_late_are_checked_before_they_start() -> None:
    """The answer to a receive was stuck behind a stalled loop for longer than a renewal period."""
    clock, checks = Clock(), 0

    async def handler() -> None: ...

    async def verify() -> bool:
        nonlocal checks
        checks += 1
        state.confirmed_at = clock()
        return True

    class Late(ScriptedConsumer):
        async def receive(self, limit: int) -> Any:
            received = await super().receive(limit)
            clock.now += EXPIRY / 2
            state.confirmed_at = clock()  # a renewal that did not know of them
            clock.now += 1
            return received

    consumer = Late(deliveries(3))
    async with working(app_with(handler, prefetch=3), consumer, clock, verify) as (_, state):
        await until(lambda: state.committed == 3)
        assert checks >= 1


async def test_nothing_starts_while_the_check_gets_no_answer_and_a_stop_gives_all_back() -> None:
    clock = Clock()

    async def handler() -> None:
        raise AssertionError("must not run")

    async def verify() -> bool:
        return False

    consumer = ScriptedConsumer(deliveries(3))

    async def receive_late(limit: int) -> Any:
        received = await ScriptedConsumer.receive(consumer, limit)
        clock.now += EXPIRY
        return received

    consumer.receive = receive_late  # type: ignore[method-assign]
    async with working(app_with(handler, prefetch=3), consumer, clock, verify) as (_, state):
        await until(lambda: state.gauges() == (3, 0, 0))
    assert [(one.delivery.pid, one.action) for batch in consumer.settled for one in batch] == [
        ("p0", Action.RELEASE),
        ("p1", Action.RELEASE),
        ("p2", Action.RELEASE),
    ]
    assert state.released == 3


async def test_releases_of_a_stop_go_out_in_one_call_in_order() -> None:
    gate = asyncio.Event()

    async def handler() -> None:
        await gate.wait()

    consumer = ScriptedConsumer(deliveries(20))
    async with working(app_with(handler, coroutines=2, prefetch=20), consumer) as (worker, state):
        await until(lambda: state.gauges() == (18, 2, 0))
        worker.stop()
        await until(lambda: state.released == 18)
        assert state.gauges() == (0, 2, 0)
        gate.set()
    [released] = [batch for batch in consumer.settled if batch[0].action is Action.RELEASE]
    assert [one.delivery.pid for one in released] == [f"p{n}" for n in range(2, 20)]
    assert state.committed == 2


async def test_a_handler_that_never_waits_lets_the_loop_turn() -> None:
    """Its results are settled while it still has work, and the timer of others fires."""
    settled_early: list[bool] = []

    def is_early(one: Settlement) -> Outcome:
        settled_early.append(state.gauges()[0] > 0)
        return Outcome.COMMITTED

    async def handler() -> None: ...

    consumer = ScriptedConsumer(deliveries(400))
    consumer.answer = is_early
    async with working(app_with(handler, prefetch=400), consumer) as (_, state):
        await until(lambda: state.committed == 400)
    assert any(settled_early)


async def test_coroutines_is_the_number_of_handlers_at_once() -> None:
    running, most = 0, 0

    async def handler(payload: dict[str, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    consumer = ScriptedConsumer(deliveries(100))
    async with working(app_with(handler, coroutines=7, prefetch=50), consumer) as (_, state):
        await until(lambda: state.committed == 100)
    assert most == 7


def test_gauges_add_up_in_the_middle_of_a_transition() -> None:
    """Another thread may look between the steps of one; the sum stays the number of outstanding."""
    state = QueueState("q", "job", 2, 10, EXPIRY, Clock())
    held: list[Delivery] = deliveries(5)
    state.outstanding.update((id(one), one) for one in held)
    state.waiting.extend(held)
    assert state.gauges() == (5, 0, 0)
    state.running = 1  # counted before it has left the buffer
    assert state.gauges() == (5, 0, 0)
    state.waiting.popleft()
    assert state.gauges() == (4, 1, 0)
    state.running = 0
    assert state.gauges() == (4, 0, 1)
    state.outstanding.clear()  # settled before the reader saw the rest
    assert state.gauges() == (0, 0, 0)


async def test_a_handler_that_is_cancelled_for_its_lost_message_decides_nothing_any_more() -> None:
    handles: dict[str, Commit] = {}
    ended: list[str] = []

    async def handler(message: Message, commit: Commit) -> None:
        handles[message.pid] = commit
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(message.pid)

    consumer = ScriptedConsumer(deliveries(2))
    app = app_with(handler, coroutines=2, prefetch=2, cancel_superseded=True)
    async with working(app, consumer) as (worker, state):
        await until(lambda: len(handles) == 2)
        lost = next(one for one in state.held() if one.pid == "p0")
        lost.superseded = True
        worker.superseded([lost])
        await until(lambda: ended == ["p0"])
        assert [one.pid for one in state.held()] == ["p1"], "its place is free, its neighbour goes on"
        assert handles["p0"].confirm() is False
        assert state.superseded == 1
        other = state.held()[0]
        other.superseded = True
        worker.superseded([other])
        await until(lambda: ended == ["p0", "p1"])
    assert consumer.settled == []
