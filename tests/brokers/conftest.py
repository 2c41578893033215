"""Real servers, and for each test a namespace of its own on them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis

from tests.brokers.site import Site
from tests.services import EmbeddedRedis, RedisCluster


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


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


@pytest.fixture(params=["redis", "cluster"])
def site(request: pytest.FixtureRequest) -> Site:
    """The broker under the conformance suite: once standalone, once on a cluster."""
    found: Site = request.getfixturevalue("standalone" if request.param == "redis" else "on_cluster")
    return found
