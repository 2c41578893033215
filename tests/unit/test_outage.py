"""How the loops of a worker tell the loss of the broker in common."""

from __future__ import annotations

import logging

import pytest

from worker_runtime.brokers.base import BrokerRefusedError, BrokerUnavailableError
from worker_runtime.outage import Outage

GONE = BrokerUnavailableError("gone")


@pytest.fixture
def outage() -> Outage:
    times = iter([10.0, 12.5, 20.0, 21.0])
    return Outage(logging.getLogger("test"), {}, lambda: next(times))


def test_a_loss_that_several_notice_is_told_once_and_so_is_its_end(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for what in ("renewal", "recovery", "renewal", "recovery"):
        outage.failed(what, GONE)
    # A read that a server without enough replicas still answers does not mean that renewals work.
    outage.worked("recovery")
    outage.failed("recovery", GONE)
    outage.worked("renewal")
    outage.worked("renewal")
    assert caplog.messages == [
        "renewal fails, the broker is lost: gone",
        "renewal works again after 2.5 s",
    ]
    outage.failed("recovery", GONE)
    assert len(caplog.messages) == 3


def test_a_refusal_is_told_by_each_once_also_during_a_loss(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed("renewal", GONE)
    for _ in range(2):
        outage.failed("renewal", BrokerRefusedError("no right"))
        outage.failed("recovery", BrokerRefusedError("no right"))
    assert caplog.messages[1:] == ["renewal fails: no right", "recovery fails: no right"]
    outage.worked("recovery")
    outage.failed("recovery", BrokerRefusedError("no right"))
    assert len(caplog.messages) == 4
