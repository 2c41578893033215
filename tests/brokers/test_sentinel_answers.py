"""What Sentinels say, and what is made of it: who is believed, and what a person reads when nobody is."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis

from tests.brokers.scripted_sentinel import ScriptedSentinel
from tests.brokers.site import CALM, PATIENCE, Site, eventually, receive
from tests.sentinels import NAME, Sentinel, WatchedRedis
from tests.services import EmbeddedRedis, free_port
from worker_runtime.brokers.base import BrokerError, BrokerRefusedError, BrokerUnavailableError
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.redis import sentinel as sentinel_module

#: Most of it is about answers, not about a server; conformance is tried on each version.
pytestmark = pytest.mark.any_server

QUICK = dataclasses.replace(CALM, command_timeout=2)


@pytest.fixture(autouse=True)
def sentinels_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is silent here: who gets no turn for a second has heard them all the same."""
    monkeypatch.setattr(sentinel_module, "ANSWER", 60.0)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+sentinel://h", "names no primary; write redis\\+sentinel://HOST:26379,.../NAME"),
        ("rediss+sentinel://h:1,g:2/?db=1", "names no primary; write rediss\\+sentinel://"),
        ("redis+sentinel://h/main/queue", "'queue' after the name of the primary; a database is a number"),
        ("redis+sentinel://me:sec/ret@h/main", "a / before the @"),
        ("redis+sentinel://h:port/main", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, words: str) -> None:
    with pytest.raises(BrokerError, match=words) as caught:
        broker_from_url(url, "ns")
    assert "sec" not in str(caught.value).replace("Sentinel", "")


async def test_a_name_that_no_sentinel_knows(redis_watched: WatchedRedis) -> None:
    url = redis_watched.url.replace(f"/{NAME}", "/other")
    with pytest.raises(BrokerUnavailableError, match="no Sentinel knows the primary other") as caught:
        await broker_from_url(url, "ns", QUICK).check("q")
    for sentinel in redis_watched.sentinels:
        assert f"127.0.0.1:{sentinel.port} watches nothing of that name" in str(caught.value)


async def test_no_sentinel_can_be_reached() -> None:
    ports = [free_port(), free_port()]
    with pytest.raises(BrokerUnavailableError, match=f"no Sentinel names the primary {NAME}") as caught:
        await broker_from_url(WatchedRedis.url_of(*ports), "ns", QUICK).check("q")
    for port in ports:
        assert f"the Sentinel 127.0.0.1:{port} cannot be reached: connection refused" in str(caught.value)


async def test_one_that_is_dead_and_one_that_is_no_sentinel(
    redis_watched: WatchedRedis, redis_server: EmbeddedRedis
) -> None:
    dead, alive = free_port(), redis_watched.sentinels[2].port
    for ports in ([dead, redis_server.port, alive], [alive, redis_server.port, dead]):
        await broker_from_url(WatchedRedis.url_of(*ports), "ns", QUICK).check("q")
    with pytest.raises(BrokerUnavailableError, match=f"127.0.0.1:{redis_server.port} is not a Sentinel"):
        await broker_from_url(WatchedRedis.url_of(redis_server.port), "ns", QUICK).check("q")


async def test_a_plain_url_of_a_sentinel(redis_watched: WatchedRedis) -> None:
    url = f"redis://127.0.0.1:{redis_watched.sentinels[0].port}"
    with pytest.raises(BrokerRefusedError, match=r"is a Sentinel .*use a redis\+sentinel:// URL"):
        await broker_from_url(url, "ns", QUICK).check("q")


async def test_sentinels_with_users(two_primaries: tuple[EmbeddedRedis, EmbeddedRedis]) -> None:
    with Sentinel(two_primaries[0].port) as sentinel:
        sentinel.ask("ACL", "SETUSER", "asker", "on", ">secret", "+@all")
        sentinel.ask("ACL", "SETUSER", "default", "off")
        url = WatchedRedis.url_of(sentinel.port)
        await broker_from_url(f"{url}?sentinel_username=asker&sentinel_password=secret", "ns").check("q")
        wrong = f"{url}?sentinel_username=asker&sentinel_password=guess"
        for refused in (url, wrong):
            with pytest.raises(BrokerUnavailableError, match="sentinel_password in the URL") as caught:
                await broker_from_url(refused, "ns", QUICK).check("q")
            assert "guess" not in str(caught.value)


async def test_the_user_and_the_database_are_those_of_the_primary(
    redis_watched: WatchedRedis, make_site: Callable[..., Site]
) -> None:
    server = redis_watched.primary()
    with redis.Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~ns*", "+@all")
    url = redis_watched.url.replace("://", "://worker:secret@") + "/3"
    site = make_site(url, redis.Redis(port=server.port, db=3), "ns")
    await site.publish(b"1")
    assert len(site.ready()) == 1
    assert site.broker().display_url == redis_watched.url.replace("://", "://worker@") + "/3"
    with redis.Redis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "worker", "-role")
    with pytest.raises(BrokerRefusedError, match=r"allow the user the command ROLE \(\+role\)"):
        await site.broker().check("q")


