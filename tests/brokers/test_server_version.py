"""Which server this folder was tested on, and that docs/servers.md says so."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import redis

from tests.services import EmbeddedRedis

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "servers.md"
ROW = re.compile(r"^\| (Redis|Valkey) \| ([\d.]+) \|", re.MULTILINE)

Version = tuple[int, ...]


def version_of(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def documented() -> list[tuple[str, Version]]:
    return [(product.lower(), version_of(version)) for product, version in ROW.findall(DOCUMENT.read_text())]


@pytest.fixture
def running(redis_server: EmbeddedRedis) -> tuple[str, Version]:
    """Product and version, as the server says."""
    with redis.Redis(port=redis_server.port) as client:
        info = client.info("server")
    product = info.get("server_name", "redis")
    return product, version_of(info[f"{product}_version"])


def test_the_suite_runs_on_the_server_that_was_asked_for(running: tuple[str, Version]) -> None:
    """This folder is run again with other servers first on the PATH; `QUEUEWORKER_TEST_SERVER` names product
    and line, such as `valkey 9`."""
    product, _, line = os.environ.get("QUEUEWORKER_TEST_SERVER", "").partition(" ")
    if product:
        wanted = version_of(line)
        assert (running[0], running[1][: len(wanted)]) == (product, wanted)


def test_the_document_names_this_server(running: tuple[str, Version]) -> None:
    """Whatever is installed on a machine is its owner's choice; the servers that a run asks for are ours."""
    product, version = running
    listed = [each for name, each in documented() if name == product]
    if os.environ.get("QUEUEWORKER_TEST_SERVER"):
        assert any(each[:2] == version[:2] and each <= version for each in listed), (
            f"{DOCUMENT.name} lists {listed} for {product}, but the suite runs on {version}: correct it"
        )
    else:
        assert version >= min(each for _, each in documented())
