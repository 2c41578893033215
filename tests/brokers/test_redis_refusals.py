"""A broker that cannot be used says what was read and what to do; a URL never shows its password."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis

from tests.brokers.scripted_sentinel import ScriptedSentinel
from tests.brokers.site import CALM, Site, receive, settle
from tests.brokers.test_redis_claims import envelope, push
from tests.services import EmbeddedRedis, RedisCluster, free_port
from worker_runtime.brokers.base import (
    Action,
    BrokerError,
    BrokerRefusedError,
    BrokerUnavailableError,
    Outcome,
    Settlement,
    UnsafePlacementError,
    WorkerIdentity,
)
from worker_runtime.brokers.connect import broker_from_url


@pytest.mark.parametrize("url", ["localhost:6379", "http://:secret@h", "", "redis+proxy://h"])
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(BrokerError, match=r"allowed are redis://, rediss://, redis\+cluster://") as caught:
        broker_from_url(url, "ns")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "redis://localhost:6379"),
        ("redis://:secret@h:1/3", "redis://h:1/3"),
        ("redis://me:secret@h:1/0", "redis://me@h:1"),
        ("redis://h?password=secret", "redis://h:6379"),
        ("rediss://me:secret@[::1]:7", "rediss://me@[::1]:7"),
        ("redis+cluster://me:secret@a:1,b:2", "redis+cluster://me@a:1,b:2"),
        ("redis+sentinel://me:secret@a:1,b/main", "redis+sentinel://me@a:1,b:26379/main"),
        ("redis+sentinel://a/main/2?sentinel_password=secret", "redis+sentinel://a:26379/main/2"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_the_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert broker_from_url(url, "{ns}").display_url == shown


@pytest.mark.parametrize(
    "url", ["redis://h:99999", "redis://h/x?db=y", "redis+cluster://h/2", "redis://h:port"]
)
def test_a_url_that_cannot_be_read(url: str) -> None:
    with pytest.raises(BrokerError, match="broker"):
        broker_from_url(url, "ns")


async def test_unreachable() -> None:
    port = free_port()
    with pytest.raises(BrokerUnavailableError, match=rf"127\.0\.0\.1:{port} cannot be reached: .*refused"):
        await broker_from_url(f"redis://127.0.0.1:{port}", "ns").check("q")
    with pytest.raises(BrokerUnavailableError, match=r"no-such-host\.invalid:6379 cannot be reached"):
        await broker_from_url("redis://no-such-host.invalid", "ns").check("q")


async def test_a_port_without_tls(redis_server: EmbeddedRedis) -> None:
    url, quick = f"rediss://127.0.0.1:{redis_server.port}", dataclasses.replace(CALM, command_timeout=0.3)
    with pytest.raises(BrokerUnavailableError, match=r"within 0\.3 s; check .* that the port speaks TLS"):
        await broker_from_url(url, "ns", quick).check("q")


def test_names_that_cannot_be_used() -> None:
    with pytest.raises(BrokerError, match="the namespace is empty"):
        broker_from_url("redis://h", "")
    broker = broker_from_url("redis://h", "ns")
    with pytest.raises(BrokerError, match="the queue's name is empty"):
        broker.consumer("", WorkerIdentity("r", "w"))
    for identity in (WorkerIdentity("r 1", "w"), WorkerIdentity("r", "w\n1"), WorkerIdentity("", "w")):
        with pytest.raises(BrokerError, match="must be one word"):
            broker.consumer("q", identity)


async def test_passwords() -> None:
    with EmbeddedRedis(args=("--requirepass", "secret")) as server:
        right = server.url.replace("://", "://:secret@")
        await broker_from_url(right, "ns").check("q")
        with pytest.raises(BrokerRefusedError, match="wrong") as caught:
            await broker_from_url(server.url.replace("://", "://:guess@"), "ns").check("q")
        assert "guess" not in str(caught.value)
        with pytest.raises(BrokerRefusedError, match="wants a password"):
            await broker_from_url(server.url, "ns").check("q")
        consumer = broker_from_url(server.url, "ns", CALM).consumer("q", WorkerIdentity("r", "w"))
        with pytest.raises(BrokerRefusedError, match="wants a password"):
            await consumer.receive(1)
        await consumer.close()


async def test_a_command_that_is_not_there_is_named_without_what_was_published() -> None:
    """As at the port of a Sentinel."""
    with EmbeddedRedis(args=("--rename-command", "LPUSH", "")) as server:
        publisher = broker_from_url(server.url, "ns").publisher()
        with pytest.raises(BrokerRefusedError, match=r"unknown command .LPUSH.*redis\+sentinel://") as caught:
            await publisher.publish_many("q", [b'{"card":"4242"}'])
        assert "4242" not in str(caught.value)
        await publisher.close()


async def test_a_password_that_nobody_asked_for(redis_server: EmbeddedRedis) -> None:
    url = redis_server.url.replace("://", "://:secret@")
    with pytest.raises(BrokerRefusedError, match="remove it from the URL"):
        await broker_from_url(url, "ns").check("q")


async def test_a_database_that_does_not_exist(redis_server: EmbeddedRedis) -> None:
    with pytest.raises(BrokerRefusedError, match="does not exist"):
        await broker_from_url(f"{redis_server.url}/99", "ns").check("q")


async def test_databases_are_apart(redis_server: EmbeddedRedis) -> None:
    one, two = (broker_from_url(f"{redis_server.url}/{n}", "databases") for n in (0, 1))
    publisher = two.publisher()
    await publisher.publish_many("q", [b"1"])
    await publisher.close()
    readings = []
    for broker in (one, two):
        inspector = broker.inspector()
        readings.append((await inspector.read("q")).ready)
        await inspector.close()
    assert readings == [0, 1]


async def test_an_acl_that_lacks_the_keys(standalone: Site) -> None:
    standalone.client.execute_command("ACL", "SETUSER", "narrow", "on", ">pw", "~other*", "+@all")
    url = standalone.url.replace("://", "://narrow:pw@")
    with pytest.raises(BrokerRefusedError, match="ACL of this user"):
        await standalone.broker(url=url).check("q")
    with pytest.raises(BrokerRefusedError, match="ACL of this user"):
        await receive(standalone.consumer(url=url))


_WRONG = {
    "ready": "a list",
    "staging": "a list",
    "reservations": "a zset",
    "fence": "a hash",
    "owners": "a hash",
    "liveness": "a zset",
    "processing": "a list",
    "poison": "a list",
    "ledger": "a hash",
}


@pytest.mark.parametrize("key", sorted(_WRONG))
async def test_a_key_of_another_type_is_named_and_nothing_moves(key: str, standalone: Site) -> None:
    name = getattr(standalone.keys, key)
    raw = envelope("a")
    if key != "ready":
        push(standalone, raw)
    standalone.client.set(name, "junk")
    for attempt in (standalone.broker().check("q"), receive(standalone.consumer())):
        with pytest.raises(BrokerRefusedError, match=rf"the key {name} holds a string where {_WRONG[key]}"):
            await attempt
    assert standalone.client.get(name) == b"junk"
    if key != "ready":
        reserved = sum(standalone.client.llen(one) for one in _reservations(standalone))
        assert standalone.client.llen(standalone.keys.ready) + reserved == 1
        standalone.client.delete(name)
        consumer = standalone.consumer("second")
        if reserved:
            hasty = dataclasses.replace(CALM, reservation=0.001)
            for one in _reservations(standalone):
                suffix = one.removeprefix(_prefix(standalone))
                standalone.client.zadd(standalone.keys.reservations, {suffix: 1})
            assert (await standalone.renewer(timing=hasty).recover()).reservations == 1
        assert [one.pid for one in (await receive(consumer)).deliveries] == ["a"]


def _reservations(site: Site) -> list[bytes]:
    found: list[bytes] = site.client.keys(_prefix(site) + b"*")
    return found


def _prefix(site: Site) -> bytes:
    prefix = site.keys.reservation(b"")
    assert isinstance(prefix, bytes)
    return prefix


async def test_a_queue_key_of_another_type_is_named(standalone: Site) -> None:
    standalone.client.hset(standalone.keys.ready, "a", "b")
    with pytest.raises(BrokerRefusedError, match=r"holds a hash where a list belongs; rename or delete"):
        await standalone.broker().check("q")
    with pytest.raises(BrokerRefusedError):
        await standalone.publish(b"1")
    with pytest.raises(BrokerRefusedError, match=r"read the key \S+\.queue\.q"):
        await standalone.read()


@pytest.mark.parametrize("value", [b"1.5", b"", b"many", b"9" * 19, b"0x10"])
async def test_a_counter_that_is_no_number_is_named(value: bytes, standalone: Site) -> None:
    push(standalone, envelope("a"), envelope("b"))
    consumer = standalone.consumer()
    deliveries = (await receive(consumer, 1)).deliveries
    standalone.client.set(standalone.keys.total, value)
    for attempt in (standalone.broker().check("q"), receive(consumer)):
        with pytest.raises(
            BrokerRefusedError, match=r"stats\.q\.total holds .* where a whole number belongs"
        ):
            await attempt
    texts: list[str] = []
    await consumer.settle(
        [Settlement(deliveries[0], Action.COMMIT)], lambda _, outcome, text: texts.append(f"{outcome} {text}")
    )
    assert len(texts) == 1
    assert "UNKNOWN" in texts[0]
    assert "stats.q.total" in texts[0]
    standalone.client.set(standalone.keys.total, 2)
    assert [one.pid for one in (await receive(consumer)).deliveries] == ["b"]
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED]


async def test_a_full_server_can_still_be_emptied(make_site: Callable[..., Site]) -> None:
    with EmbeddedRedis(args=("--maxmemory-policy", "noeviction")) as server:
        site = make_site(server.url, redis.Redis(port=server.port), "ns")
        await site.publish(*[b"1"] * 5)
        consumer = site.consumer()
        first = (await receive(consumer, 4)).deliveries
        site.client.config_set("maxmemory", "1")
        with pytest.raises(BrokerRefusedError, match="maxmemory"):
            await site.publish(b"2")
        with pytest.raises(BrokerRefusedError, match="maxmemory"):
            await receive(consumer)
        outcomes = await settle(consumer, first, Action.COMMIT, Action.REJECT, Action.RELEASE, Action.COMMIT)
        assert outcomes == [Outcome.COMMITTED, Outcome.REJECTED, Outcome.RELEASED, Outcome.COMMITTED]
        site.client.config_set("maxmemory", "0")
        assert len((await receive(consumer)).deliveries) == 1
        reading = await site.read()
        assert (reading.ready, reading.failed, reading.success, reading.owned) == (1, 1, 2, 1)


async def test_unsafe_placement_is_refused_before_anything_moves(redis_cluster: RedisCluster) -> None:
    broker = broker_from_url(redis_cluster.url, "plain", CALM)
    text = r"plain\.queue\.q is in slot \d+ and \S+ in slot \d+; .*\{plain\}"
    with pytest.raises(UnsafePlacementError, match=text):
        await broker.check("q")
    with pytest.raises(UnsafePlacementError, match=text):
        broker.consumer("q", WorkerIdentity("r", "w"))
    with pytest.raises(UnsafePlacementError, match=text):
        broker.renewer("q", WorkerIdentity("r", "w"))
    publisher = broker.publisher()
    with pytest.raises(UnsafePlacementError, match=text):
        await publisher.publish_many("q", [b"1"])
    for node in redis_cluster.nodes:
        with redis.Redis(port=node.port) as client:
            assert client.keys("plain*") == []


async def test_a_plain_url_of_a_cluster_node_is_noticed(redis_cluster: RedisCluster) -> None:
    url = redis_cluster.nodes[0].url
    with pytest.raises(UnsafePlacementError, match="slot"):
        await broker_from_url(url, "plain", CALM).check("q")
    # Some namespace lies on another node than the one in the URL.
    brokers = [broker_from_url(url, f"{{n{number}}}", CALM) for number in range(20)]
    verdicts = await asyncio.gather(*(one.check("q") for one in brokers), return_exceptions=True)
    elsewhere = [one for one in verdicts if one is not None]
    assert 0 < len(elsewhere) < 20
    for verdict in elsewhere:
        assert isinstance(verdict, BrokerUnavailableError)
        assert "use a redis+cluster:// URL" in str(verdict)


async def test_a_cluster_url_of_a_plain_server(redis_server: EmbeddedRedis) -> None:
    url = f"redis+cluster://127.0.0.1:{redis_server.port}"
    with pytest.raises(BrokerError, match=r"use a redis:// URL"):
        await broker_from_url(url, "{ns}", CALM).check("q")


async def test_the_queue_may_carry_the_hash_tag(redis_cluster: RedisCluster) -> None:
    await broker_from_url(redis_cluster.url, "plain", CALM).check("{q}")


async def test_a_replica_is_named(redis_server: EmbeddedRedis) -> None:
    with EmbeddedRedis(args=("--replicaof", "127.0.0.1", str(redis_server.port))) as replica:
        broker = broker_from_url(replica.url, "ns", CALM)
        publisher = broker_from_url(
            replica.url, "ns", dataclasses.replace(CALM, command_timeout=2)
        ).publisher()
        with pytest.raises(BrokerUnavailableError, match=r"read-only replica|MASTERDOWN|loading"):
            await publisher.publish_many("q", [b"1"])
        await publisher.close()
        assert broker.display_url == replica.url


async def test_what_a_server_without_enough_replicas_refuses_is_tried_later(
    make_site: Callable[..., Site],
) -> None:
    """`min-replicas-to-write` bounds what a failover loses; to meet that bound is no fault of the queue."""
    with EmbeddedRedis() as server:
        site = make_site(server.url, redis.Redis(port=server.port), "ns")
        await site.publish(b"1", b"2")
        consumer, renewer = site.consumer(), site.renewer()
        deliveries = (await receive(consumer, 1)).deliveries
        site.client.config_set("min-replicas-to-write", 1)
        for refused in (consumer.receive(1), renewer.extend(deliveries)):
            with pytest.raises(BrokerUnavailableError, match="fewer replicas than min-replicas-to-write"):
                await refused
        settling = asyncio.create_task(settle(consumer, deliveries, Action.COMMIT))
        site.client.config_set("min-replicas-to-write", 0)
        assert await settling == [Outcome.COMMITTED]
        assert [one.payload for one in (await receive(consumer, 1)).deliveries] == [b"2"]


async def test_a_server_that_was_made_a_replica_is_no_lasting_refusal(
    redis_server: EmbeddedRedis, make_site: Callable[..., Site]
) -> None:
    with EmbeddedRedis(args=("--replica-serve-stale-data", "yes")) as server:
        site = make_site(server.url, redis.Redis(port=server.port), "ns")
        consumer = site.consumer()
        await site.publish(b"1", b"2")
        assert len((await receive(consumer, 1)).deliveries) == 1
        # Of nobody: it keeps its data and takes no writes.
        site.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(BrokerUnavailableError, match="read-only replica"):
            await consumer.receive(1)
        site.client.execute_command("REPLICAOF", "NO", "ONE")
        assert [one.payload for one in (await receive(consumer, 1)).deliveries] == [b"2"]


def _self_signed(key: Path, certificate: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)


@contextlib.asynccontextmanager
async def _tls_in_front_of(port: int, key: Path, certificate: Path) -> AsyncIterator[int]:
    """The port of a TLS endpoint for a plain server, so that any build of the server will do."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        for one in (copy(reader, up_writer), copy(up_reader, writer)):
            tasks.add(asyncio.ensure_future(one))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_tls(tmp_path: Path, standalone: Site, redis_server: EmbeddedRedis) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    _self_signed(key, certificate)
    await standalone.publish(b"1")
    async with _tls_in_front_of(redis_server.port, key, certificate) as port:
        url = f"rediss://localhost:{port}?ssl_ca_certs={certificate}"
        await standalone.broker(url=url).check("q")
        consumer = standalone.consumer(timing=dataclasses.replace(CALM, block=0.05), url=url)
        received = await receive(consumer)
        assert await settle(consumer, received.deliveries, Action.COMMIT) == [Outcome.COMMITTED]
        assert not (await receive(consumer)).deliveries
        consumer.interrupt()
        await consumer.close()
        with pytest.raises(BrokerUnavailableError, match="TLS failed"):
            await standalone.broker(url=f"rediss://localhost:{port}").check("q")
        await standalone.broker(url=f"rediss://localhost:{port}?ssl_cert_reqs=none").check("q")