# What real Sentinels cannot be kept saying.


@pytest.fixture
async def scripted(
    two_primaries: tuple[EmbeddedRedis, EmbeddedRedis],
) -> AsyncIterator[list[ScriptedSentinel]]:
    """Three that name the first of two servers, each of which takes itself for the primary."""
    sentinels = [ScriptedSentinel(two_primaries[0].port) for _ in range(3)]
    for sentinel in sentinels:
        await sentinel.start()
    yield sentinels
    for sentinel in sentinels:
        await sentinel.stop()


@pytest.fixture(scope="module")
def two_primaries() -> Iterator[tuple[EmbeddedRedis, EmbeddedRedis]]:
    with EmbeddedRedis() as one, EmbeddedRedis() as other:
        yield one, other
        for server in (one, other):
            server.send(signal.SIGCONT)


@pytest.fixture
def divided(
    scripted: list[ScriptedSentinel],
    two_primaries: tuple[EmbeddedRedis, EmbeddedRedis],
    make_site: Callable[..., Site],
    request: pytest.FixtureRequest,
) -> Site:
    url = WatchedRedis.url_of(*(sentinel.port for sentinel in scripted))
    return make_site(url, redis.Redis(port=two_primaries[0].port), f"ns-{request.node.name}")


async def test_a_sentinel_that_names_a_replica_is_passed_over(
    redis_watched: WatchedRedis, make_site: Callable[..., Site]
) -> None:
    primary = redis_watched.primary()
    replica = redis_watched.other(primary)
    async with ScriptedSentinel(replica.port, epoch=0) as stale:
        both = WatchedRedis.url_of(stale.port, redis_watched.sentinels[0].port)
        site = make_site(both, redis.Redis(port=primary.port), "ns-stale")
        assert (await site.read()).server == f"127.0.0.1:{primary.port}"
        with pytest.raises(BrokerUnavailableError, match="says that it is a slave: the Sentinels are behind"):
            await broker_from_url(WatchedRedis.url_of(stale.port), "ns", QUICK).check("q")


async def test_without_epochs_the_server_that_is_the_primary_is_found(
    redis_watched: WatchedRedis, make_site: Callable[..., Site]
) -> None:
    """Not every user may ask for them, and not everything that answers like a Sentinel knows them."""
    primary = redis_watched.primary()
    async with (
        ScriptedSentinel(redis_watched.other(primary).port, epoch=-1) as stale,
        ScriptedSentinel(primary.port, epoch=-1) as right,
    ):
        both = WatchedRedis.url_of(stale.port, right.port)
        site = make_site(both, redis.Redis(port=primary.port), "ns-no-epochs")
        assert (await site.read()).server == f"127.0.0.1:{primary.port}"


async def test_the_newest_epoch_counts_and_not_the_majority(
    divided: Site, scripted: list[ScriptedSentinel], two_primaries: tuple[EmbeddedRedis, EmbeddedRedis]
) -> None:
    scripted[2].says(two_primaries[1].port, epoch=2)
    assert (await divided.read()).server == f"127.0.0.1:{two_primaries[1].port}"


async def test_a_wait_ends_when_the_sentinels_name_another_server(
    divided: Site, scripted: list[ScriptedSentinel], two_primaries: tuple[EmbeddedRedis, EmbeddedRedis]
) -> None:
    consumer = divided.consumer(timing=dataclasses.replace(CALM, block=10_000))
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(lambda: asyncio.to_thread(_blocked, divided.client))
    for sentinel in scripted:
        sentinel.says(two_primaries[1].port, epoch=2)
    with pytest.raises(
        BrokerUnavailableError, match=f"name 127.0.0.1:{two_primaries[1].port} as the primary"
    ):
        await asyncio.wait_for(waiting, PATIENCE)
    await divided.publish(b"1")
    assert [one.payload for one in (await receive(consumer)).deliveries] == [b"1"]
    assert divided.ready() == []


def _blocked(client: redis.Redis) -> bool:
    return bool(client.info("clients")["blocked_clients"])


async def test_a_connection_in_the_making_is_given_up_for_another_server(
    divided: Site, scripted: list[ScriptedSentinel], two_primaries: tuple[EmbeddedRedis, EmbeddedRedis]
) -> None:
    """The old primary is frozen: its kernel takes the connection, and nobody answers."""
    old, new = two_primaries
    old.send(signal.SIGSTOP)
    try:
        publisher = divided.broker(dataclasses.replace(CALM, command_timeout=10_000)).publisher()
        publishing = asyncio.create_task(publisher.publish_many("q", [b"1"]))
        await eventually(lambda: _asked(scripted[0]))
        for sentinel in scripted:
            sentinel.says(new.port, epoch=2)
        assert len(await asyncio.wait_for(publishing, PATIENCE)) == 1
        await publisher.close()
    finally:
        old.send(signal.SIGCONT)
    assert (await divided.read()).ready == 1


