"""Which Go builds our programs: the installed one, or a toolchain fetched from the Go module proxy."""

from __future__ import annotations

import json
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from e2e import cache
from e2e.commands import run
from e2e.failure import SetupError
from e2e.locations import cache_root
from e2e.packages import ensure_packages
from e2e.progress import Progress
from e2e.versions import GO_TOOLCHAIN, GO_TOOLCHAIN_SUMS

# The first release that can fetch another toolchain by itself.
SWITCHES_SINCE = (1, 21)


@dataclass(frozen=True, slots=True)
class Go:
    """A Go command and the environment that makes it satisfy our modules."""

    command: Path
    environment: tuple[tuple[str, str], ...]
    source: str


def architecture() -> str:
    """This machine's architecture in Go's words."""
    names = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
    machine = platform.machine()
    if machine not in names:
        raise SetupError(f"architecture {machine}: clusters are built for x86_64 and aarch64 only")
    return names[machine]


def parse_version(text: str) -> tuple[int, ...]:
    """`go1.26.8` or `1.26` as numbers; empty where there are none."""
    found = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def find(progress: Progress) -> Go:
    """The installed Go where it can serve, else the pinned toolchain, fetched once. Raises SetupError."""
    ensure_packages({"go": "golang-go"}, "to build the programs of the cluster", progress)
    installed = Path(shutil.which("go") or "go")
    reported = run([installed, "env", "GOVERSION"], environment={"GOTOOLCHAIN": "local"}).stdout.strip()
    version = parse_version(reported)
    if version >= parse_version(GO_TOOLCHAIN):
        return Go(installed, (("GOTOOLCHAIN", "local"),), f"{reported} on the path")
    if version >= SWITCHES_SINCE:
        return Go(
            installed,
            (("GOTOOLCHAIN", f"go{GO_TOOLCHAIN}"),),
            f"{reported} on the path, which fetches go{GO_TOOLCHAIN}",
        )
    fetched = fetch_toolchain(installed, progress)
    return Go(
        fetched / "bin" / "go", (("GOTOOLCHAIN", "local"), ("GOROOT", str(fetched))), "fetched toolchain"
    )


def fetch_toolchain(installed: Path, progress: Progress) -> Path:
    """The root of the pinned toolchain in the cache. An old Go fetches it as what it is: a module."""
    arch = architecture()
    expected = GO_TOOLCHAIN_SUMS[arch]
    version = f"v0.0.1-go{GO_TOOLCHAIN}.linux-{arch}"
    recipe = cache.Recipe("go", (("version", version), ("sum", expected)))

    def build(folder: Path) -> None:
        with progress.step(f"fetching the Go {GO_TOOLCHAIN} toolchain, 70 MB", "15 s"):
            with TemporaryDirectory(prefix="queueworker-go-") as name:
                fetched = run(
                    [installed, "mod", "download", "-json", f"golang.org/toolchain@{version}"],
                    environment={"GOPATH": name, "GOMODCACHE": f"{name}/mod", "GOFLAGS": "-modcacherw"},
                    directory=Path(name),
                    timeout=600,
                )
                module = json.loads(fetched.stdout)
                if module["Sum"] != expected:
                    raise SetupError(
                        f"go toolchain {version}: hash {module['Sum']} is not the pinned {expected}; not used"
                    )
                shutil.copytree(module["Dir"], folder, dirs_exist_ok=True)
            # Module zips carry no modes; programs are exactly the files in these two folders.
            for programs in (folder / "bin", folder / "pkg" / "tool"):
                for file in programs.rglob("*"):
                    if file.is_file():
                        file.chmod(0o755)

    return cache.obtain(cache_root(), recipe, build, progress.say)
