"""An OCI runtime that asks runc for no capability which this machine's bounding set lacks.

`docker run --privileged` asks for every capability that the kernel knows; runc fails with "unable to apply
caps: operation not permitted" where one was dropped from the bounding set. The engine starts this file as its
runtime: it filters `config.json` of the bundle (create, run) and the process file (exec), then becomes runc.
It runs alone, with the standard library only: the engine outlives the virtual environment of its starter.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# By the number of their bit in CapBnd, as linux/capability.h gives them.
# fmt: off
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL",
    "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
    "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)
# fmt: on


def bounding_set(status: str) -> int:
    """The CapBnd mask in the text of /proc/self/status."""
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            return int(line.split()[1], 16)
    raise ValueError("no CapBnd line in the process status")


def missing_capabilities(mask: int) -> frozenset[str]:
    """The names (CAP_...) of the known capabilities that are not in `mask`."""
    return frozenset(f"CAP_{name}" for bit, name in enumerate(CAPABILITIES) if not mask >> bit & 1)


def without(process: dict[str, Any], missing: frozenset[str]) -> dict[str, Any]:
    """The OCI process object with the missing capabilities taken out of each of its five sets."""
    sets = process.get("capabilities")
    if not isinstance(sets, dict):
        return process
    kept = {name: [one for one in listed or [] if one not in missing] for name, listed in sets.items()}
    return {**process, "capabilities": kept}


def value_after(arguments: list[str], *flags: str) -> str | None:
    """The value of the first of `flags`, written `--flag value` or `--flag=value`."""
    for index, argument in enumerate(arguments):
        if argument in flags and index + 1 < len(arguments):
            return arguments[index + 1]
        name, separator, value = argument.partition("=")
        if separator and name in flags:
            return value
    return None


def rewrite(path: str, missing: frozenset[str], *, bundle: bool) -> None:
    """Replace the file at `path` by one that asks for no missing capability."""
    with open(path, encoding="utf-8") as source:  # noqa: PTH123 - loaded at each container start: few imports
        document = json.load(source)
    if bundle:
        if "process" not in document:
            return
        document["process"] = without(document["process"], missing)
    else:
        document = without(document, missing)
    temporary = f"{path}.caps"
    with open(temporary, "w", encoding="utf-8") as target:  # noqa: PTH123
        json.dump(document, target)
    os.replace(temporary, path)  # noqa: PTH105


def main() -> None:
    """Filter what runc is about to read, then become runc with the same arguments."""
    arguments = sys.argv[1:]
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
        missing = missing_capabilities(bounding_set(status.read()))
    if missing and ("create" in arguments or "run" in arguments):
        folder = value_after(arguments, "--bundle", "-b") or "."
        rewrite(f"{folder}/config.json", missing, bundle=True)
    elif missing and "exec" in arguments:
        process = value_after(arguments, "--process", "-p")
        if process is not None:
            rewrite(process, missing, bundle=False)
    runc = os.environ.get("QUEUEWORKER_RUNC", "runc")
    os.execvp(runc, [runc, *arguments])


if __name__ == "__main__":
    main()
