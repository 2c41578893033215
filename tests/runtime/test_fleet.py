"""Many processes as one, with a clock in the test's hand."""

from __future__ import annotations

import json
import logging
from typing import Any

from worker_runtime.brokers.base import Delivery
from worker_runtime.execution import LONGEST_REASON, describe
from worker_runtime.fleet import Fleet
from worker_runtime.logs import JsonFormatter, TextFormatter, current_delivery
from worker_runtime.state import QueueState


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def report(committed: int, problem: str = "", **fields: Any) -> dict[str, Any]:
    state = QueueState("q", "job", 1, 10, 60.0)
    state.phase = "receiving"
    state.committed = committed
    state.durations.observe(0.2)
    held = Delivery("p", "q", b"{}", 0.0, 0, None)
    state.outstanding[id(held)] = held
    state.waiting.append(held)
    return {
        "phase": "receiving",
        "problem": problem,
        "broker": "redis://shown",
        "receiving": not problem,
        "cpu_seconds": committed / 10,
        "queues": {"q": state.report()},
    } | fields


def test_no_counter_goes_back_when_a_process_dies() -> None:
    fleet = Fleet("r1", 2, 60.0, Clock())
    for index in (0, 1):
        fleet.started(index, 100 + index)
        fleet.reported(index, report(committed=5))
    both = fleet.status()
    assert both["queues"]["q"]["committed"] == 10
    assert fleet.cpu_seconds() == 1.0
    assert (both["queues"]["q"]["waiting"], both["queues"]["q"]["prefetch"]) == (2, 20)
    assert (both["state"], both["receiving"], both["broker"]) == ("receiving", True, "redis://shown")

    fleet.ended(1)
    one = fleet.status()
    assert one["queues"]["q"]["committed"] == 10
    assert fleet.cpu_seconds() == 1.0
    assert (one["queues"]["q"]["waiting"], one["queues"]["q"]["prefetch"]) == (1, 10)
    assert one["receiving"] is False
    assert one["processes"][1] == {"index": 1, "pid": 101, "alive": False, "restarts": 0}
    assert "is down" in fleet.ready()

    fleet.started(1, 102)
    assert "starting" in fleet.ready()
    fleet.reported(1, report(committed=2))
    assert fleet.ready() == ""
    assert fleet.status()["queues"]["q"]["committed"] == 12
    assert fleet.cpu_seconds() == 1.2
    assert sum(fleet.queues()["q"]["durations"]) == 3


def test_who_took_the_place_of_a_process_that_died_has_to_stand_for_a_while_before_it_is_ready() -> None:
    clock = Clock()
    fleet = Fleet("r1", 1, 60.0, clock)
    fleet.started(0, 100)
    fleet.reported(0, report(1))
    assert fleet.ready() == "", "the first one is ready at once"

    fleet.ended(0)
    fleet.started(0, 101, restarts=1)
    fleet.reported(0, report(1))
    assert "(pid 101) has not run for 10 s yet" in fleet.ready()
    assert fleet.status()["receiving"] is True, "it works meanwhile"
    assert fleet.status()["processes"][0]["restarts"] == fleet.restarts() == 1
    clock.now += 10.0
    assert fleet.ready() == ""


def test_silence_longer_than_the_expiry_is_death() -> None:
    clock = Clock()
    fleet = Fleet("r1", 2, 60.0, clock)
    fleet.started(0, 100)
    fleet.started(1, 101)
    clock.now = 50.0
    fleet.reported(0, report(1))
    assert fleet.alive() == ""
    clock.now = 61.0
    assert "worker process 1 (pid 101)" in fleet.alive()
    fleet.reported(1, report(1))
    assert fleet.alive() == ""


def test_readiness_names_what_is_missing() -> None:
    fleet = Fleet("r1", 2, 60.0, Clock())
    assert "0 of 2" in fleet.ready()
    fleet.started(0, 100)
    fleet.started(1, 101)
    fleet.reported(0, report(1))
    fleet.reported(1, report(1, problem="queue q: no route to redis"))
    assert "no route to redis" in fleet.ready()
    fleet.reported(1, report(1))
    assert fleet.ready() == ""
    fleet.stopping = True
    assert fleet.ready() == "stopping"
    assert fleet.status()["receiving"] is False


def test_log_lines_carry_the_message_that_is_handled() -> None:
    record = logging.makeLogRecord(
        {"name": "mine", "msg": "hello %s", "args": ("you",), "levelname": "INFO", "odd": object}
    )
    token = current_delivery.set(Delivery("p1", "q1", b"{}", 0.0, 0, None))
    try:
        line = json.loads(JsonFormatter("r1", "w1").format(record))
        text = TextFormatter("w1").format(record)
    finally:
        current_delivery.reset(token)
    assert line["msg"] == "hello you"
    assert (line["queue"], line["message_id"], line["revision"], line["worker"]) == ("q1", "p1", "r1", "w1")
    assert line["level"] == "info"
    assert line["ts"].endswith("Z")
    assert "class 'object'" in line["odd"], "what JSON does not know is written as text"
    assert "hello you" in text
    assert "message_id=p1" in text


def test_reasons_are_one_capped_line() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(ValueError("two\nlines")) == "ValueError: two lines"
    assert describe(KeyError()) == "KeyError"
    assert len(describe(ValueError("x" * 10_000))) == LONGEST_REASON
    assert describe(Unreadable()).startswith("Unreadable: ")
