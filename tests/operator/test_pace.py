"""Turns at something that may be done only so often."""

from __future__ import annotations

import pytest

from queueworker_operator.run.pace import Pace


def test_some_at_once_and_then_each_at_a_time_of_its_own() -> None:
    pace = Pace(at_once=3, per_second=2)
    turns = [pace.turn(100.0) for _ in range(7)]
    assert turns == pytest.approx([100, 100, 100, 100.5, 101, 101.5, 102])


def test_after_a_rest_some_are_done_at_once_again() -> None:
    pace = Pace(at_once=3, per_second=2)
    for _ in range(5):
        pace.turn(100.0)
    assert [pace.turn(101.0), pace.turn(101.0)] == pytest.approx([101.5, 102]), "behind those who wait"
    assert [pace.turn(200.0) for _ in range(4)] == pytest.approx([200, 200, 200, 200.5])
