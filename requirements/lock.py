"""Write the lock files of this folder from the two pyproject files, and those of the benchmarks' peers from
their `.in` files and `package.json`.

    python requirements/lock.py [--check]

`pip-compile` resolves; no file names an index, a host or a path. `--check` fails if a declared dependency
is missing from its lock file or pinned outside its range, without asking any index.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = ROOT / "benchmarks" / "peers"
HEADER = "# Written by requirements/lock.py. Do not edit.\n"


def declared() -> dict[str, list[str]]:
    """Lock file -> what it must hold. Each wider set includes the narrower one."""
    runtime = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    operator = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]
    of_runtime = runtime["dependencies"]
    others = [text for text in operator["dependencies"] if Requirement(text).name != "queueworker"]
    of_operator = [*of_runtime, *others]
    return {
        "runtime.txt": of_runtime,
        "operator.txt": of_operator,
        "dev.txt": [*of_operator, *runtime["optional-dependencies"]["dev"]],
        "bench.txt": [
            *of_operator,
            *runtime["optional-dependencies"]["dev"],
            *runtime["optional-dependencies"]["bench"],
        ],
        "embedded.txt": operator["optional-dependencies"]["embedded"],
    } | {os.path.relpath(path.with_suffix(".txt"), HERE): wishes(path) for path in PEERS.glob("*.in")}


def wishes(path: Path) -> list[str]:
    """What a peer of the benchmarks needs; each is resolved for itself, since their ranges conflict."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def compile_lock(name: str, requirements: list[str]) -> None:
    command = [
        *(sys.executable, "-m", "piptools", "compile", "-", "--output-file", name, "--quiet"),
        *("--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links", "--no-emit-options"),
        *("--no-header", "--no-annotate", "--strip-extras", "--allow-unsafe"),
    ]
    if name == "dev.txt":  # one set of versions for everything that shares an environment
        requirements = [*requirements, f"-c {HERE / 'operator.txt'}"]
    if name == "bench.txt":
        requirements = [*requirements, f"-c {HERE / 'dev.txt'}"]
    if name == "operator.txt":
        requirements = [*requirements, f"-c {HERE / 'runtime.txt'}"]
    subprocess.run(command, cwd=HERE, input="\n".join(requirements) + "\n", text=True, check=True)
    path = HERE / name
    path.write_text(HEADER + path.read_text())


def faults() -> list[str]:
    found = []
    for name, requirements in declared().items():
        pins = {}
        for line in (HERE / name).read_text().splitlines():
            if line and not line.startswith("#"):
                pin = Requirement(line)
                pins[pin.name.lower().replace("_", "-")] = str(pin.specifier).removeprefix("==")
        for text in requirements:
            wanted = Requirement(text)
            pinned = pins.get(wanted.name.lower().replace("_", "-"))
            if pinned is None:
                found.append(f"requirements/{name}: {wanted.name} is declared but not locked")
            elif not wanted.specifier.contains(pinned):
                found.append(f"requirements/{name}: {wanted.name}=={pinned} is outside {wanted.specifier}")
    return found


def main() -> int:
    if "--check" in sys.argv[1:]:
        problems = faults()
        print(
            "\n".join([*problems, "Run: make lock"] if problems else ["Lock files match the declarations."])
        )
        return 1 if problems else 0
    for name, requirements in declared().items():
        print(f"requirements/{name}")
        compile_lock(name, requirements)
    print("benchmarks/peers/bullmq/package-lock.json")
    subprocess.run(
        ["npm", "install", "--package-lock-only", "--omit-lockfile-registry-resolved", "--no-audit"],
        cwd=PEERS / "bullmq",
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
