"""Limits of a JetStream account and its server: told with the way out, and nothing is lost at them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tests.brokers.nats_site import NatsSite
from tests.brokers.site import CALM, PATIENCE, eventually, receive, settle
from tests.services import EmbeddedNats
from worker_runtime import App
from worker_runtime.brokers.base import (
    Action,
    BrokerError,
    BrokerFullError,
    BrokerRefusedError,
    BrokerUnavailableError,
    Outcome,
    PayloadRefusedError,
    Settlement,
)
from worker_runtime.brokers.nats import api

#: The version of the Redis server makes no difference.
pytestmark = pytest.mark.any_server

#: A lost answer is given up soon.
SHORT = dataclasses.replace(CALM, command_timeout=3)
LARGE = b'"%b"' % (b"x" * 2000)


@contextmanager
def account(jetstream: str = "enabled", limits: str = "") -> Iterator[EmbeddedNats]:
    """A server with one account and one user, a:a."""
    parts = [f"jetstream: {jetstream}", f"limits: {{ {limits} }}", "users: [{user: a, password: a}]"]
    with EmbeddedNats(config=f"accounts {{ A {{ {', '.join(parts)} }} }}") as server:
        yield server


@asynccontextmanager
async def queue_on(server: EmbeddedNats) -> AsyncIterator[NatsSite]:
    site = NatsSite(server.url.replace("//", "//a:a@"))
    try:
        await site.provision()
        yield site
    finally:
        await site.close()


async def test_an_account_without_room_takes_nothing_and_loses_nothing() -> None:
    with account("{max_file: 100K, max_mem: 0}") as server:
        async with queue_on(server) as site:
            with pytest.raises(
                BrokerFullError, match=r"resource limits .* raise the JetStream limits"
            ) as told:
                await site.publish(*[LARGE] * 200)
            published = len(told.value.confirmed)
            assert 0 < published < 200
            assert (await site.read()).ready == published
            with pytest.raises(BrokerFullError, match="raise the JetStream limits"):
                await site.fences().fence("q", "r1", "x" * 3000)
            # There is no room for dead letters either: what should be one stays where it is.
            consumer, why = site.consumer(timing=SHORT), []
            deliveries = (await receive(consumer, 20)).deliveries
            await consumer.settle(
                [Settlement(one, Action.DEAD) for one in deliveries],
                lambda _, outcome, text: why.append((outcome, text)),
            )
            assert {outcome for outcome, _ in why} == {Outcome.UNKNOWN}
            assert "raise the JetStream limits" in why[0][1]
            assert await site.stored(site.names.stream) == published
            # Work that is done makes room, and what waited for room goes on.
            left = (await receive(consumer, 10)).deliveries
            assert set(await settle(consumer, left, Action.COMMIT)) == {Outcome.COMMITTED}
            [one] = (await receive(consumer, 1)).deliveries
            assert await settle(consumer, [one], Action.DEAD) == [Outcome.REJECTED]


async def test_what_was_enqueued_for_a_full_stream_waits_and_is_sent_once(on_nats: NatsSite) -> None:
    info = await api.stream_info(on_nats.link, on_nats.names.stream)
    assert info is not None
    config = {**info["config"], "max_msgs": 5, "discard": "new"}
    await api.call(on_nats.link, f"STREAM.UPDATE.{on_nats.names.stream}", config, "limit")
    app = App(on_nats.url, on_nats.namespace)
    for number in range(30):
        await app.enqueue("q", number)
    consumer = on_nats.consumer()
    got: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while len(got) < 30:
            deliveries = (await consumer.receive(100)).deliveries
            got += [one.payload for one in deliveries]
            await settle(consumer, deliveries, Action.COMMIT)
    await app.close()
    assert sorted(got, key=int) == [b"%d" % n for n in range(30)]


async def test_a_server_without_room_says_so() -> None:
    with EmbeddedNats(jetstream="max_file: 100K") as server:
        async with queue_on(server) as site:
            with pytest.raises(BrokerUnavailableError, match=r"insufficient resources .*max_file"):
                await site.publish(*[LARGE] * 200)


async def test_an_account_that_may_make_no_more_streams() -> None:
    with account("{max_file: 10M, max_streams: 2}") as server:
        site = NatsSite(server.url.replace("//", "//a:a@"))
        with pytest.raises(BrokerRefusedError, match=r"number of streams reached .* each queue needs four"):
            await site.provision()
        await site.close()


async def test_a_stream_that_may_have_no_more_consumers() -> None:
    with account() as server:
        site = NatsSite(server.url.replace("//", "//a:a@"))
        config = {
            "name": "Q_Q",
            "subjects": ["q.q.normal", "q.q.priority"],
            "retention": "workqueue",
            "max_consumers": 1,
        }
        await api.call(site.link, "STREAM.CREATE.Q_Q", config, "create")
        other = {"durable_name": "other", "ack_policy": "explicit", "filter_subject": "q.q.priority"}
        body = {"stream_name": "Q_Q", "config": other}
        await api.call(site.link, "CONSUMER.DURABLE.CREATE.Q_Q.other", body, "create")
        with pytest.raises(BrokerRefusedError, match="limit for consumers"):
            await site.provision()
        await site.close()


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ("max_connections: 1", "connections exceeded.*four connections for each job: raise max_connections"),
        ("max_subscriptions: 1", "subscriptions exceeded.*raise max_subscriptions"),
    ],
)
async def test_too_few_connections_or_subscriptions(limits: str, text: str) -> None:
    with account(limits=limits) as server:
        site = NatsSite(server.url.replace("//", "//a:a@"))
        # The server may count a connection for a moment longer than we have it.
        await once_it_is_let_in(site.provision)
        await once_it_is_let_in(lambda: site.publish(b"1"))
        consumer = site.consumer(timing=SHORT)
        with pytest.raises(BrokerUnavailableError, match=text):
            await receive(consumer)
        await consumer.close()
        await once_it_is_let_in(lambda: site.stored(site.names.stream))
        assert await site.stored(site.names.stream) == 1
        await site.close()


async def once_it_is_let_in(step: Callable[[], Awaitable[object]]) -> None:
    async def is_let_in() -> bool:
        try:
            await step()
        except BrokerUnavailableError:
            return False
        return True

    await eventually(is_let_in)


async def test_a_payload_over_the_limit_of_the_account_is_refused_by_every_way_to_publish() -> None:
    with account(limits="max_payload: 8K") as server:
        async with queue_on(server) as site:
            app = App(site.url, site.namespace)
            large = {"text": "x" * 9000}
            with pytest.raises(PayloadRefusedError, match=r"takes 6976 .*or raise max_payload"):
                await app.publish("q", large)
            with pytest.raises(PayloadRefusedError):
                await app.publish_many("q", [1, large, 2])
            assert (await site.read()).ready == 0
            for number in range(100):
                await app.enqueue("q", large if number == 50 else number)
            # The one is refused in the background, and nobody with it.
            with pytest.raises(BrokerError, match="1 enqueued messages"):
                await app.close()
            assert (await site.read()).ready == 99


async def test_a_reject_whose_reason_fits_no_more_keeps_the_message() -> None:
    with account(limits="max_payload: 8K") as server:
        async with queue_on(server) as site:
            body = b'{"pid":"p","queue":"q","timestamp":1,"payload":"'
            body += b"x" * (8000 - len(body) - 2) + b'"}'
            await site.put(body)
            await site.publish(b'"%b"' % (b"x" * 6000))
            consumer = site.consumer(timing=SHORT)
            deliveries = (await receive(consumer)).deliveries
            outcomes: list[Outcome] = []
            await consumer.settle(
                [Settlement(one, Action.DEAD, "reason " * 900, why="handler") for one in deliveries],
                lambda _, outcome, __: outcomes.append(outcome),
            )
            assert outcomes == [Outcome.REJECTED] * 2
            held = await site.maintenance().retained("q")
            assert len(held) == 2
            cut = next(one for one in held if one.pid != "p")
            assert cut.reason.startswith("reason reason")
            assert cut.payload == b'"%b"' % (b"x" * 6000)
