"""A server that answers and takes no writes: a look says so in the server's words, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.brokers.site import Site, eventually
from tests.services import EmbeddedRedis
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.redis.broker import RedisBroker


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(args=("--maxmemory-policy", "noeviction")) as server:
        yield server


@pytest.fixture
def client(server: EmbeddedRedis) -> Any:
    return redis.Redis(port=server.port)


async def refusal(url: str) -> str:
    broker = broker_from_url(url, "ns")
    assert isinstance(broker, RedisBroker)
    return await broker.survey("q")


async def test_a_look_at_a_server_that_takes_writes_writes_nothing(
    server: EmbeddedRedis, client: Any, make_site: Callable[..., Site]
) -> None:
    await make_site(server.url, client, "ns").publish(b"1")
    before = (client.info("persistence")["rdb_changes_since_last_save"], sorted(client.keys()))
    assert await refusal(server.url) == ""
    assert (client.info("persistence")["rdb_changes_since_last_save"], sorted(client.keys())) == before


async def test_a_full_server(server: EmbeddedRedis, client: Any) -> None:
    # Half as much again as it may have: what a connection more or less takes makes no other tenth of that.
    client.set("much", "x" * 21_500_000)
    client.config_set("maxmemory", "16mb")
    told = await refusal(server.url)
    assert "OOM" in told
    assert "% of maxmemory 16.00M is used, policy noeviction" in told
    assert "raise maxmemory" in told
    assert await refusal(server.url) == told, "the same while it is so"
    client.config_set("maxmemory", "0")
    assert await refusal(server.url) == ""


async def test_a_server_that_cannot_save(server: EmbeddedRedis, client: Any) -> None:
    client.config_set("save", "1 1")
    (server.directory / "dump.rdb").mkdir()
    client.set("one", 1)
    client.bgsave()

    async def failed() -> bool:
        return bool(client.info("persistence")["rdb_last_bgsave_status"] == "err")

    await eventually(failed)
    assert "MISCONF" in await refusal(server.url)


async def test_a_read_only_replica(server: EmbeddedRedis) -> None:
    with EmbeddedRedis(args=("--replicaof", "127.0.0.1", str(server.port))) as replica:
        synced = redis.Redis(port=replica.port)

        async def follows() -> bool:
            return bool(synced.info("replication")["master_link_status"] == "up")

        await eventually(follows)
        assert "READONLY" in await refusal(replica.url)


async def test_too_few_replicas(server: EmbeddedRedis, client: Any) -> None:
    client.config_set("min-replicas-to-write", 1)
    assert "NOREPLICAS" in await refusal(server.url)


async def test_nothing_is_said_where_the_user_may_not_ask(server: EmbeddedRedis, client: Any) -> None:
    client.execute_command("ACL", "SETUSER", "me", "on", ">pw", "~ns.*", "+@all", "-zadd", "-info")
    client.config_set("maxmemory", "500kb")
    assert await refusal(f"redis://me:pw@127.0.0.1:{server.port}") == ""
    client.execute_command("ACL", "SETUSER", "me", "+zadd")
    assert "OOM" in await refusal(f"redis://me:pw@127.0.0.1:{server.port}")