async def test_tls_by_way_of_sentinels(
    tmp_path: Path, redis_server: EmbeddedRedis, make_site: Callable[..., Site]
) -> None:
    """The one scheme means TLS to the Sentinels and to the server that they name."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    _self_signed(key, certificate)
    async with (
        _tls_in_front_of(redis_server.port, key, certificate) as server_port,
        ScriptedSentinel(server_port) as sentinel,
        _tls_in_front_of(sentinel.port, key, certificate) as sentinel_port,
    ):
        url = f"rediss+sentinel://localhost:{sentinel_port}/main"
        site = make_site(f"{url}?ssl_ca_certs={certificate}", redis.Redis(port=redis_server.port), "ns-tls")
        await site.publish(b"1")
        assert len(site.ready()) == 1
        quick = dataclasses.replace(CALM, command_timeout=2)
        with pytest.raises(BrokerUnavailableError, match=r"the Sentinel localhost:\d+ .*TLS failed"):
            await broker_from_url(url, "ns", quick).check("q")
        plain = f"redis+sentinel://127.0.0.1:{sentinel_port}/main"
        with pytest.raises(BrokerUnavailableError, match="no Sentinel names the primary main"):
            await broker_from_url(plain, "ns", quick).check("q")


async def test_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with EmbeddedRedis(args=("--unixsocket", str(path))):
        await broker_from_url(f"unix://{path}", "ns", CALM).check("q")
        path.unlink()
        with pytest.raises(BrokerUnavailableError, match=rf"{path} cannot be reached"):
            await broker_from_url(f"unix://{path}", "ns", CALM).check("q")
