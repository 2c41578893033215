"""Whether a machine has room for the inotify instances of a cluster's nodes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from e2e import doctor, inotify
from e2e.failure import SetupError
from e2e.inotify import Room


def test_a_machine_with_little_room_is_told_what_was_read_and_the_way_out() -> None:
    found = doctor.inotify_finding(Room(limit=128, used=90))
    assert not found.usable
    assert "max_user_instances is 128, of which root uses 90" in found.text
    assert "room for 1 more cluster(s) of one node, or 0 of three" in found.text
    assert "sysctl -w fs.inotify.max_user_instances=1024" in found.text
    assert doctor.inotify_finding(Room(limit=8192, used=90)).usable


def test_a_cluster_whose_nodes_would_not_start_is_refused() -> None:
    tight = Room(limit=128, used=90)
    inotify.check("qw-dev", 1, tight)
    with pytest.raises(
        SetupError, match=r"cluster qw-dev: its 3 node\(s\) take .* only 38 are left .*sysctl"
    ):
        inotify.check("qw-dev", 3, tight)


def test_what_cannot_be_read_refuses_nothing() -> None:
    unread = Room(limit=128, used=None)
    inotify.check("qw-dev", 3, unread)
    found = doctor.inotify_finding(unread)
    assert found.usable
    assert "cannot be read" in found.text


def test_an_instance_that_is_made_is_counted(tmp_path: Path) -> None:
    # A /proc with this process alone: those of the machine come and go meanwhile.
    processes = tmp_path / "proc"
    processes.mkdir()
    (processes / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    before = inotify.room(processes=processes)
    descriptor = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    try:
        after = inotify.room(processes=processes)
    finally:
        os.close(descriptor)
    assert before is not None
    assert after is not None
    assert after.limit == before.limit
    if os.geteuid() != 0:
        assert (before.used, after.used) == (None, None), "what root's processes have open cannot be read"
    else:
        assert (before.used, after.used) == (0, 1)


def test_a_kernel_without_the_limit_refuses_nothing(tmp_path: Path) -> None:
    inotify.check("qw-dev", 3, inotify.room(limit=tmp_path / "absent"))
