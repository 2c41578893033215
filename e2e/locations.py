"""Where things live on this machine, outside the clone."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
GO_MODULES = REPOSITORY / "e2e" / "go"
NODE_RECIPES = REPOSITORY / "e2e" / "node"
IMAGE_RECIPES = REPOSITORY / "images"


def cache_root() -> Path:
    """Where every slow result is kept: `$XDG_CACHE_HOME/queueworker`, else `~/.cache/queueworker`."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = (Path(base) if base else Path.home() / ".cache") / "queueworker"
    root.mkdir(parents=True, exist_ok=True)
    return root


def engine_root() -> Path:
    """The private Docker engine's data, sockets and log, on the cache's disk: overlayfs needs a real one."""
    return cache_root() / "engine"


def cluster_root(cluster: str) -> Path:
    """The folder of one cluster's kubeconfig and kind configuration."""
    return cache_root() / "clusters" / cluster
