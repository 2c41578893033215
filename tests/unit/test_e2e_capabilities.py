"""The OCI runtime wrapper, run as the engine runs it: a program of its own, before a runc that records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e import oci_wrapper

WRAPPER = Path(oci_wrapper.__file__)
SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")


@pytest.fixture
def runc(tmp_path: Path) -> Path:
    """A program that writes down its arguments and what its input file said when it was started."""
    program = tmp_path / "runc"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$RECORD"\nexit 7\n')
    program.chmod(0o755)
    return program


def start(runc: Path, *arguments: str) -> list[str]:
    record = runc.parent / "arguments"
    environment = {**os.environ, "QUEUEWORKER_RUNC": str(runc), "RECORD": str(record)}
    result = subprocess.run(
        [sys.executable, "-I", str(WRAPPER), *arguments], env=environment, check=False, timeout=240
    )
    assert result.returncode == 7, "the wrapper's code is runc's"
    return record.read_text().splitlines()


def process(*capabilities: str) -> dict[str, Any]:
    return {"args": ["sleep"], "capabilities": {name: list(capabilities) for name in SETS}}


def own_capabilities() -> frozenset[str]:
    mask = oci_wrapper.bounding_set(Path("/proc/self/status").read_text())
    return frozenset(f"CAP_{name}" for name in oci_wrapper.CAPABILITIES) - oci_wrapper.missing_capabilities(
        mask
    )


def test_create_asks_for_no_capability_that_the_machine_lacks(tmp_path: Path, runc: Path) -> None:
    everything = [f"CAP_{name}" for name in oci_wrapper.CAPABILITIES]
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"hostname": "node", "process": process(*everything)}))

    arguments = start(runc, "--root", "/r", "create", "--bundle", str(bundle), "--pid-file", "/p", "id")

    assert arguments == ["--root", "/r", "create", "--bundle", str(bundle), "--pid-file", "/p", "id"]
    written = json.loads((bundle / "config.json").read_text())
    assert written["hostname"] == "node"
    for name in SETS:
        assert set(written["process"]["capabilities"][name]) == own_capabilities()


def test_exec_filters_the_process_file(tmp_path: Path, runc: Path) -> None:
    file = tmp_path / "process.json"
    everything = [f"CAP_{name}" for name in oci_wrapper.CAPABILITIES]
    file.write_text(json.dumps(process(*everything)))

    start(runc, "exec", f"--process={file}", "--detach", "id")

    written = json.loads(file.read_text())
    assert written["args"] == ["sleep"]
    assert all(set(written["capabilities"][name]) == own_capabilities() for name in SETS)


def test_other_commands_touch_nothing(tmp_path: Path, runc: Path) -> None:
    file = tmp_path / "process.json"
    file.write_text("not json")

    assert start(runc, "kill", "id", "KILL") == ["kill", "id", "KILL"]
    assert file.read_text() == "not json"


@pytest.mark.parametrize(
    ("mask", "missing"),
    [
        ("000001fffeffffff", {"CAP_SYS_RESOURCE"}),
        ("000001ffffffffff", set()),
        ("000001fffffffffe", {"CAP_CHOWN"}),
        ("000000ffffffffff", {"CAP_CHECKPOINT_RESTORE"}),
    ],
)
def test_a_missing_bit_is_named(mask: str, missing: set[str]) -> None:
    status = f"Name:\tpython\nCapEff:\t0000000000000000\nCapBnd:\t{mask}\n"
    assert oci_wrapper.missing_capabilities(oci_wrapper.bounding_set(status)) == missing


def test_only_the_missing_are_removed_and_order_is_kept() -> None:
    before = process("CAP_SYS_RESOURCE", "CAP_KILL", "CAP_CHOWN")
    after = oci_wrapper.without(before, frozenset({"CAP_SYS_RESOURCE"}))
    assert after["capabilities"]["bounding"] == ["CAP_KILL", "CAP_CHOWN"]
    assert before["capabilities"]["bounding"][0] == "CAP_SYS_RESOURCE"


def test_a_process_without_capabilities_is_left_as_it_is() -> None:
    assert oci_wrapper.without({"args": ["true"]}, frozenset({"CAP_KILL"})) == {"args": ["true"]}
