"""Which server this folder was tested on."""

from __future__ import annotations

import os

import redis

from tests.services import EmbeddedRedis


def test_the_suite_runs_on_the_version_that_was_asked_for(redis_server: EmbeddedRedis) -> None:
    """`make test` runs this folder a second time with another server first on the PATH."""
    wanted = os.environ.get("QUEUEWORKER_TEST_REDIS_VERSION", "")
    with redis.Redis(port=redis_server.port) as client:
        assert client.info("server")["redis_version"].startswith(wanted)
