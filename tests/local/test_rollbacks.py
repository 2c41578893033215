"""`python -m e2e rollbacks`, with few rounds: the command itself, and that it sees what it is there for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from e2e.rollback_lane import Kind
from e2e.rollbacks import rollbacks, take_back
from worker_runtime.chaos.record import Record

QUIET = Console(quiet=True)


def test_rounds_under_kills_lose_and_strand_nothing() -> None:
    asked = ["--rounds", "2", "--lanes", "2", "--seed", "1", "--pause", "1", "--json"]
    done = CliRunner().invoke(rollbacks, asked)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["ended"], report["lost"]) == (2, 0)
    assert report["stranded"] == report["not_idle"] == report["faults"] == []
    assert sum(report["kills"].values()) > 0
    assert sum(report["kinds"].values()) == 2
    assert set(report["kinds"]) <= set(Kind)
    assert report["handled"] == report["published"] > 0


async def test_what_does_not_end_is_told(tmp_path: Path) -> None:
    report = await take_back(1, 1, 1, patience=0.01, pause=1, directory=tmp_path, console=QUIET)
    assert not report.good
    assert report.ended == 0
    (text,) = report.not_idle
    assert "the first workers" in text
    assert str(tmp_path) in text


@pytest.mark.soak
async def test_what_the_record_says_besides_is_a_fault(tmp_path: Path) -> None:
    """Somebody handles what nobody published."""
    running = asyncio.create_task(
        take_back(1, 1, 1, patience=120, pause=60, directory=tmp_path, console=QUIET)
    )
    record = tmp_path / "lane-0" / "record"
    while not record.exists():  # noqa: ASYNC110 - made by another process
        await asyncio.sleep(0.05)
    Record(record).finished(1_000_000, "somebody")
    Record(record).started(1_000_000, "somebody")
    report = await running
    assert not report.good
    assert report.ended == 1
    assert any("nobody published" in fault for fault in report.faults)
