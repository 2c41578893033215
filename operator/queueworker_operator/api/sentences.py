"""The words of others (a server, a registry, a worker, an editor's file) in sentences of ours."""

from __future__ import annotations


def inside(text: object) -> str:
    """What somebody else said, without the full stop that it may end in: ours follows."""
    return str(text).strip().rstrip(".")
