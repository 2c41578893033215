"""Real servers, and for each test a namespace of its own on them."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis

from tests.brokers.dragonfly_rules import DragonflyRules
from tests.brokers.site import Site
from tests.sentinels import WatchedRedis
from tests.services import EmbeddedRedis, RedisCluster

#: URL of a server on which the conformance suite runs as well.
GIVEN_SERVER = "QUEUEWORKER_TEST_SERVER_URL"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_watched() -> Iterator[WatchedRedis]:
    """Nobody is promoted here: the roles stay as they are for the whole session."""
    with WatchedRedis() as watched:
        yield watched


@pytest.fixture
async def make_site() -> AsyncIterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(url: str, client: redis.Redis | redis.RedisCluster, namespace: str) -> Site:
        sites.append(Site(url, client, namespace))
        return sites[-1]

    yield make
    for site in sites:
        await site.close()


@pytest.fixture
def standalone(redis_server: EmbeddedRedis, make_site: Callable[..., Site]) -> Site:
    return make_site(redis_server.url, redis.Redis(port=redis_server.port), f"t{secrets.token_hex(4)}")


@pytest.fixture
def on_cluster(redis_cluster: RedisCluster, make_site: Callable[..., Site]) -> Site:
    client = redis.RedisCluster(host="127.0.0.1", port=redis_cluster.nodes[0].port)
    return make_site(redis_cluster.url, client, f"{{t{secrets.token_hex(4)}}}")


@pytest.fixture(scope="session")
def dragonfly_rules(redis_server: EmbeddedRedis) -> Iterator[DragonflyRules]:
    with DragonflyRules(redis_server.port) as server:
        yield server


@pytest.fixture
def by_dragonfly_rules(dragonfly_rules: DragonflyRules, make_site: Callable[..., Site]) -> Site:
    client = redis.Redis(port=dragonfly_rules.port)
    return make_site(dragonfly_rules.url, client, f"t{secrets.token_hex(4)}")


@pytest.fixture
def on_given_server(make_site: Callable[..., Site]) -> Iterator[Site]:
    """A server that somebody else runs: nothing of it is assumed but that it answers, and what a test put
    there is taken away again."""
    client = redis.Redis.from_url(os.environ[GIVEN_SERVER])
    namespace = f"queueworker-test-{secrets.token_hex(4)}"
    yield make_site(os.environ[GIVEN_SERVER], client, namespace)
    with redis.Redis.from_url(os.environ[GIVEN_SERVER]) as cleaner:
        for key in cleaner.scan_iter(match=f"{namespace}.*"):
            cleaner.delete(key)


@pytest.fixture
def on_sentinel(redis_watched: WatchedRedis, make_site: Callable[..., Site]) -> Site:
    client = redis.Redis(port=redis_watched.primary().port)
    return make_site(redis_watched.url, client, f"t{secrets.token_hex(4)}")


_SITES = {
    "redis": "standalone",
    "cluster": "on_cluster",
    "sentinel": "on_sentinel",
    "dragonfly-rules": "by_dragonfly_rules",
    **({"given": "on_given_server"} if os.environ.get(GIVEN_SERVER) else {}),
}


# Whatever server is below, scripts do not run on it there.
_MARKS = {"dragonfly-rules": [pytest.mark.any_server]}


@pytest.fixture(params=[pytest.param(name, marks=_MARKS.get(name, [])) for name in _SITES])
def site(request: pytest.FixtureRequest) -> Site:
    """The broker under the conformance suite: standalone, on a cluster, watched by Sentinels, with
    scripts run as Dragonfly runs them, and on a server of which the environment gives the URL."""
    found: Site = request.getfixturevalue(_SITES[request.param])
    return found
