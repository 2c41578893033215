"""JetStream: lost answers, dead connections, every way in which a pull can end, servers that are killed."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time

import pytest

from tests.brokers.nats_proxy import Answer, Fault, NatsProxy, Rule, Sent
from tests.brokers.nats_site import NatsSite, fresh_site
from tests.brokers.site import CALM, PATIENCE, eventually, receive, settle
from tests.services import EmbeddedNats
from worker_runtime.brokers.base import (
    Action,
    BrokerError,
    BrokerRefusedError,
    BrokerUnavailableError,
    Consumer,
    Delivery,
    Outcome,
    Presence,
    Settlement,
    WorkerIdentity,
)
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.names import DURABLE

#: The version of the Redis server makes no difference.
pytestmark = pytest.mark.any_server

#: A lost answer is given up soon; nothing else in these tests takes as long, on a busy machine either.
SHORT = dataclasses.replace(CALM, command_timeout=3.0)


def on_ack(*faults: Fault) -> Rule:
    """What becomes of the first acknowledgements, one after the other."""
    left = list(faults)

    def rule(sent: Sent) -> Fault:
        return left.pop(0) if sent.is_ack and left else Fault.PASS

    return rule


def on_pull(*answers: Answer | Fault) -> Rule:
    left = list(answers)

    def rule(sent: Sent) -> Fault | Answer:
        return left.pop(0) if sent.is_pull and left else Fault.PASS

    return rule


async def test_one_lost_answer_is_unknown_and_the_others_are_told_before_it_is(
    on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    await on_nats.publish(*(b"%d" % n for n in range(50)))
    lost = on_ack(*[Fault.PASS] * 20, Fault.SWALLOW)
    async with NatsProxy(nats_server.port, lost) as proxy:
        consumer = on_nats.consumer(timing=SHORT, url=proxy.url)
        deliveries = (await receive(consumer)).deliveries
        outcomes: list[tuple[bytes, Outcome]] = []
        most = asyncio.Event()

        def note(settlement: Settlement, outcome: Outcome, _: str) -> None:
            outcomes.append((settlement.delivery.payload, outcome))
            if len(outcomes) == 49:
                most.set()

        settling = asyncio.create_task(
            consumer.settle([Settlement(one, Action.COMMIT) for one in deliveries], note)
        )
        await asyncio.wait_for(most.wait(), PATIENCE)
        assert not settling.done()
        assert {outcome for _, outcome in outcomes} == {Outcome.COMMITTED}
        await asyncio.wait_for(settling, PATIENCE)
        assert outcomes[-1] == (b"20", Outcome.UNKNOWN)
        acks = [sent.subject for sent in proxy.log if sent.is_ack]
        assert len(acks) == len(set(acks)) == 50
    assert await on_nats.stored(on_nats.names.stream) == 1


def swallows_questions(*, first: int) -> Rule:
    """Whoever should answer the first questions for a fence died with them."""
    left = first

    def rule(sent: Sent) -> Fault:
        nonlocal left
        if not sent.subject.startswith("$JS.API.STREAM.MSG.GET.") or not left:
            return Fault.PASS
        left -= 1
        return Fault.SWALLOW

    return rule


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_question_for_a_fence_that_has_no_answer_is_asked_again(
    fenced: bool, on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    await on_nats.publish(b"1")
    if fenced:
        await on_nats.fences().fence("q", "r1", "a test")
    # Of itself and of everybody, and both again.
    async with NatsProxy(nats_server.port, swallows_questions(first=3)) as proxy:
        consumer = on_nats.consumer("w", revision="r1", url=proxy.url)
        received = await asyncio.wait_for(consumer.receive(1), PATIENCE)
        assert bool(received.fenced) is fenced
        assert len(received.deliveries) == (not fenced)
        questions = [sent for sent in proxy.log if ".MSG.GET." in sent.subject]
        pulls = [sent.number for sent in proxy.log if sent.is_pull]
        assert len(questions) == 5, "what was answered is not asked again"
        assert bool(pulls) is not fenced
        assert all(question.number < min(pulls) for question in questions if pulls)


async def test_without_an_answer_about_a_fence_nothing_is_pulled(
    on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    await on_nats.publish(b"1")
    async with NatsProxy(nats_server.port, swallows_questions(first=1000)) as proxy:
        consumer = on_nats.consumer(timing=dataclasses.replace(CALM, command_timeout=5), url=proxy.url)
        with pytest.raises(BrokerUnavailableError):
            await consumer.receive(1)
        assert len([sent for sent in proxy.log if ".MSG.GET." in sent.subject]) > 2
        assert not any(sent.is_pull for sent in proxy.log)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.STALL, Fault.DEAFEN])
async def test_a_lost_command_connection_is_replaced_and_nothing_is_sent_again(
    fault: Fault, on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    await on_nats.publish(*(b"%d" % n for n in range(20)))
    async with NatsProxy(nats_server.port, on_ack(*[Fault.PASS] * 4, fault)) as proxy:
        consumer = on_nats.consumer(timing=SHORT, url=proxy.url)
        deliveries = (await receive(consumer, 12)).deliveries
        waiting = asyncio.create_task(receive(consumer, 3))
        outcomes = await settle(consumer, deliveries[:10], Action.COMMIT)
        assert outcomes[5:] == [Outcome.UNKNOWN] * 5
        assert set(outcomes) <= {Outcome.UNKNOWN, Outcome.COMMITTED}
        # The pulls go on, and so do the other deliveries.
        assert [one.payload for one in (await waiting).deliveries] == [b"12", b"13", b"14"]
        assert await settle(consumer, deliveries[10:], Action.COMMIT) == [Outcome.COMMITTED] * 2
        again = await settle(consumer, deliveries[:10], Action.COMMIT)
        assert again == [Outcome.MISSING] * 10
        acks = [sent.subject for sent in proxy.log if sent.is_ack]
        assert len(acks) == len(set(acks))


@pytest.mark.parametrize("action", [Action.COMMIT, Action.RETRY])
async def test_a_settlement_that_was_held_up_past_the_ack_wait_does_not_count(
    action: Action, on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    # Long enough to send it in time, also after the machine stood still for a second or two.
    await on_nats.provision(ack_wait=4, update=True)
    await on_nats.publish(b"1")
    timing = dataclasses.replace(CALM, expiry=4)
    async with NatsProxy(nats_server.port, on_ack(Fault.HOLD)) as proxy:
        slow = on_nats.consumer("slow", timing=timing, url=proxy.url)
        held = (await receive(slow)).deliveries
        settling = asyncio.create_task(settle(slow, held, action))
        other = on_nats.consumer("other", timing=timing)
        again: list[Delivery] = []
        while not again:
            again += (await receive(other)).deliveries
        proxy.let_go.set()
        # The server confirms it; whose delivery it acted on, it does not say.
        assert await settling == [Outcome.UNKNOWN]


@pytest.mark.parametrize(
    "end",
    [
        Answer(404, "No Messages"),
        Answer(408, "Request Timeout"),
        Answer(408, "Requests Pending"),
        Answer(408, "Interest Expired"),
        Answer(409, "Batch Completed"),
        Answer(409, "Leadership Change"),
        Answer(409, "Server Shutdown"),
    ],
)
async def test_after_an_end_without_a_fault_it_pulls_again(
    end: Answer, on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    await on_nats.publish(b"1")
    async with NatsProxy(nats_server.port, on_pull(end, end)) as proxy:
        received = await receive(on_nats.consumer(url=proxy.url))
        assert [one.payload for one in received.deliveries] == [b"1"]
        assert len([sent for sent in proxy.log if sent.is_pull]) == 3


async def test_pulls_that_end_at_once_are_not_asked_in_a_hot_loop(
    on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    timing = dataclasses.replace(CALM, block=1.0)
    async with NatsProxy(nats_server.port, on_pull(*[Answer(408, "Requests Pending")] * 1000)) as proxy:
        assert not (await receive(on_nats.consumer(timing=timing, url=proxy.url))).deliveries
        assert len([sent for sent in proxy.log if sent.is_pull]) < 30


@pytest.mark.parametrize(
    ("end", "kind", "text"),
    [
        (Answer(409, "Consumer Deleted"), BrokerRefusedError, "queueworker provision q"),
        (Answer(409, "Exceeded MaxWaiting"), BrokerUnavailableError, "max_waiting"),
        (Answer(409, "Exceeded MaxRequestBatch of 10"), BrokerRefusedError, "MaxRequestBatch of 10"),
        (Answer(409, "Exceeded MaxRequestExpires of 1s"), BrokerRefusedError, "MaxRequestExpires of 1s"),
        (Answer(409, "Message Size Exceeds MaxBytes"), BrokerRefusedError, "409 Message Size"),
        (Answer(409, "Consumer is push based"), BrokerRefusedError, "push based"),
        (Answer(400, "Bad Request"), BrokerRefusedError, "400 Bad Request"),
        (Answer(412, "API Level"), BrokerRefusedError, "412 API Level"),
        (Answer(423, "Nats-Wrong-Pin-Id"), BrokerRefusedError, "423"),
        (Answer(503, ""), BrokerUnavailableError, "electing a leader"),
        (Fault.CUT, BrokerUnavailableError, "connection was lost"),
        (Fault.SWALLOW, BrokerUnavailableError, "left a pull without its end"),
    ],
    ids=lambda value: str(value) if isinstance(value, Answer | Fault) else None,
)
async def test_a_pull_that_fails_says_why_and_the_next_one_works(
    end: Answer | Fault, kind: type[BrokerError], text: str, on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    async with NatsProxy(nats_server.port, on_pull(end)) as proxy:
        consumer = on_nats.consumer(timing=dataclasses.replace(CALM, block=0.2), url=proxy.url)
        with pytest.raises(kind, match=text):
            await receive(consumer)
        await on_nats.publish(b"1")
        got: list[Delivery] = []
        while not got:  # the time of a pull may be over before a busy server has looked at it
            got += (await receive(consumer)).deliveries
        assert [one.payload for one in got] == [b"1"]


async def test_a_heartbeat_ends_no_pull(on_nats: NatsSite, nats_server: EmbeddedNats) -> None:
    beat = Answer(100, "Idle Heartbeat", passes=True)
    async with NatsProxy(nats_server.port, on_pull(beat)) as proxy:
        consumer = on_nats.consumer(url=proxy.url)
        waiting = asyncio.create_task(receive(consumer))
        await eventually(on_nats.somebody_waits)
        await on_nats.publish(b"1")
        assert [one.payload for one in (await waiting).deliveries] == [b"1"]
        assert len([sent for sent in proxy.log if sent.is_pull]) == 1


async def test_a_consumer_that_is_deleted_under_a_worker_and_made_again(on_nats: NatsSite) -> None:
    await on_nats.publish(b"1")
    consumer, renewer = on_nats.consumer(timing=SHORT), on_nats.renewer(timing=SHORT)
    [delivery] = (await receive(consumer)).deliveries
    waiting = asyncio.create_task(receive(consumer))
    await eventually(on_nats.somebody_waits)
    await api.call(on_nats.link, f"CONSUMER.DELETE.{on_nats.names.stream}.{DURABLE}", None, "delete")
    with pytest.raises(BrokerRefusedError, match="queueworker provision q"):
        await waiting
    with pytest.raises(BrokerRefusedError, match="queueworker provision q"):
        await receive(consumer)
    with pytest.raises(BrokerUnavailableError, match="its consumer is gone"):
        await renewer.extend([delivery])
    assert await settle(consumer, [delivery], Action.COMMIT) == [Outcome.MISSING]
    await on_nats.provision()
    [again] = (await receive(consumer)).deliveries
    assert again.pid == delivery.pid
    assert await settle(consumer, [again], Action.COMMIT) == [Outcome.COMMITTED]


async def test_a_stream_that_is_purged_under_a_worker(on_nats: NatsSite) -> None:
    await on_nats.publish(*(b"%d" % n for n in range(10)))
    consumer = on_nats.consumer(timing=SHORT)
    deliveries = (await receive(consumer, 5)).deliveries
    await api.call(on_nats.link, f"STREAM.PURGE.{on_nats.names.stream}", None, "purge")
    outcomes = await settle(consumer, deliveries, Action.COMMIT)
    assert set(outcomes) <= {Outcome.COMMITTED, Outcome.UNKNOWN}
    await on_nats.publish(b'"new"')
    assert [one.payload for one in (await receive(consumer)).deliveries] == [b'"new"']
    assert (await on_nats.read()).ready == 0


async def test_a_stream_that_is_deleted_under_a_worker_and_made_again(on_nats: NatsSite) -> None:
    await on_nats.publish(b"1", b"2")
    consumer, renewer = on_nats.consumer(timing=SHORT), on_nats.renewer(timing=SHORT)
    held = (await receive(consumer)).deliveries
    waiting = asyncio.create_task(receive(consumer))
    await eventually(on_nats.somebody_waits)
    await api.call(on_nats.link, f"STREAM.DELETE.{on_nats.names.stream}", None, "delete")
    with pytest.raises(BrokerRefusedError, match="queueworker provision q"):
        await waiting
    with pytest.raises(BrokerUnavailableError, match="its consumer is gone"):
        await renewer.extend(held)
    assert await settle(consumer, held[:1], Action.COMMIT) == [Outcome.MISSING]
    publisher = on_nats.nats(dataclasses.replace(CALM, command_timeout=2)).publisher()
    with pytest.raises(BrokerUnavailableError, match="queueworker provision"):
        await publisher.publish_many("q", [b"3"])
    await publisher.close()
    await on_nats.provision()
    await on_nats.publish(b"4")
    # What was handed out by the old stream must not act on the new one, whose messages have its numbers.
    assert await settle(consumer, held[1:], Action.RELEASE) != [Outcome.COMMITTED]
    [new] = (await receive(consumer)).deliveries
    assert new.payload == b"4"
    assert await settle(consumer, [new], Action.COMMIT) == [Outcome.COMMITTED]


async def _made_anew(site: NatsSite, body: bytes) -> Consumer:
    """Delete the stream, make it again, and let another worker hold a message with the same number."""
    await api.call(site.link, f"STREAM.DELETE.{site.names.stream}", None, "delete")
    await site.provision()
    await site.publish(body)
    other = site.consumer("other")
    assert [one.payload for one in (await receive(other)).deliveries] == [body]
    return other


@pytest.mark.parametrize("action", [Action.COMMIT, Action.DEAD, Action.RELEASE])
async def test_what_a_stream_handed_out_before_it_was_made_anew_is_not_answered(
    action: Action, on_nats: NatsSite
) -> None:
    await on_nats.publish(b"1", b"2")
    broker, identity = on_nats.nats(SHORT), WorkerIdentity("r1", "w1")
    # It is full: no pull is open that the server would end.
    full, renewer = broker.consumer("q", identity), broker.renewer("q", identity)
    try:
        held = (await receive(full)).deliveries
        await _made_anew(on_nats, b"3")
        await renewer.announce(Presence(True, 2, 2, 2))
        assert list(await renewer.extend(held)) == list(held)
        assert await settle(full, held, action) == [Outcome.MISSING] * 2
        assert (await on_nats.consumer_info())["num_ack_pending"] == 1
        assert await on_nats.stored(on_nats.names.stream) == 1
        assert await on_nats.stored(on_nats.names.dead_stream) == 0
        await on_nats.publish(b"4")
        [new] = (await receive(full)).deliveries
        assert not await renewer.extend([new])
        assert await settle(full, [new], Action.COMMIT) == [Outcome.COMMITTED]
    finally:
        await full.close()
        await renewer.close()


async def test_a_worker_that_waits_learns_at_once_that_its_stream_was_made_anew(on_nats: NatsSite) -> None:
    await on_nats.publish(b"1")
    consumer = on_nats.consumer(timing=SHORT)
    held = (await receive(consumer)).deliveries
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(on_nats.somebody_waits)
    await _made_anew(on_nats, b"3")
    with pytest.raises(BrokerRefusedError, match="queueworker provision q"):
        await waiting
    await on_nats.publish(b"4")
    [new] = (await receive(consumer)).deliveries
    assert new.payload == b"4"
    assert await settle(consumer, held, Action.COMMIT) == [Outcome.MISSING]
    assert await on_nats.stored(on_nats.names.stream) == 2


async def test_what_a_consumer_that_was_made_anew_hands_out_is_answered(on_nats: NatsSite) -> None:
    await on_nats.publish(b"1")
    broker, identity = on_nats.nats(SHORT), WorkerIdentity("r1", "w1")
    consumer, renewer = broker.consumer("q", identity), broker.renewer("q", identity)
    try:
        [held] = (await receive(consumer)).deliveries
        await api.call(on_nats.link, f"CONSUMER.DELETE.{on_nats.names.stream}.{DURABLE}", None, "delete")
        await on_nats.provision()
        await renewer.announce(Presence(True, 1, 1, 1))
        assert await settle(consumer, [held], Action.COMMIT) == [Outcome.MISSING]
        [again] = (await receive(consumer)).deliveries
        assert again.pid == held.pid
        await on_nats.provision(ack_wait=900, update=True)  # The same one, changed.
        await renewer.announce(Presence(True, 1, 1, 1))
        assert not await renewer.extend([again])
        assert await settle(consumer, [again], Action.COMMIT) == [Outcome.COMMITTED]
    finally:
        await consumer.close()
        await renewer.close()


async def test_what_fits_under_max_ack_pending_comes_at_once(on_nats: NatsSite) -> None:
    await on_nats.provision(max_ack_pending=5, update=True)
    took = []
    for _ in range(5):
        await on_nats.publish(*(b"%d" % n for n in range(7)))
        consumer = on_nats.consumer()  # It would block for 30 s, and the server tells no end of its pull.
        began = time.monotonic()
        first = (await receive(consumer, 7)).deliveries
        took.append(time.monotonic() - began)
        assert [one.payload for one in first] == [b"%d" % n for n in range(5)]
        await settle(consumer, first, Action.COMMIT)
        rest: list[Delivery] = []
        while len(rest) < 2:
            rest += (await receive(consumer, 7)).deliveries
        assert [one.payload for one in rest] == [b"5", b"6"]
        await settle(consumer, rest, Action.COMMIT)
        await consumer.close()
    # Waiting for the end of a pull takes 2 s each time.
    assert min(took) < 1


@pytest.mark.parametrize("fault", [Fault.SWALLOW, Fault.CUT, Answer(503, "")], ids=str)
async def test_a_dead_letter_that_is_not_confirmed_stays_in_the_queue(
    fault: Fault | Answer, on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    def lose(sent: Sent) -> Fault | Answer:
        return fault if sent.subject == "q.q.dead" else Fault.PASS

    await on_nats.publish(b"1", b"2")
    async with NatsProxy(nats_server.port, lose) as proxy:
        consumer = on_nats.consumer(timing=SHORT, url=proxy.url)
        deliveries = (await receive(consumer)).deliveries
        assert await settle(consumer, deliveries[:1], Action.DEAD) == [Outcome.UNKNOWN]
        assert await settle(consumer, deliveries[1:], Action.COMMIT) == [Outcome.COMMITTED]
        assert len([sent for sent in proxy.log if sent.is_ack]) == 1
    assert await on_nats.stored(on_nats.names.stream) == 1


async def test_what_lay_unread_for_longer_than_the_ack_wait_is_not_run(on_nats: NatsSite) -> None:
    await on_nats.provision(ack_wait=2, update=True)
    consumer = on_nats.consumer(timing=dataclasses.replace(CALM, expiry=2))
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(on_nats.somebody_waits)
    publishing = threading.Thread(target=lambda: asyncio.run(on_nats.publish(b"1")))
    publishing.start()
    # The loop stands still, as in a handler that blocks or a process that is paused.
    publishing.join()
    time.sleep(2.5)  # noqa: ASYNC251
    [delivery] = (await waiting).deliveries
    # The first delivery was handed out again before it was read.
    assert delivery.attempts == 1
    assert await settle(consumer, [delivery], Action.COMMIT) == [Outcome.COMMITTED]


async def test_a_limit_that_is_too_small_for_the_fleet_is_told_with_the_right_one(
    on_nats: NatsSite, caplog: pytest.LogCaptureFixture
) -> None:
    await on_nats.provision(max_ack_pending=150, update=True)
    one, two = on_nats.renewer("w1"), on_nats.renewer("w2")
    await one.announce(Presence(True, 0, 10, 100))
    assert not caplog.records
    await two.announce(Presence(True, 0, 10, 100))
    [record] = caplog.records
    assert "is 150, and the 2 live workers may hold 200" in record.getMessage()
    assert "Raise it to 200" in record.getMessage()


async def test_what_a_cancelled_receive_brought_is_not_lost(
    on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    consumer = on_nats.consumer()
    waiting = asyncio.create_task(consumer.receive(5))
    await eventually(on_nats.somebody_waits)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await on_nats.publish(b"1", b"2")
    got: list[bytes] = []
    while len(got) < 2:
        got += [one.payload for one in (await receive(consumer)).deliveries]
    assert got == [b"1", b"2"]


async def test_a_publish_without_a_confirmation_says_what_is_known(
    on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    def lose(sent: Sent) -> Fault:
        return Fault.SWALLOW if sent.subject == "q.q.normal" and sent.payload.endswith(b"7}") else Fault.PASS

    async with NatsProxy(nats_server.port, lose) as proxy:
        publisher = on_nats.nats(SHORT, proxy.url).publisher()
        with pytest.raises(
            BrokerUnavailableError,
            match="of 10 messages for q, 9 are published, 1 may be, the others are not",
        ):
            await publisher.publish_many("q", [b"%d" % n for n in range(10)])
        await publisher.close()
    assert (await on_nats.read()).ready == 9


async def test_a_publish_that_nobody_received_is_sent_again(
    on_nats: NatsSite, nats_server: EmbeddedNats
) -> None:
    left = [Answer(503, "")] * 3

    def nobody(sent: Sent) -> Fault | Answer:
        return left.pop() if left and sent.subject == "q.q.normal" else Fault.PASS

    async with NatsProxy(nats_server.port, nobody) as proxy:
        publisher = on_nats.nats(CALM, proxy.url).publisher()
        [pid] = await publisher.publish_many("q", [b"1"])
        await publisher.close()
    [delivery] = (await receive(on_nats.consumer())).deliveries
    assert delivery.pid == pid
    assert await on_nats.stored(on_nats.names.stream) == 1


async def test_a_stream_that_is_full_refuses_and_says_so(on_nats: NatsSite) -> None:
    info = await api.stream_info(on_nats.link, on_nats.names.stream)
    assert info is not None
    config = {**info["config"], "max_msgs": 5, "discard": "new"}
    await api.call(on_nats.link, f"STREAM.UPDATE.{on_nats.names.stream}", config, "limit")
    with pytest.raises(BrokerError, match=r"maximum messages exceeded.*5 are published"):
        await on_nats.publish(*(b"%d" % n for n in range(9)))


@pytest.mark.parametrize("sync", ["", "sync_interval: always"], ids=["default", "sync-always"])
async def test_a_server_that_is_killed_under_load_loses_nothing_that_it_confirmed(sync: str) -> None:
    with EmbeddedNats(jetstream=sync) as server:
        site = await fresh_site(server.url)
        payloads = [b"%d" % n for n in range(1500)]
        await site.publish(*payloads)
        timing = dataclasses.replace(CALM, block=0.2, command_timeout=10)
        consumer = site.consumer(timing=timing)
        committed: list[bytes] = []
        seen_after: list[bytes] = []
        #: Their acknowledgement may have been the last thing that the server did.
        unknown: set[bytes] = set()
        killed = asyncio.Event()

        def note(settlement: Settlement, outcome: Outcome, _: str) -> None:
            if outcome is Outcome.COMMITTED:
                committed.append(settlement.delivery.payload)
                if len(committed) == 400:
                    server.kill()
                    killed.set()
            else:
                assert outcome is Outcome.UNKNOWN
                unknown.add(settlement.delivery.payload)

        confirmed_before: set[bytes] = set()
        async with asyncio.timeout(PATIENCE):
            while not committed or killed.is_set() or await site.stored(site.names.stream):
                if killed.is_set():
                    killed.clear()
                    confirmed_before = set(committed)
                    server.restart()
                    await site.provision(ack_wait=1.5, update=True)
                try:
                    deliveries = (await consumer.receive(100)).deliveries
                except BrokerError:
                    continue
                if confirmed_before:
                    seen_after += [one.payload for one in deliveries]
                await consumer.settle([Settlement(one, Action.COMMIT) for one in deliveries], note)
        assert confirmed_before
        assert not confirmed_before & set(seen_after)
        assert set(committed) | unknown == set(payloads)
        await site.close()
