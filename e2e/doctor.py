"""What this machine has of all that the clusters need, and how the rest is got."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from e2e import cache, engine, golang, inotify, oci_wrapper, packages, programs, servers
from e2e.commands import run
from e2e.locations import cache_root
from e2e.versions import GO_TOOLCHAIN

NEEDED_GIGABYTES = 12.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One tool: `usable` is false when it is neither here nor can be got without a person."""

    name: str
    usable: bool
    text: str


def examine() -> list[Finding]:
    """Look at every needed tool; installs and starts nothing."""
    return [
        _engine(),
        _package("debootstrap", "a base file system where no registry answers"),
        _go(),
        *_tools(),
        _servers(),
        _disk(),
        *_inotify(inotify.room()),
    ]


def _engine() -> Finding:
    found = engine.running()
    if found is not None:
        where = "private engine of this project" if found.private else "the machine's own engine"
        return Finding("docker engine", True, f"{where} answers")
    status = open("/proc/self/status").read()  # noqa: SIM115, PTH123
    absent = oci_wrapper.missing_capabilities(oci_wrapper.bounding_set(status))
    note = f", with {', '.join(sorted(absent))} taken out of container requests" if absent else ""
    if shutil.which("dockerd") is not None and os.geteuid() == 0:
        return Finding("docker engine", True, f"none answers; a private one is started when needed{note}")
    return _package("dockerd", "an engine to run nodes in", "docker.io")


def _package(program: str, why: str, package: str | None = None) -> Finding:
    path = shutil.which(program)
    if path is not None:
        return Finding(program, True, path)
    name = package or program
    if packages.can_install():
        return Finding(program, True, f"installed from Debian's package {name} when needed, for {why}")
    return Finding(program, False, f"needed for {why}; get it with `apt-get install {name}` as root")


def _go() -> Finding:
    path = shutil.which("go")
    if path is not None:
        version = run(
            [path, "env", "GOVERSION"], environment={"GOTOOLCHAIN": "local"}, check=False
        ).stdout.strip()
        if golang.parse_version(version) >= golang.parse_version(GO_TOOLCHAIN):
            return Finding("go", True, f"{path}, {version}")
        if golang.parse_version(version) >= golang.SWITCHES_SINCE:
            return Finding("go", True, f"{path}, {version}, which fetches go{GO_TOOLCHAIN} when needed")
        return Finding(
            "go", True, f"{path}, {version}; it fetches the module of go{GO_TOOLCHAIN} when needed"
        )
    return _package("go", "building the programs of the cluster", "golang-go")


def _tools() -> list[Finding]:
    findings = []
    for name, module in sorted(programs.TOOLS.items()):
        folder = cache.lookup(cache_root(), programs.MODULES[module].recipe())
        text = (
            str(folder / name) if folder else f"built when needed, about {programs.MODULES[module].usually}"
        )
        findings.append(Finding(name, True, text))
    return findings


def _servers() -> Finding:
    name = "newer servers"
    lacking = [one.name for one in servers.every() if servers.cached(one) is None]
    if not lacking:
        return Finding(name, True, "cached")
    todo = ", ".join(lacking)
    if shutil.which("apt-get") is not None and servers.KEYRING.is_file():
        return Finding(name, True, f"{todo}: fetched from Debian's later suites when needed, 20 s each")
    return Finding(
        name,
        False,
        f"{todo}: needs apt and {servers.KEYRING}; get it with `apt-get install debian-archive-keyring`",
    )


def _inotify(found: inotify.Room | None) -> list[Finding]:
    return [] if found is None else [inotify_finding(found)]


def inotify_finding(found: inotify.Room) -> Finding:
    """Whether the machine's limit lets the nodes of one more cluster start."""
    clusters = inotify.clusters_of(found.limit if found.left is None else found.left)
    room = f"room for {clusters[1]} more cluster(s) of one node, or {clusters[3]} of three"
    if found.left is None:
        return Finding("inotify", True, f"{found.text}; at most {room.replace(' more', '')}")
    if clusters[3]:
        return Finding("inotify", True, f"{found.text}: {room}")
    return Finding("inotify", False, f"{found.text}: {room}; {inotify.WAY_OUT}")


def _disk() -> Finding:
    free = shutil.disk_usage(cache_root()).free / 1e9
    enough = free >= NEEDED_GIGABYTES or not programs.missing(programs.NODE_MODULES)
    text = f"{free:.0f} GB free at {cache_root()}; the first cluster needs {NEEDED_GIGABYTES:.0f}"
    return Finding("disk", enough, text)
