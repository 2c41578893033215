"""What the log says of settlements that did not end as they were asked for."""

from __future__ import annotations

import pytest

from worker_runtime.brokers.base import Outcome
from worker_runtime.surprises import Surprises


def test_it_says_what_the_broker_knows_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    surprises = Surprises("q")
    surprises.note(Outcome.SUPERSEDED, "p1", "its ack wait is over")
    surprises.note(Outcome.SUPERSEDED, "p2", "its ack wait is over")
    surprises.tell()
    surprises.note(Outcome.SUPERSEDED, "p3", "")
    surprises.note(Outcome.MISSING, "p4", "the consumer is gone")
    surprises.tell()
    surprises.tell()
    assert caplog.messages == [
        "2 settlements came too late to count: 2 superseded (its ack wait is over). Ids: p1, p2",
        "2 settlements came too late to count: 1 superseded (another worker had taken the message over), "
        "1 missing (the consumer is gone). Ids: p3, p4",
    ]
