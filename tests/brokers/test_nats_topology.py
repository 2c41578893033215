"""Making a queue on JetStream, judging one that is there, and what may be published into it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.brokers.nats_proxy import Answer, Fault, NatsProxy, Sent
from tests.brokers.nats_site import NatsSite
from tests.brokers.site import CALM, receive, settle
from tests.services import EmbeddedNats, free_port
from worker_runtime.brokers.base import (
    Action,
    BrokerError,
    BrokerRefusedError,
    BrokerUnavailableError,
    Delivery,
    Outcome,
    PayloadRefusedError,
    Presence,
    QueueUnusableError,
    WorkerIdentity,
)
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.dead import RESERVED
from worker_runtime.brokers.nats.names import DURABLE, names_of, token, untoken
from worker_runtime.brokers.nats.topology import Plan

#: The version of the Redis server makes no difference.
pytestmark = pytest.mark.any_server

#: What a process of utopia-php/queue 4 writes at its start.
OLD_STREAM = {
    "name": "Q_Q",
    "subjects": ["q.q.normal", "q.q.priority"],
    "retention": "workqueue",
    "storage": "file",
    "metadata": {"utopia_queue_identity": "12:utopia-queue:q"},
}
OLD_CONSUMER = {
    "durable_name": "worker",
    "ack_policy": "explicit",
    "filter_subject": "q.q.normal",
    "ack_wait": 30_000_000_000,
    "max_deliver": 5,
}


async def an_old_process_starts(site: NatsSite) -> None:
    await api.find(site.link, "STREAM.UPDATE.Q_Q", OLD_STREAM, "update")
    await api.find(site.link, "STREAM.CREATE.Q_Q", OLD_STREAM, "create")
    body = {"stream_name": "Q_Q", "config": OLD_CONSUMER}
    await api.call(site.link, f"CONSUMER.DURABLE.CREATE.Q_Q.{DURABLE}", body, "create")


async def test_provisioning_twice_changes_nothing(on_nats: NatsSite) -> None:
    before = await on_nats.consumer_info()
    told = await on_nats.provision()
    assert [line.split()[0] for line in told] == ["found"] * 5
    after = await on_nats.consumer_info()
    assert (after["config"], after["created"]) == (before["config"], before["created"])


async def test_a_queue_is_made_as_it_was_asked_for(on_nats: NatsSite) -> None:
    await on_nats.clear()
    await on_nats.provision(storage="memory", max_age=3600, ack_wait=45, max_deliver=7, max_ack_pending=9)
    stream = await api.stream_info(on_nats.link, on_nats.names.stream)
    dead = await api.stream_info(on_nats.link, on_nats.names.dead_stream)
    assert stream is not None
    assert dead is not None
    held = stream["config"]
    assert (held["storage"], held["max_age"], held["num_replicas"]) == ("memory", 3600 * 10**9, 1)
    # Dead letters stay until somebody decides.
    assert (dead["config"]["storage"], dead["config"]["max_age"]) == ("memory", 0)
    of = (await on_nats.consumer_info())["config"]
    assert (of["ack_wait"], of["max_deliver"], of["max_ack_pending"]) == (45 * 10**9, 7, 9)


async def test_provisioning_leaves_what_an_older_process_made(on_nats: NatsSite) -> None:
    await on_nats.clear()
    await an_old_process_starts(on_nats)
    made = (await on_nats.consumer_info())["config"]
    told = await on_nats.provision(ack_wait=77, max_ack_pending=5)
    assert (await on_nats.consumer_info())["config"] == made
    assert any("left the consumer" in line and "ack_wait" in line for line in told)
    await on_nats.nats(dataclasses.replace(CALM, expiry=60)).check("q")
    await on_nats.provision(ack_wait=77, max_ack_pending=5, update=True)
    changed = (await on_nats.consumer_info())["config"]
    assert (changed["ack_wait"], changed["max_ack_pending"]) == (77_000_000_000, 5)


async def test_an_older_process_may_start_beside_a_worker(on_nats: NatsSite) -> None:
    await on_nats.publish(b"1")
    consumer, renewer = on_nats.consumer(), on_nats.renewer()
    [delivery] = (await receive(consumer)).deliveries
    await an_old_process_starts(on_nats)
    assert not await renewer.extend([delivery])
    assert await settle(consumer, [delivery], Action.COMMIT) == [Outcome.COMMITTED]
    assert (await on_nats.read()).ready == 0


async def test_an_ack_wait_that_is_shortened_under_a_worker_is_told_and_kept(
    on_nats: NatsSite, caplog: pytest.LogCaptureFixture
) -> None:
    await on_nats.publish(b"1", b"2")
    timing = dataclasses.replace(CALM, expiry=600)
    broker, me = on_nats.nats(timing), WorkerIdentity("r1", "w1")
    await broker.check("q")
    receiver, renewer = broker.consumer("q", me), broker.renewer("q", me)
    deliveries = (await receive(receiver)).deliveries
    await renewer.announce(Presence(True, 2, 1, 2))
    assert not caplog.records
    await on_nats.provision(ack_wait=4, update=True)
    await renewer.announce(Presence(True, 2, 1, 2))
    [record] = caplog.records
    assert "was 600 s and is 4 s now" in record.getMessage()
    assert not await renewer.extend(deliveries)
    # From now on an answer counts for four seconds, and then it is held back.
    other = on_nats.consumer("other", timing=dataclasses.replace(CALM, expiry=4))
    again: list[Delivery] = []
    while len(again) < 2:
        again += (await receive(other)).deliveries
    assert await settle(receiver, deliveries, Action.COMMIT) == [Outcome.SUPERSEDED] * 2
    await receiver.close()
    await renewer.close()


async def test_what_others_have_since_its_ack_wait_was_shortened_is_not_renewed(on_nats: NatsSite) -> None:
    """The shorter one counts from the last renewal: the server has handed it out again before the next."""
    await on_nats.publish(b"1", b"2")
    broker, me = on_nats.nats(), WorkerIdentity("r1", "w1")
    receiver, renewer = broker.consumer("q", me), broker.renewer("q", me)
    deliveries = (await receive(receiver)).deliveries
    await on_nats.provision(ack_wait=1, update=True)
    other = on_nats.consumer("other", timing=dataclasses.replace(CALM, expiry=1))
    again: set[str] = set()
    while len(again) < 2:
        again |= {one.pid for one in (await receive(other)).deliveries}
    await renewer.announce(Presence(True, 2, 1, 2))
    assert list(await renewer.extend(deliveries)) == list(deliveries)
    assert await settle(receiver, deliveries, Action.COMMIT) == [Outcome.SUPERSEDED] * 2
    assert await on_nats.stored(on_nats.names.stream) == 2
    await receiver.close()
    await renewer.close()


async def test_a_stream_of_another_queue_is_refused_and_nothing_is_made(on_nats: NatsSite) -> None:
    other = on_nats.nats()
    await other.provision("a.b", Plan())
    with pytest.raises(BrokerRefusedError, match=re.escape("belongs to the queue '12:utopia-queue:a.b'")):
        await other.provision("a_b", Plan())
    with pytest.raises(BrokerRefusedError, match="belongs to the queue"):
        await other.check("a_b")
    elsewhere = NatsSite(on_nats.url, "another")
    with pytest.raises(BrokerRefusedError, match="one account for each namespace"):
        await elsewhere.provision()
    await elsewhere.close()


async def test_what_reads_or_fences_refuses_the_queue_of_another_namespace(on_nats: NatsSite) -> None:
    elsewhere = NatsSite(on_nats.url, "another")
    inspector, fences = elsewhere.nats().inspector(), elsewhere.nats().fences()
    with pytest.raises(BrokerRefusedError, match="belongs to the queue"):
        await inspector.read("q")
    for change in (fences.fence("q", "r1", "stop"), fences.unfence("q", "r1"), fences.fences("q")):
        with pytest.raises(BrokerRefusedError, match="belongs to the queue"):
            await change
    await inspector.close()
    await fences.close()
    await elsewhere.close()
    assert not (await on_nats.read()).fences


async def test_publishing_into_the_queue_of_another_namespace_is_refused(
    on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    async with NatsProxy(nats_server.port) as proxy:
        ours = on_nats.nats(url=proxy.url).publisher()
        for _ in range(3):
            await ours.publish_many("q", [b"1", b"2"])
        await ours.close()
        assert sum(sent.subject.startswith("$JS.API") for sent in proxy.log) == 1, "one look for each queue"
    elsewhere = NatsSite(on_nats.url, "another")
    publisher = elsewhere.nats().publisher()
    for _ in range(2):
        with pytest.raises(BrokerRefusedError, match="belongs to the queue '12:utopia-queue:q'"):
            await publisher.publish_many("q", [b"3"])
    await publisher.close()
    await elsewhere.close()
    assert await on_nats.stored(on_nats.names.stream) == 6


async def test_a_stream_that_has_the_subjects_of_a_queue_is_named(on_nats: NatsSite) -> None:
    config = {"name": "FOO", "subjects": ["q.mine.>"]}
    await api.call(on_nats.link, "STREAM.CREATE.FOO", config, "create")
    try:
        with pytest.raises(
            QueueUnusableError, match=r"FOO takes q\.mine\.normal and q\.mine\.priority; take"
        ):
            await on_nats.nats().provision("mine", Plan())
    finally:
        await api.call(on_nats.link, "STREAM.DELETE.FOO", None, "delete")


async def test_a_stream_of_somebody_else_does_not_take_what_is_published(on_nats: NatsSite) -> None:
    config = {"name": "FOO", "subjects": ["q.taken.normal"]}
    await api.call(on_nats.link, "STREAM.CREATE.FOO", config, "create")
    publisher = on_nats.nats().publisher()
    try:
        with pytest.raises(BrokerRefusedError, match=r"publish to taken.*expected stream.*0 are published"):
            await publisher.publish_many("taken", [b"1"])
        assert await on_nats.stored("FOO") == 0
    finally:
        await publisher.close()
        await api.call(on_nats.link, "STREAM.DELETE.FOO", None, "delete")


async def test_a_queue_that_is_not_there_is_refused_with_the_command_that_makes_it(on_nats: NatsSite) -> None:
    with pytest.raises(BrokerRefusedError, match="queueworker provision nowhere"):
        await on_nats.nats().check("nowhere")
    publisher = on_nats.nats(dataclasses.replace(CALM, command_timeout=2)).publisher()
    with pytest.raises(BrokerUnavailableError, match="queueworker provision"):
        await publisher.publish_many("nowhere", [b"1"])
    await publisher.close()
    await api.call(on_nats.link, f"CONSUMER.DELETE.Q_Q.{DURABLE}", None, "delete")
    with pytest.raises(BrokerRefusedError, match="no consumer worker; run"):
        await on_nats.nats().check("q")


async def test_an_ack_wait_below_the_renewal_period_is_refused(on_nats: NatsSite) -> None:
    await on_nats.provision(ack_wait=10, update=True)
    with pytest.raises(BrokerRefusedError, match=r"after 10 s.*renews every 20 s.*--ack-wait 60 --update"):
        await on_nats.nats(dataclasses.replace(CALM, expiry=60)).check("q")
    broker = on_nats.nats(dataclasses.replace(CALM, expiry=24))
    await broker.check("q")
    # Renewed three times within the ack wait, not within the expiry that was asked for.
    assert broker.timing("q").renewal_period == pytest.approx(10 / 3)


async def test_a_backoff_counts_as_the_ack_wait_of_its_delivery(on_nats: NatsSite) -> None:
    config = {**OLD_CONSUMER, "backoff": [600_000_000_000, 2_000_000_000]}
    body = {"stream_name": "Q_Q", "config": config}
    await api.call(on_nats.link, f"CONSUMER.DURABLE.CREATE.Q_Q.{DURABLE}", body, "update")
    with pytest.raises(BrokerRefusedError, match="after 2 s"):
        await on_nats.nats(dataclasses.replace(CALM, expiry=60)).check("q")


async def test_a_consumer_of_another_kind_is_refused(on_nats: NatsSite) -> None:
    await api.call(on_nats.link, f"CONSUMER.DELETE.Q_Q.{DURABLE}", None, "delete")
    body = {"stream_name": "Q_Q", "config": {**OLD_CONSUMER, "filter_subject": "q.q.priority"}}
    await api.call(on_nats.link, f"CONSUMER.DURABLE.CREATE.Q_Q.{DURABLE}", body, "create")
    with pytest.raises(BrokerRefusedError, match=r"takes q\.q\.priority and not q\.q\.normal"):
        await on_nats.nats().check("q")


async def test_a_payload_at_the_limit_is_published_and_buried_one_over_it_is_not(on_nats: NatsSite) -> None:
    envelope = len('{"pid":"","queue":"q","timestamp":1234567890,"payload":}') + 23
    header = len("NATS/1.0\r\nNats-Expected-Stream: Q_Q\r\nNats-Msg-Id: \r\n\r\n") + 23
    most = 1024 * 1024 - RESERVED - envelope - header
    fits = b'"%b"' % (b"x" * (most - 2))
    with pytest.raises(PayloadRefusedError, match=rf"{most + 1} bytes.*takes {1024 * 1024 - RESERVED}"):
        await on_nats.publish(b"1", fits + b" ")
    assert (await on_nats.read()).ready == 0
    await on_nats.publish(fits)
    consumer = on_nats.consumer()
    [delivery] = (await receive(consumer)).deliveries
    assert delivery.payload == fits
    assert await settle(consumer, [delivery], Action.DEAD) == [Outcome.REJECTED]
    [held] = await on_nats.maintenance().retained("q")
    assert (held.payload, held.why) == (fits, "handler")


async def test_a_foreign_message_as_large_as_the_server_takes_is_buried_too(on_nats: NatsSite) -> None:
    body = b'{"pid":"p","queue":"q","timestamp":1,"payload":"'
    body += b"x" * (1024 * 1024 - len(body) - 2) + b'"}'
    await on_nats.put(body)
    consumer = on_nats.consumer()
    [delivery] = (await receive(consumer)).deliveries
    assert await settle(consumer, [delivery], Action.DEAD) == [Outcome.REJECTED]
    assert len(await on_nats.maintenance().retained("q")) == 1


async def test_an_absent_server_is_told_with_its_address() -> None:
    site = NatsSite(f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(
        BrokerUnavailableError, match=rf"{site.url.removeprefix('nats://')} cannot be reached"
    ):
        await site.nats().check("q")
    await site.close()


async def test_an_account_or_a_server_without_jetstream_is_refused(
    on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    accounts = "accounts { A { users: [{user: a, password: a}] } }"
    with EmbeddedNats(config=accounts) as server:
        site = NatsSite(server.url.replace("//", "//a:a@"))
        with pytest.raises(QueueUnusableError, match=r"not enabled for account.*`jetstream: enabled`"):
            await site.nats().check("q")
        publisher = site.nats().publisher()
        with pytest.raises(QueueUnusableError, match="`jetstream: enabled`"):
            await publisher.publish_many("q", [b"1"])
        await publisher.close()
        await site.close()
    with EmbeddedNats(config="jetstream: disabled") as server:
        with pytest.raises(QueueUnusableError, match=r"has no JetStream.*add a jetstream block"):
            await NatsSite(server.url).nats().check("q")

    def nobody(sent: Sent) -> Fault | Answer:
        return Answer(503, "") if sent.subject.startswith("$JS.API.") else Fault.PASS

    # One that has JetStream is electing a leader.
    async with NatsProxy(nats_server.port, nobody) as proxy:
        with pytest.raises(BrokerUnavailableError, match="electing a leader"):
            await on_nats.nats(url=proxy.url).check("q")


@pytest.mark.parametrize("queue", ["", "a b", "a.*", ">", "a..b", ".a", "x" * 201])
def test_a_name_that_cannot_be_part_of_a_subject_is_refused(queue: str) -> None:
    with pytest.raises(BrokerError, match="name"):
        names_of("ns", queue)


@pytest.mark.parametrize("word", ["r1", "v1.2.3+build 7", "*", "é/ü", "a=b"])
def test_every_revision_makes_one_token_of_its_own(word: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9=_-]+", token(word))
    assert untoken(token(word)) == word
