"""Dragonfly: live where a URL is given, by its rules everywhere, and the way there on an ordinary server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.brokers.conftest import GIVEN_SERVER
from tests.brokers.dragonfly_rules import DragonflyRules
from tests.brokers.site import Site, receive
from tests.brokers.test_redis_claims import envelope, push
from tests.brokers.test_redis_scripts import run_all
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import BrokerRefusedError
from worker_runtime.brokers.redis import scripts, transitions
from worker_runtime.brokers.redis.scripts import Call

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.any_server

#: URL of a Dragonfly that may be written to; what the tests put there they take away.
DRAGONFLY = "QUEUEWORKER_DRAGONFLY_URL"


def conformance_on(url: str) -> int:
    """Run the conformance suite in a process of its own on the server at `url`; how many tests passed."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/brokers/test_conformance.py", "-k", "given"],
        cwd=ROOT,
        env=os.environ | {GIVEN_SERVER: url},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed, ran.stdout
    return int(passed[1])


@pytest.mark.skipif(not os.environ.get(DRAGONFLY), reason=f"{DRAGONFLY} names no server")
def test_the_conformance_suite_on_dragonfly() -> None:
    url = os.environ[DRAGONFLY]
    with redis.Redis.from_url(url) as client:
        assert "dragonfly_version" in client.info("server"), f"{DRAGONFLY} is not the URL of a Dragonfly"
    assert conformance_on(url) > 20


def test_the_conformance_suite_on_a_server_that_is_given_by_its_url() -> None:
    """The same way on an ordinary server, that nothing of the suite started."""
    with EmbeddedRedis() as server, redis.Redis(port=server.port) as client:
        assert conformance_on(server.url) > 20
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] > 100
        assert client.dbsize() == 0, "the suite left keys behind"


def test_the_document_names_every_command() -> None:
    """What it says of Dragonfly's support was looked up for each of them."""
    text = (ROOT / "docs/dragonfly.md").read_text()
    folder = ROOT / "worker_runtime/brokers/redis"
    for where, pattern, files in (
        ("in scripts", r"redis\.call\('([A-Z]+)'", scripts.script_directory().glob("*.lua")),
        ("by the runtime", r"[(\[]\"([A-Z]{3,})\"", folder.glob("*.py")),
    ):
        row = re.search(rf"^\| {where} \| (.*)", text, re.MULTILINE)
        assert row, where
        # The three are asked of Redis Clusters and Sentinels only.
        listed = set(re.findall(r"`([A-Z]+)`", row[1])) | {"ASKING", "CLUSTER", "SENTINEL"}
        used = {name for file in files for name in re.findall(pattern, file.read_text())}
        assert len(used) > 20, where
        assert used <= listed, f"{where}: {sorted(used - listed)} is not in docs/dragonfly.md"


def test_every_script_runs_by_the_rules_of_dragonfly(by_dragonfly_rules: Site) -> None:
    def run(call: Call) -> object:
        return by_dragonfly_rules.client.execute_command(*call.by_source())

    assert run_all(by_dragonfly_rules, run) == {script.name for script in scripts.ALL}


def test_a_script_that_touches_an_undeclared_key_is_refused(by_dragonfly_rules: Site) -> None:
    keys = by_dragonfly_rules.keys
    call = transitions.reserve(keys, "one", "r", 10, 60)
    fewer = call.script.source.replace("KEYS[5]", f"'{keys.fence}'")
    with pytest.raises(redis.ResponseError, match=f"undeclared key, key: .*{keys.fence}"):
        by_dragonfly_rules.client.eval(fewer, 4, *call.keys[:4], *call.args)


def test_a_reservation_that_is_asked_for_again_is_the_same(by_dragonfly_rules: Site) -> None:
    """After a lost reply. A score that a script hands on is a number there, and the deadline is text."""
    push(by_dragonfly_rules, envelope("a"))
    call = transitions.reserve(by_dragonfly_rules.keys, "one", "r", 10, 60)
    replies = [by_dragonfly_rules.client.execute_command(*call.by_source()) for _ in range(2)]
    assert replies[0] == replies[1]
    assert replies[0][1].isdigit()


async def test_a_key_of_another_type_is_named(by_dragonfly_rules: Site) -> None:
    """Dragonfly puts ERR in front of the error that a script returns."""
    by_dragonfly_rules.client.set(by_dragonfly_rules.keys.fence, "x")
    with pytest.raises(BrokerRefusedError, match=r"the key \S+ holds a string where a hash belongs; rename"):
        await receive(by_dragonfly_rules.consumer())


async def test_a_version_that_can_crash_is_refused(redis_server: EmbeddedRedis) -> None:
    for version, refused in (("1.21.2", True), ("1.9.0", True), ("1.21.3", False), ("1.40.1", False)):
        with DragonflyRules(redis_server.port, version) as server:
            with redis.Redis(port=server.port) as client:
                site = Site(server.url, client, "t-version")
                if refused:
                    with pytest.raises(
                        BrokerRefusedError, match=rf"Dragonfly at \S+ is version {version}; at"
                    ):
                        await site.broker().check("q")
                else:
                    await site.broker().check("q")
