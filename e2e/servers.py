"""Redis and Valkey servers newer than this machine's distribution has, out of Debian's later suites.

A server is a folder with its program, its libraries and the C library that belongs to them, started through
that library's own loader. It is an ordinary process of this machine, so tests kill, pause and restart it, and
give it ports and private directories, as they do with the installed one; a container would take a daemon,
root's rights and a second set of these. apt resolves and downloads in a private state: it checks the
archive's signature and every checksum, needs no rights, and leaves the machine's own packages alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from e2e import cache
from e2e.commands import run
from e2e.failure import SetupError
from e2e.locations import REPOSITORY, cache_root
from e2e.packages import ensure_packages
from e2e.progress import Progress
from e2e.versions import DEBIAN_MIRROR, SERVERS

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
RECORD = "server.json"

_LAUNCHER = """#!/bin/sh
# Started by its own loader: the libraries of this machine are older than the program.
lib=$(dirname "$(dirname "$(readlink -f "$0")")")/lib
exec "$lib/loader" --argv0 redis-server --library-path "$lib" "$lib/{program}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Server:
    """One server that can be had. `line` is what its version must begin with."""

    name: str
    suite: str
    package: str
    program: str
    line: str

    @property
    def product(self) -> str:
        """`redis` or `valkey`, as the server names itself."""
        return self.program.removesuffix("-server")

    def recipe(self) -> cache.Recipe:
        """What determines the entry. The last number of the version is the archive's choice of the day."""
        facts = (
            ("suite", self.suite),
            ("package", self.package),
            ("line", self.line),
            ("launcher", _LAUNCHER),
            ("machine", os.uname().machine),
        )
        return cache.Recipe(f"server-{self.name}", facts)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A server in the cache. `version` is what it says of itself, `packages` what Debian calls its parts."""

    server: Server
    version: str
    folder: Path
    packages: dict[str, str]

    @property
    def path(self) -> Path:
        """The folder for the PATH; its program is called `redis-server`, whatever the product."""
        return self.folder / "bin"

    @property
    def title(self) -> str:
        """What people call it, such as `Valkey 9.1.2`."""
        return f"{self.server.product.title()} {self.version}"


def known(name: str) -> Server:
    """The server of that name. Raises SetupError."""
    if name not in SERVERS:
        raise SetupError(f"server {name}: unknown; known are {', '.join(SERVERS)}")
    return Server(name, *SERVERS[name])


def every() -> list[Server]:
    """All that can be had."""
    return [known(name) for name in SERVERS]


def cached(server: Server) -> Fetched | None:
    """The server if it is in the cache, whole. Raises SetupError when a file is not what was put there."""
    folder = cache.lookup(cache_root(), server.recipe())
    if folder is None:
        return None
    record = json.loads((folder / RECORD).read_text())
    for name, expected in record["sha256"].items():
        if _sha256(folder / name) != expected:
            raise SetupError(
                f"server {server.name}: {folder / name} was changed since it was fetched; "
                f"remove {folder} and run it again"
            )
    return Fetched(server, record["version"], folder, record["packages"])


def get(server: Server, progress: Progress) -> Fetched:
    """Have the server, fetching it when it is not cached. Raises SetupError."""
    found = cached(server)
    if found is None:
        cache.obtain(
            cache_root(), server.recipe(), lambda folder: _fetch(server, folder, progress), progress.say
        )
        found = cached(server)
        assert found is not None
        with cache.exclusive(cache_root(), server.recipe().name):
            cache.sweep(cache_root(), server.recipe().name, server.recipe().key)
    return found


def run_suite(fetched: Fetched) -> tuple[bool, str]:
    """Run the broker suite with this server first on the PATH: whether it passed, and its output."""
    server = fetched.server
    environment = {
        **os.environ,
        "PATH": f"{fetched.path}{os.pathsep}{os.environ['PATH']}",
        "QUEUEWORKER_TEST_SERVER": f"{server.product} {server.line}",
    }
    command = [sys.executable, "-m", "pytest", "tests/brokers", "-m", "not any_server"]
    ran = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ran.returncode == 0, ran.stdout


def _fetch(server: Server, folder: Path, progress: Progress) -> None:
    ensure_packages({"apt-get": "apt", "dpkg-deb": "dpkg"}, f"to fetch {server.name}", progress)
    if not KEYRING.is_file():
        raise SetupError(
            f"server {server.name}: {KEYRING} is missing, so Debian's signature cannot be checked; "
            "install it with `apt-get install debian-archive-keyring`"
        )
    with TemporaryDirectory(prefix="queueworker-server-") as name:
        work = Path(name)
        with progress.step(f"fetching {server.name} from Debian {server.suite}", "30 s"):
            archives = _download(server, work)
            root = work / "root"
            for archive in archives:
                run(["dpkg-deb", "--extract", archive, root])
            packages = dict(_package_of(archive) for archive in archives)
            _assemble(server, root, folder)
        version = _version_of(server, folder)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        record = {
            "version": version,
            "suite": server.suite,
            "packages": packages,
            "sha256": {str(path.relative_to(folder)): _sha256(path) for path in files},
        }
        (folder / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True))


def _download(server: Server, work: Path) -> list[Path]:
    """The package and all that it depends on, C library included, from the signed archive."""
    for part in ("state/lists/partial", "cache/archives/partial", "etc"):
        (work / part).mkdir(parents=True)
    (work / "status").touch()
    sources, settings = work / "sources.list", work / "apt.conf"
    sources.write_text(f"deb [signed-by={KEYRING}] {DEBIAN_MIRROR} {server.suite} main\n")
    settings.write_text(
        "".join(
            f'{name} "{value}";\n'
            for name, value in {
                "Dir": work,
                "Dir::State": "state",
                "Dir::State::Lists": "lists",
                # As if nothing were installed, so that everything comes along.
                "Dir::State::Status": work / "status",
                "Dir::Cache": "cache",
                "Dir::Etc::SourceList": sources,
                "Dir::Etc::SourceParts": "/dev/null",
                "Dir::Etc::Parts": "/dev/null",
                "Dir::Etc::Preferences": "/dev/null",
                "Dir::Etc::PreferencesParts": "/dev/null",
                # The signature counts, not its age: a mirror that lags gives an older patch of the same line.
                "Acquire::Check-Valid-Until": "false",
                "Acquire::Languages": "none",
                "Acquire::Retries": "3",
                "APT::Install-Recommends": "false",
                "APT::Sandbox::User": "",
            }.items()
        )
    )
    environment = {"APT_CONFIG": str(settings), "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], environment=environment, timeout=600)
    run(["apt-get", "install", "-y", "--download-only", server.package], environment=environment, timeout=600)
    return sorted((work / "cache/archives").glob("*.deb"))


def _package_of(archive: Path) -> tuple[str, str]:
    name, _, version = run(["dpkg-deb", "--show", archive]).stdout.strip().partition("\t")
    return name, version


def _assemble(server: Server, root: Path, folder: Path) -> None:
    """Keep the program, the loader, and the libraries that the loader finds for it."""
    program = _one(root, f"usr/bin/{server.program}", server)
    loader = _one(root, "**/ld-linux*.so.*", server)
    places = sorted({path.parent for path in root.glob("usr/lib/**/*.so*")} | {loader.parent})
    searched = os.pathsep.join(str(place) for place in places)
    listed = run([loader, "--library-path", searched, "--list", program]).stdout
    (folder / "bin").mkdir()
    (folder / "lib").mkdir()
    shutil.copy2(loader, folder / "lib/loader")
    shutil.copy2(program, folder / "lib" / server.program)
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE):
        if Path(path).name != loader.name:
            shutil.copy2(path, folder / "lib" / name)
    launcher = folder / "bin/redis-server"
    launcher.write_text(_LAUNCHER.format(program=server.program))
    launcher.chmod(0o755)


def _one(root: Path, pattern: str, server: Server) -> Path:
    # Debian's libraries lie once and are linked to from several places.
    found = sorted({path.resolve() for path in root.glob(pattern) if path.is_file()})
    if len(found) != 1:
        names = ", ".join(str(path.relative_to(root)) for path in found) or "nothing"
        raise SetupError(
            f"server {server.name}: expected one {pattern} in the packages of Debian {server.suite}, "
            f"found {names}; the packages were rearranged, so e2e/servers.py has to follow"
        )
    return found[0]


def _version_of(server: Server, folder: Path) -> str:
    said = run([folder / "bin/redis-server", "--version"]).stdout
    found = re.search(r"\bv=(\d+(?:\.\d+)+)", said)
    version = found.group(1) if found else ""
    if not version.startswith(f"{server.line}."):
        raise SetupError(
            f"server {server.name}: Debian {server.suite} has {server.package} {version or said.strip()!r}, "
            f"wanted {server.line}; name a suite that has it in e2e/versions.py"
        )
    return version


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
