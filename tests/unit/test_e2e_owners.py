"""Clusters of runs that ended, and signals that end a run: decided without a cluster."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import owners
from e2e.locations import REPOSITORY

OWNING = """
import sys
from e2e import owners
with owners.owned("qw-e2e-1-ab"):
    print("owns", flush=True)
    sys.stdin.readline()
"""

REMOVING = """
import sys
from e2e.signals import INTERRUPTIONS
def remove():
    print("removing", flush=True)
    sys.stdin.readline()
    print("removed", flush=True)
with INTERRUPTIONS.removed_at_the_end(lambda: print("outer removed", flush=True)):
    with INTERRUPTIONS.removed_at_the_end(remove):
        print("up", flush=True)
        if sys.argv[1] == "waits":
            sys.stdin.readline()
"""

RUNNING = """
import sys
from e2e import commands
commands.END_SECONDS = 0.5
# As kind does, it starts another program, which has the pipe open as long as it lives.
commands.run(["sh", "-c", f"exec 3>{sys.argv[1]}; echo started >&3; sleep 600 & wait"])
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, for this process and those that it starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_cluster_is_left_over_once_the_run_that_made_it_was_killed(cache: Path) -> None:
    with started(OWNING) as run:
        assert line_of(run) == "owns"
        owner = owners.owner_of("qw-e2e-1-ab")
        assert owner is not None
        assert (owner.process, owner.lives) == (run.pid, True)
        assert owners.left() == []
        run.kill()
    assert owners.left() == ["qw-e2e-1-ab"]
    assert str(owners.owner_of("qw-e2e-1-ab")).endswith(f"{REPOSITORY}, which has ended")
    owners.forget("qw-e2e-1-ab")
    assert owners.left() == []


def test_a_cluster_that_no_run_made_for_itself_is_never_left_over(cache: Path) -> None:
    assert owners.owner_of("qw-dev") is None
    with owners.owned("qw-e2e-2-ab"):
        assert owners.left() == []
    assert owners.left() == ["qw-e2e-2-ab"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_a_second_one_does_not_stop_its_removal(number: signal.Signals) -> None:
    with started(REMOVING, "waits") as run:
        assert run.stdin is not None
        assert line_of(run) == "up"
        run.send_signal(number)
        assert line_of(run) == "removing"
        run.send_signal(number)
        assert line_of(run).startswith(f"{number.name}: still removing")
        run.stdin.write("\n")
        run.stdin.flush()
        assert [line_of(run), line_of(run)] == ["removed", "outer removed"]
        assert run.wait(60) != 0


def test_a_signal_during_the_removal_at_the_end_of_a_run_does_not_stop_it() -> None:
    with started(REMOVING, "ends") as run:
        assert [line_of(run), line_of(run)] == ["up", "removing"]
        run.send_signal(signal.SIGTERM)
        assert line_of(run).startswith("SIGTERM: still removing")
        out, _ = run.communicate("\n", timeout=60)
        assert out.split("\n")[:2] == ["removed", "outer removed"]
        assert run.returncode == 0


def test_what_a_program_started_ends_with_it_when_nobody_waits_any_more(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with started(RUNNING, str(held)) as run:
            assert select.select([reader], [], [], 60)[0], "the program began"
            assert os.read(reader, 100) == b"started\n"
            run.send_signal(signal.SIGINT)
            assert run.wait(60) != 0
        assert select.select([reader], [], [], 60)[0], "something still has the pipe open"
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
