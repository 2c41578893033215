"""What scripts/environment.sh leaves alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Any other wish of Python than "is the server there" would be an installation.
REFUSES_TO_INSTALL = """#!/bin/sh
case "$*" in *pip*) echo "$*" >>"$(dirname "$0")/../../asked"; exit 1;; esac
exit 0
"""


def test_a_linked_environment_of_another_clone_is_not_installed_into(tmp_path: Path) -> None:
    clone, other = tmp_path / "clone", tmp_path / "other"
    for folder in ("scripts", "operator", "requirements"):
        (clone / folder).mkdir(parents=True)
    for file in ("scripts/environment.sh", "pyproject.toml", "operator/pyproject.toml"):
        shutil.copy(ROOT / file, clone / file)
    shutil.copy(ROOT / "requirements" / "operator.txt", clone / "requirements")
    (other / "venv" / "bin").mkdir(parents=True)
    python = other / "venv" / "bin" / "python"
    python.write_text(REFUSES_TO_INSTALL)
    python.chmod(0o755)
    stamp = other / "venv" / "installed"
    stamp.write_text(f"run 0123456789abcdef {other}\n")
    (clone / ".venv").symlink_to(other / "venv")

    ran = subprocess.run(
        [str(clone / "scripts" / "environment.sh"), "run"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "a link to the environment of another clone" in ran.stdout
    assert not (other / "asked").exists(), "nothing was installed"
    assert stamp.read_text() == f"run 0123456789abcdef {other}\n"
