"""Real servers, and for each test a namespace of its own on them."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis

from tests.brokers.dragonfly_rules import DragonflyRules
from tests.brokers.nats_site import NatsSite, fresh_site
from tests.brokers.site import Site
from tests.sentinels import WatchedRedis
from tests.services import EmbeddedNats, EmbeddedRedis, RedisCluster
from worker_runtime.brokers.redis import sentinel as sentinel_module

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
def on_sentinel(
    redis_watched: WatchedRedis, make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> Site:
    # All of them live: who asks and gets no turn for a second has heard them all the same.
    monkeypatch.setattr(sentinel_module, "ANSWER", 60.0)
    client = redis.Redis(port=redis_watched.primary().port)
    return make_site(redis_watched.url, client, f"t{secrets.token_hex(4)}")


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as server:
        yield server


@pytest.fixture
async def on_nats(nats_server: EmbeddedNats) -> AsyncIterator[NatsSite]:
    site = await fresh_site(nats_server.url)
    yield site
    await site.close()


#: Broker under the conformance suite -> its fixture and what it can do.
_SITES = {
    "redis": ("standalone", Site.can),
    "cluster": ("on_cluster", Site.can),
    "sentinel": ("on_sentinel", Site.can),
    "dragonfly-rules": ("by_dragonfly_rules", Site.can),
    **({"given": ("on_given_server", Site.can)} if os.environ.get(GIVEN_SERVER) else {}),
    "nats": ("on_nats", NatsSite.can),
}


# Whatever Redis server is below, scripts do not run on it there, and NATS is none.
_MARKS = {name: [pytest.mark.any_server] for name in ("dragonfly-rules", "nats")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each case of the conformance suite runs on the brokers that can do what it `needs`; others that take a
    `site` are about Redis."""
    if "site" not in metafunc.fixturenames or hasattr(metafunc.module, "site"):
        return
    general = metafunc.module.__name__.endswith("test_conformance")
    needs = set() if general else set(Site.can)
    needs |= {word for mark in metafunc.definition.iter_markers("needs") for word in mark.args}
    chosen = [
        pytest.param(name, marks=_MARKS.get(name, [])) for name, (_, can) in _SITES.items() if needs <= can
    ]
    metafunc.parametrize("site", chosen, indirect=True)


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """The broker under the conformance suite: standalone, on a cluster, watched by Sentinels, with
    scripts run as Dragonfly runs them, on a server of which the environment gives the URL, and on NATS."""
    found: Site = request.getfixturevalue(_SITES[request.param][0])
    return found
