"""Newer servers for the broker suite: what the cache gives out, and that the document knows them all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from e2e import cache, servers
from e2e.failure import SetupError
from e2e.locations import REPOSITORY, cache_root


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> servers.Server:
    """A server whose entry is in a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = servers.known("valkey-9")

    def build(folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin/redis-server").write_text("program")
        sums = {"bin/redis-server": hashlib.sha256(b"program").hexdigest()}
        record = {"version": "9.1.2", "packages": {"valkey-server": "9.1.2-1"}, "sha256": sums}
        (folder / servers.RECORD).write_text(json.dumps(record))

    cache.obtain(cache_root(), server.recipe(), build)
    return server


def test_a_cached_server_is_told_with_its_version(kept: servers.Server) -> None:
    found = servers.cached(kept)
    assert found is not None
    assert (found.title, found.packages) == ("Valkey 9.1.2", {"valkey-server": "9.1.2-1"})
    assert (found.path / "redis-server").read_text() == "program"


def test_a_server_that_was_changed_is_not_used(kept: servers.Server) -> None:
    found = servers.cached(kept)
    assert found is not None
    (found.path / "redis-server").write_text("PROGRAM")
    with pytest.raises(SetupError, match=r"bin/redis-server was changed since it was fetched; remove /"):
        servers.cached(kept)


def test_what_was_never_fetched_is_not_there(kept: servers.Server) -> None:
    assert servers.cached(servers.known("redis-8")) is None


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(SetupError, match="server redis-99: unknown; known are redis-8, valkey-8, valkey-9"):
        servers.known("redis-99")


def test_the_document_lists_each_server() -> None:
    text = (REPOSITORY / "docs/servers.md").read_text()
    for server in servers.every():
        row = f"| {server.product.title()} | {server.line}."
        assert row in text, f"docs/servers.md: no row begins with {row!r}"
        assert f"| Debian {server.suite} |" in text
