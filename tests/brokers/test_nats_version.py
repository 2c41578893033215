"""Which nats-server these tests run on, that docs/jetstream.md says so, and which ones are refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.brokers.nats_proxy import NatsProxy
from tests.brokers.nats_site import NatsSite
from tests.services import EmbeddedNats
from worker_runtime.brokers.base import BrokerRefusedError

#: The version of the Redis server makes no difference.
pytestmark = pytest.mark.any_server

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "jetstream.md"
ROW = re.compile(r"^\| ([\d.]+) \| .* \| (.*) \|$", re.MULTILINE)


async def running(site: NatsSite) -> str:
    return str((await site.link.opened()).info["version"])


async def test_the_document_names_the_server_that_was_asked_for(on_nats: NatsSite) -> None:
    """These tests are run again with an older server first on the PATH; `QUEUEWORKER_TEST_NATS` names it.
    Whatever else is installed on a machine is its owner's choice."""
    listed = dict(ROW.findall(DOCUMENT.read_text()))
    assert len(listed) == 2
    asked = os.environ.get("QUEUEWORKER_TEST_NATS")
    if asked:
        assert await running(on_nats) == asked
        assert "make test-nats-old" in listed[asked]


@pytest.mark.parametrize("version", ["2.9.10", "2.11.17", "2.12.4"])
async def test_an_older_server_is_refused_with_what_it_is_and_what_is_needed(
    version: str, on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    async with NatsProxy(nats_server.port, version=version) as proxy:
        with pytest.raises(BrokerRefusedError, match=rf"is version {re.escape(version)}; at least 2\.12\.5"):
            await on_nats.nats(url=proxy.url).check("q")


@pytest.mark.parametrize("version", ["2.12.5", "2.12.8", "2.14.0", "2.15.1", "3.0.0-RC.1"])
async def test_a_server_that_is_new_enough_is_taken(
    version: str, on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    async with NatsProxy(nats_server.port, version=version) as proxy:
        await on_nats.nats(url=proxy.url).check("q")
