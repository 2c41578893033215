"""Installing what is missing from the distribution, where that is possible, else saying how to get it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from e2e.commands import run
from e2e.failure import SetupError
from e2e.progress import Progress


def can_install() -> bool:
    """Whether this is Debian or a derivative, with root's rights."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and Path("/etc/debian_version").exists()


def ensure_packages(programs: Mapping[str, str], why: str, progress: Progress) -> None:
    """Install the packages of those `programs` (program to package) that are missing. Raises SetupError."""
    missing = {program: package for program, package in programs.items() if _which(program) is None}
    if not missing:
        return
    packages = sorted(set(missing.values()))
    names = ", ".join(sorted(missing))
    if not can_install():
        raise SetupError(
            f"{names}: not found, needed {why}; install with `apt-get install {' '.join(packages)}` "
            "as root, or your system's equivalent"
        )
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    install = [
        "apt-get",
        "install",
        "-y",
        "--no-install-recommends",
        "-o",
        "DPkg::Lock::Timeout=300",
        *packages,
    ]
    with progress.step(f"installing the Debian packages {', '.join(packages)}, needed {why}", "30 s"):
        if run(install, environment=environment, check=False).returncode != 0:
            run(["apt-get", "update"], environment=environment)
            run(install, environment=environment)
    absent = sorted(program for program in missing if _which(program) is None)
    if absent:
        raise SetupError(f"{', '.join(absent)}: still not found after installing {', '.join(packages)}")


def _which(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
