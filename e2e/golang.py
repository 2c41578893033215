"""Which Go builds our programs: the installed one, or a toolchain fetched from the Go module proxy."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shutil
import ssl
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from e2e import cache
from e2e.commands import run
from e2e.failure import SetupError
from e2e.locations import cache_root
from e2e.progress import Progress
from e2e.versions import GO_TOOLCHAIN, GO_TOOLCHAIN_SUMS

DEFAULT_PROXY = "https://proxy.golang.org"
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
    installed = shutil.which("go")
    if installed is not None:
        reported = run([installed, "env", "GOVERSION"], environment={"GOTOOLCHAIN": "local"}).stdout.strip()
        version = parse_version(reported)
        if version >= parse_version(GO_TOOLCHAIN):
            return Go(Path(installed), (("GOTOOLCHAIN", "local"),), f"{reported} on the path")
        if version >= SWITCHES_SINCE:
            return Go(
                Path(installed),
                (("GOTOOLCHAIN", f"go{GO_TOOLCHAIN}"),),
                f"{reported} on the path, which fetches go{GO_TOOLCHAIN}",
            )
    fetched = fetch_toolchain(progress)
    return Go(
        fetched / "bin" / "go", (("GOTOOLCHAIN", "local"), ("GOROOT", str(fetched))), "fetched toolchain"
    )


def module_hash(archive: zipfile.ZipFile) -> str:
    """The `h1:` hash that Go's checksum database states for a module's zip file."""
    lines = []
    for name in sorted(info.filename for info in archive.infolist() if not info.is_dir()):
        digest = hashlib.sha256()
        with archive.open(name) as content:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
        lines.append(f"{digest.hexdigest()}  {name}\n")
    return "h1:" + base64.b64encode(hashlib.sha256("".join(lines).encode()).digest()).decode()


def proxy() -> str:
    """The first Go module proxy that GOPROXY names, else the public one."""
    for entry in re.split(r"[,|]", os.environ.get("GOPROXY", "")):
        if entry.startswith("http"):
            return entry.rstrip("/")
    return DEFAULT_PROXY


def fetch_toolchain(progress: Progress) -> Path:
    """The root of the pinned toolchain in the cache; fetched, and checked by its hash, when missing."""
    arch = architecture()
    expected = GO_TOOLCHAIN_SUMS[arch]
    version = f"v0.0.1-go{GO_TOOLCHAIN}.linux-{arch}"
    recipe = cache.Recipe("go", (("version", version), ("sum", expected)))

    def build(folder: Path) -> None:
        url = f"{proxy()}/golang.org/toolchain/@v/{version}.zip"
        packed = folder / "toolchain.zip"
        with progress.step(f"fetching the Go {GO_TOOLCHAIN} toolchain, 70 MB", "10 s"):
            try:
                context = ssl.create_default_context()
                with (
                    urllib.request.urlopen(url, timeout=60, context=context) as answer,
                    packed.open("wb") as out,
                ):
                    shutil.copyfileobj(answer, out)
            except OSError as error:
                raise SetupError(
                    f"go: not on the path, and its toolchain could not be fetched from {url} ({error}); "
                    "install Go 1.21 or later, or set GOPROXY to a proxy that answers"
                ) from error
            with zipfile.ZipFile(packed) as archive:
                actual = module_hash(archive)
                if actual != expected:
                    raise SetupError(
                        f"go toolchain {version}: hash {actual} is not the pinned {expected}; not used"
                    )
                prefix = f"golang.org/toolchain@{version}/"
                for info in archive.infolist():
                    relative = info.filename.removeprefix(prefix)
                    if info.is_dir() or not relative:
                        continue
                    target = folder / relative
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(info) as source, target.open("wb") as out:
                        shutil.copyfileobj(source, out)
                    # Module zips carry no modes; programs are exactly the files in these two folders.
                    if relative.startswith(("bin/", "pkg/tool/")):
                        target.chmod(0o755)
            packed.unlink()

    return cache.obtain(cache_root(), recipe, build, progress.say)