async def test_a_server_that_says_it_cannot_serve_now_is_asked_about_at_once(
    divided: Site,
    scripted: list[ScriptedSentinel],
    two_primaries: tuple[EmbeddedRedis, EmbeddedRedis],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentinel_module, "LOOK", 10_000)
    new = two_primaries[1]
    consumer = divided.consumer(timing=dataclasses.replace(CALM, block=0.05))
    assert not (await receive(consumer)).deliveries
    for sentinel in scripted:
        sentinel.says(new.port, epoch=2)
    await divided.publish(b"1")
    # It keeps its clients, and answers MASTERDOWN, also to what would be refused as a write otherwise.
    divided.client.config_set("replica-serve-stale-data", "no")
    divided.client.config_set("replica-read-only", "no")
    divided.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    try:
        told: list[str] = []
        while len(told) <= 2:
            try:
                received = await receive(consumer)
                break
            except BrokerUnavailableError as error:
                told.append(str(error))
        assert 1 <= len(told) <= 2, "each of its two connections is told once"
        assert all("MASTERDOWN" in one for one in told)
        assert [one.payload for one in received.deliveries] == [b"1"]
    finally:
        divided.client.config_set("replica-read-only", "yes")
        divided.client.execute_command("REPLICAOF", "NO", "ONE")


async def test_those_that_are_behind_are_not_believed(
    divided: Site, scripted: list[ScriptedSentinel], two_primaries: tuple[EmbeddedRedis, EmbeddedRedis]
) -> None:
    for sentinel in scripted:
        sentinel.says(two_primaries[1].port, epoch=5)
    broker = divided.broker(QUICK)
    await broker.check("q")
    scripted[0].says(two_primaries[0].port, epoch=4)
    await scripted[1].stop()
    await scripted[2].stop()
    with pytest.raises(BrokerUnavailableError, match=r"epoch 5 was seen before, and now .*epoch 4") as caught:
        await broker.check("q")
    assert f"127.0.0.1:{scripted[1].port} cannot be reached" in str(caught.value)
    await scripted[2].start()
    await broker.check("q")


async def test_sentinels_that_were_set_up_anew_are_believed_in_the_end(
    divided: Site,
    scripted: list[ScriptedSentinel],
    two_primaries: tuple[EmbeddedRedis, EmbeddedRedis],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their epochs begin at zero again; nobody should have to restart every worker for that."""
    monkeypatch.setattr(sentinel_module, "SET_UP_ANEW", 0.5)
    for sentinel in scripted:
        sentinel.says(two_primaries[0].port, epoch=5)
    broker = divided.broker(QUICK)
    await broker.check("q")
    for sentinel in scripted:
        sentinel.says(two_primaries[1].port, epoch=0)
    with pytest.raises(BrokerUnavailableError, match="no Sentinel is up to date"):
        await broker.check("q")
    publisher = broker.publisher()
    await publisher.publish_many("q", [b"1"])
    await publisher.close()
    with redis.Redis(port=two_primaries[1].port) as client:
        assert client.llen(divided.keys.ready) == 1


async def test_without_any_sentinel_a_connection_goes_on_and_the_log_says_so_once(
    divided: Site, scripted: list[ScriptedSentinel], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "queueworker.sentinel")
    consumer = divided.consumer(timing=dataclasses.replace(CALM, block=10_000))
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(lambda: asyncio.to_thread(_blocked, divided.client))
    asked = scripted[0].asked
    for sentinel in scripted[1:]:
        await sentinel.stop()
    scripted[0].says(names=0, epoch=0)
    await eventually(lambda: _asked(scripted[0], asked + 3))
    assert "a failover would not be noticed here" in caplog.text
    divided.client.lpush(
        divided.keys.ready, b'{"pid":"p","queue":"q","timestamp":1,"payload":1,"attempts":0}'
    )
    assert len((await asyncio.wait_for(waiting, PATIENCE)).deliveries) == 1
    again = asyncio.create_task(consumer.receive(1))
    await scripted[1].start()
    await eventually(lambda: _logged(caplog, "answer again after"))
    assert len(caplog.records) == 2, caplog.text
    consumer.interrupt()
    await again


async def _logged(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


async def test_nothing_is_asked_when_nothing_is_connected(
    divided: Site, scripted: list[ScriptedSentinel]
) -> None:
    await divided.broker().check("q")
    await eventually(lambda: _alone(scripted))


async def _asked(sentinel: ScriptedSentinel, times: int = 1) -> bool:
    return sentinel.asked >= times


async def _alone(scripted: list[ScriptedSentinel]) -> bool:
    return all(not sentinel.connections for sentinel in scripted)
