"""What is read of an up.json that somebody else may have written into."""

from __future__ import annotations

import os
from typing import Any

import pytest

from queueworker_operator.act.processes import started_at
from queueworker_operator.run.local_leftovers import leftovers


def test_workers_that_still_run_are_found_with_and_without_a_resource() -> None:
    pid = os.getpid()
    row = {"pid": pid, "started": started_at(pid)}
    gone = row | {"started": 1}
    assert leftovers({"resources": {"a": {"processes": [row, gone]}}, "orphans": {"b": [row]}}) == [
        (pid, row["started"]),
        (pid, row["started"]),
    ]


@pytest.mark.parametrize(
    "state",
    [
        {"resources": []},
        {"resources": None, "orphans": None},
        {"resources": {"a": None}},
        {"resources": {"a": {"processes": None}}},
        {"resources": {"a": {"processes": ["x", None]}}},
        {"orphans": {"a": 1}},
    ],
)
def test_what_is_no_list_of_processes_tells_of_none(state: dict[str, Any]) -> None:
    assert leftovers(state) == []
