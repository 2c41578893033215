"""What is read of an up.json that somebody else may have written into, and what a run keeps on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from queueworker_operator.act.processes import started_at
from queueworker_operator.run.local_broker import Located
from queueworker_operator.run.local_credentials import Credentials
from queueworker_operator.run.local_leftovers import leftovers
from queueworker_operator.run.local_state import StateDirectory


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


def test_the_credentials_of_a_former_broker_stay_beside_those_of_the_present_one(tmp_path: Path) -> None:
    """In a change to another server, workers of the older revision still sign in to theirs."""
    credentials = Credentials(tmp_path)
    told = {}
    for server in ("one", "two"):
        files = (("password", server.encode()),)
        url = credentials.kept("work", Located(f"nats://{server}:4222", files=files)).url
        told[server] = Path(parse_qs(urlsplit(url).query)["credentials"][0]) / "password"
    assert {server: path.read_text() for server, path in told.items()} == {"one": "one", "two": "two"}
    files = (("password", b"rotated"),)
    credentials.kept("work", Located("nats://one:4222", files=files))
    assert told["one"].read_text() == "rotated", "in place, where its workers read it"
    credentials.remove()
    assert not any(path.exists() for path in told.values())


def test_an_up_json_that_is_nested_too_deep_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text("[" * 100_000)
    directory = StateDirectory(tmp_path)
    assert directory.acquire() == {}
    directory.release()
