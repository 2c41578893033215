"""How many nodes the machine's limit of inotify instances has room for.

All processes of one user share the limit, on the machine and in its containers. Where it is used up,
kubelet, containerd or systemd in a node fail with "too many open files" long after the node was made.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from e2e.failure import SetupError

LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
#: Instances of one node, as counted in nodes of Kubernetes 1.37 by /proc/PID/fd: a control plane has 27
#: (systemd 4, containerd 2, kubelet 7, kube-proxy 1, API server 6, controller manager 7), a worker 14.
CONTROL_PLANE, WORKER = 28, 15
#: What the way out sets: room for some forty nodes.
SUGGESTED = 1024


@dataclass(frozen=True, slots=True)
class Room:
    """`used` is None where other users' processes cannot be read, and so those of the engine's nodes."""

    limit: int
    used: int | None

    @property
    def left(self) -> int | None:
        return None if self.used is None else max(0, self.limit - self.used)

    @property
    def text(self) -> str:
        """What was read, for people."""
        if self.used is None:
            return f"fs.inotify.max_user_instances is {self.limit}; what is used of it cannot be read here"
        return f"fs.inotify.max_user_instances is {self.limit}, of which root uses {self.used}"


WAY_OUT = f"`sysctl -w fs.inotify.max_user_instances={SUGGESTED}` as root makes room"


def needed(nodes: int) -> int:
    """What a cluster of so many nodes takes, the first of them its control plane."""
    return CONTROL_PLANE + WORKER * (nodes - 1)


def clusters_of(left: int) -> dict[int, int]:
    """How many clusters so many instances are enough for, by the number of their nodes."""
    return {nodes: left // needed(nodes) for nodes in (1, 3)}


def room(limit: Path = LIMIT, processes: Path = Path("/proc")) -> Room | None:
    """The limit and what root's processes use of it; None where the kernel has no such limit."""
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):
        return None
    return Room(allowed, _used(processes) if os.geteuid() == 0 else None)


def check(cluster: str, nodes: int, found: Room | None) -> None:
    """Raise SetupError where the nodes of a new cluster would not find room."""
    if found is None or found.left is None or found.left >= needed(nodes):
        return
    raise SetupError(
        f"cluster {cluster}: its {nodes} node(s) take about {needed(nodes)} inotify instances, and only "
        f"{found.left} are left ({found.text}), so a node would not start; {WAY_OUT}, and so does "
        "`python -m e2e cluster down` of a cluster that is not needed"
    )


def _used(processes: Path) -> int:
    """The instances of root's processes. One that is shared after a fork counts twice."""
    return sum(
        _is_instance(one)
        for entry in processes.iterdir()
        if entry.name.isdigit() and _of_root(entry)
        for one in _listed(entry / "fd")
    )


def _of_root(process: Path) -> bool:
    try:
        return process.stat().st_uid == 0
    except OSError:
        return False  # It ended meanwhile.


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_instance(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()) == "anon_inode:inotify"
    except OSError:
        return False  # It was closed meanwhile.
