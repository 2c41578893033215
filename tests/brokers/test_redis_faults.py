"""Lost answers, flushed scripts, restarts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.brokers.fault_proxy import Fault, FaultProxy, Rule, Seen
from tests.brokers.site import CALM, HASTY, PATIENCE, Site, eventually, receive, settle
from tests.brokers.test_redis_claims import envelope, push
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, BrokerUnavailableError, Consumer, Outcome
from worker_runtime.brokers.redis import scripts


def once(name: str, fault: Fault, times: int = 1) -> Rule:
    left = times

    def rule(seen: Seen) -> Fault:
        nonlocal left
        if seen.name == name and left and seen.reply != [b"empty"]:
            left -= 1
            return fault
        return Fault.PASS

    return rule


@pytest.fixture(autouse=True)
def scripts_are_loaded(redis_server: EmbeddedRedis) -> None:
    """So that a rule for the first call of a transition meets a call that runs."""
    with redis.Redis(port=redis_server.port) as client:
        for script in scripts.ALL:
            client.script_load(script.source)


PAYLOADS = [b'{"n":%d}' % n for n in range(4)]


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
@pytest.mark.parametrize("name", ["reserve", "claim"])
async def test_one_lost_answer_while_receiving_is_made_good(
    name: str, fault: Fault, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    await standalone.publish(*PAYLOADS)
    async with FaultProxy(redis_server.port, before=once(name, fault)) as proxy:
        consumer = standalone.consumer(url=proxy.url)
        received = await receive(consumer)
        assert proxy.event.is_set()
        assert [one.payload for one in received.deliveries] == PAYLOADS
        assert set(await settle(consumer, received.deliveries, Action.COMMIT)) == {Outcome.COMMITTED}
    reading = await standalone.read()
    assert (reading.success, reading.private, len(reading.reservations)) == (4, 0, 0)
    assert reading.ledger["r1"].claimed == 4


async def test_twins_stay_apart_when_the_answer_to_their_claim_is_lost(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    push(standalone, envelope("twin", b"1"), envelope("twin", b"2"))
    async with FaultProxy(redis_server.port, before=once("claim", Fault.CUT_AFTER)) as proxy:
        consumer = standalone.consumer(url=proxy.url)
        deliveries = (await receive(consumer)).deliveries
        assert sorted(one.payload for one in deliveries) == [b"1", b"2"]
        assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED] * 2
    assert (await standalone.read()).private == 0


@pytest.mark.parametrize("name", ["reserve", "claim"])
async def test_a_receive_that_failed_is_taken_up_by_the_next(
    name: str, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    await standalone.publish(*PAYLOADS)
    async with FaultProxy(redis_server.port, before=once(name, Fault.CUT_AFTER, times=2)) as proxy:
        consumer = standalone.consumer(url=proxy.url)
        with pytest.raises(BrokerUnavailableError, match="did not answer"):
            await receive(consumer)
        received = await receive(consumer)
        assert [one.payload for one in received.deliveries] == PAYLOADS
        assert set(await settle(consumer, received.deliveries, Action.COMMIT)) == {Outcome.COMMITTED}
    assert (await standalone.read()).ledger["r1"].claimed == 4


async def _lose_the_answers_of_moves(site: Site, proxy: FaultProxy, payloads: list[bytes]) -> list[Consumer]:
    """One waiting consumer for each payload, moved to staging for it; none of them learns of it."""
    consumers = [site.consumer(f"w{n}", url=proxy.url) for n in range(len(payloads))]
    waiting = [asyncio.create_task(consumer.receive(1)) for consumer in consumers]
    await eventually(lambda: asyncio.to_thread(_blocked, site, len(consumers)))
    for payload in payloads:
        await site.publish(payload)
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, BrokerUnavailableError) for one in results)
    return consumers


def _blocked(site: Site, count: int) -> bool:
    return bool(site.client.info("clients")["blocked_clients"] >= count)


def _moved(seen: Seen) -> Fault:
    return Fault.CUT_AFTER if seen.name == "BLMOVE" and seen.reply is not None else Fault.PASS


async def test_what_moves_left_in_staging_is_taken_first_and_in_order(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with FaultProxy(redis_server.port, after=_moved) as proxy:
        await _lose_the_answers_of_moves(standalone, proxy, PAYLOADS[:3])
        await standalone.publish(PAYLOADS[3])
        assert (await standalone.read()).staging == 3
        received = await receive(standalone.consumer("other"))
        assert [one.payload for one in received.deliveries] == PAYLOADS


async def test_a_consumer_that_closes_gives_back_what_its_moves_left_in_staging(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with FaultProxy(redis_server.port, after=_moved) as proxy:
        (consumer,) = await _lose_the_answers_of_moves(standalone, proxy, PAYLOADS[:1])
        consumer.interrupt()
        await consumer.close()
        reading = await standalone.read()
        assert (reading.ready, reading.staging) == (1, 0)


def _taken(proxy: FaultProxy, then: Callable[[], object], fault: Fault) -> Rule:
    """What happens when the server has given a consumer what its wait brought."""

    def rule(seen: Seen) -> Fault:
        if seen.name != "take":
            return Fault.PASS
        proxy.after = lambda _: Fault.PASS
        then()
        return fault

    return rule


async def test_what_was_taken_while_the_wait_was_interrupted_is_received(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with FaultProxy(redis_server.port) as proxy:
        consumer = standalone.consumer(url=proxy.url)
        proxy.after = _taken(proxy, consumer.interrupt, Fault.CUT_AFTER)
        waiting = asyncio.create_task(receive(consumer))
        await eventually(lambda: asyncio.to_thread(_blocked, standalone, 1))
        await standalone.publish(PAYLOADS[0])
        deliveries = (await waiting).deliveries
        assert [one.payload for one in deliveries] == PAYLOADS[:1]
        assert await settle(consumer, deliveries, Action.RELEASE) == [Outcome.RELEASED]
    reading = await standalone.read()
    assert (reading.ready, reading.private, len(reading.reservations)) == (1, 0, 0)


@pytest.mark.parametrize("fault", [Fault.PASS, Fault.CUT_AFTER])
async def test_what_was_taken_while_the_wait_was_cancelled_goes_back_at_once(
    fault: Fault, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with FaultProxy(redis_server.port) as proxy:
        consumer = standalone.consumer(url=proxy.url)
        waiting = asyncio.create_task(receive(consumer))
        proxy.after = _taken(proxy, waiting.cancel, fault)
        await eventually(lambda: asyncio.to_thread(_blocked, standalone, 1))
        await standalone.publish(PAYLOADS[0])
        with pytest.raises(asyncio.CancelledError):
            await waiting
        other = await receive(standalone.consumer("w2"))
        assert [one.payload for one in other.deliveries] == PAYLOADS[:1]
        await consumer.close()
    reading = await standalone.read()
    assert (reading.ready, reading.processing, len(reading.reservations)) == (0, 1, 0)


async def test_a_receiver_that_closes_gives_back_what_it_never_heard_of(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    async with FaultProxy(redis_server.port) as proxy:
        consumer = standalone.consumer(url=proxy.url)
        proxy.after = _taken(proxy, lambda: None, Fault.CUT_AFTER)
        waiting = asyncio.create_task(receive(consumer))
        await eventually(lambda: asyncio.to_thread(_blocked, standalone, 1))
        await standalone.publish(PAYLOADS[0])
        with pytest.raises(BrokerUnavailableError):
            await waiting
        await consumer.close()
    reading = await standalone.read()
    assert (reading.ready, reading.private, len(reading.reservations)) == (1, 0, 0)


async def test_what_others_recovered_meanwhile_is_dropped(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    """Paused between reserve and claim for longer than the reservation: the work belongs to others now."""
    await standalone.publish(*PAYLOADS)
    async with FaultProxy(redis_server.port, before=once("claim", Fault.HOLD_COMMAND)) as proxy:
        quick = dataclasses.replace(HASTY, block=0.05, command_timeout=PATIENCE)
        slow = standalone.consumer("slow", timing=quick, url=proxy.url)
        receiving = asyncio.create_task(slow.receive(10))
        await asyncio.wait_for(proxy.event.wait(), PATIENCE)
        renewer = standalone.renewer("other")
        async with asyncio.timeout(PATIENCE):
            while not (await renewer.recover()).reservations:
                pass
        other = standalone.consumer("other")
        taken = (await receive(other)).deliveries
        assert [one.payload for one in taken] == PAYLOADS
        assert set(await settle(other, taken, Action.COMMIT)) == {Outcome.COMMITTED}
        proxy.let_go.set()
        assert not (await asyncio.wait_for(receiving, PATIENCE)).deliveries
    reading = await standalone.read()
    assert (reading.success, reading.total, reading.private, reading.ready) == (4, 4, 0, 0)


@pytest.mark.parametrize("ran", [True, False])
async def test_a_lost_settlement_is_unknown_and_never_sent_again(
    ran: bool, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    await standalone.publish(*PAYLOADS)
    fault = Fault.CUT_AFTER if ran else Fault.CUT_BEFORE
    async with FaultProxy(redis_server.port, before=once("settle", fault)) as proxy:
        consumer = standalone.consumer(url=proxy.url)
        first = (await receive(consumer, 2)).deliveries
        second = (await receive(consumer, 2)).deliveries
        assert await settle(consumer, first, Action.COMMIT) == [Outcome.UNKNOWN] * 2
        assert await settle(consumer, second, Action.COMMIT) == [Outcome.COMMITTED] * 2
        assert proxy.names().count("settle") == 2
    reading = await standalone.read()
    assert (reading.success, reading.owned) == ((4, 0) if ran else (2, 2))


async def test_a_settlement_that_was_not_sent_waits_for_the_server(
    redis_appendonly: EmbeddedRedis, make_site: Callable[..., Site]
) -> None:
    site = make_site(redis_appendonly.url, redis.Redis(port=redis_appendonly.port), "ns")
    await site.publish(*PAYLOADS)
    consumer = site.consumer(timing=dataclasses.replace(CALM, command_timeout=PATIENCE))
    deliveries = (await receive(consumer)).deliveries
    redis_appendonly.kill()
    # The kernel closes the connection with the process; this lets the client read that.
    with pytest.raises(BrokerUnavailableError):
        await site.renewer().recover()
    settling = asyncio.create_task(settle(consumer, deliveries, Action.COMMIT))
    redis_appendonly.restart()
    assert await settling == [Outcome.COMMITTED] * 4


async def test_what_was_not_sent_is_settled_after_an_outage_of_several_command_times(
    redis_appendonly: EmbeddedRedis, make_site: Callable[..., Site]
) -> None:
    site = make_site(redis_appendonly.url, redis.Redis(port=redis_appendonly.port), "ns")
    await site.publish(*PAYLOADS)
    # Longer than a busy server takes for one command, and not as long as the outage.
    consumer = site.consumer(timing=dataclasses.replace(CALM, command_timeout=1.5))
    deliveries = (await receive(consumer)).deliveries
    redis_appendonly.kill()
    settling = asyncio.ensure_future(settle(consumer, deliveries, Action.COMMIT))
    assert not (await asyncio.wait((settling,), timeout=5.0))[0], "it is not given up while it may succeed"
    redis_appendonly.restart()
    assert set(await settling) == {Outcome.COMMITTED}


async def test_unreachable_for_the_whole_command_time_of_a_stop_is_unknown(
    redis_appendonly: EmbeddedRedis, make_site: Callable[..., Site]
) -> None:
    site = make_site(redis_appendonly.url, redis.Redis(port=redis_appendonly.port), "ns")
    await site.publish(*PAYLOADS)
    consumer = site.consumer(timing=dataclasses.replace(CALM, command_timeout=2))
    deliveries = (await receive(consumer)).deliveries
    redis_appendonly.kill()
    consumer.interrupt()
    assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.UNKNOWN] * 4
    redis_appendonly.restart()
    assert (await site.read()).owned == 4


async def test_flushed_scripts_are_loaded_again(standalone: Site) -> None:
    await standalone.publish(*PAYLOADS)
    consumer, renewer = standalone.consumer(), standalone.renewer()
    standalone.client.script_flush()
    received = await receive(consumer)
    standalone.client.script_flush()
    assert not await renewer.extend(received.deliveries)
    standalone.client.script_flush()
    assert set(await settle(consumer, received.deliveries, Action.COMMIT)) == {Outcome.COMMITTED}
    standalone.client.script_flush()
    assert (await renewer.recover()).deliveries == 0


async def test_consuming_resumes_after_a_restart(
    redis_appendonly: EmbeddedRedis, make_site: Callable[..., Site]
) -> None:
    site = make_site(redis_appendonly.url, redis.Redis(port=redis_appendonly.port), "ns")
    consumer = site.consumer(timing=dataclasses.replace(CALM, block=10_000))
    await site.publish(*PAYLOADS)
    before = (await receive(consumer)).deliveries
    waiting = asyncio.create_task(consumer.receive(10))
    await eventually(lambda: asyncio.to_thread(_blocked, site, 1))
    redis_appendonly.restart()
    with pytest.raises(BrokerUnavailableError):
        await asyncio.wait_for(waiting, PATIENCE)
    await site.publish(b"5")
    after = (await receive(consumer)).deliveries
    assert [one.payload for one in after] == [b"5"]
    assert set(await settle(consumer, [*before, *after], Action.COMMIT)) == {Outcome.COMMITTED}
    reading = await site.read()
    assert (reading.success, reading.private) == (5, 0)


async def test_a_server_that_stays_silent_is_reported(standalone: Site, redis_server: EmbeddedRedis) -> None:
    await standalone.publish(*PAYLOADS)
    async with FaultProxy(redis_server.port, before=once("reserve", Fault.HOLD_REPLY, times=2)) as proxy:
        quick = dataclasses.replace(CALM, command_timeout=3)
        consumer = standalone.consumer(timing=quick, url=proxy.url)
        with pytest.raises(BrokerUnavailableError, match=r"no answer within 3 s"):
            await receive(consumer)
        assert len((await receive(consumer)).deliveries) == 4
        proxy.let_go.set()


async def test_a_lost_publish_is_not_repeated(standalone: Site, redis_server: EmbeddedRedis) -> None:
    async with FaultProxy(redis_server.port, before=once("LPUSH", Fault.CUT_AFTER)) as proxy:
        publisher = standalone.broker(url=proxy.url).publisher()
        with pytest.raises(BrokerUnavailableError, match="0 are published, the next 4 may be"):
            await publisher.publish_many("q", PAYLOADS)
        await publisher.close()
    assert (await standalone.read()).ready == 4


@pytest.fixture
def redis_appendonly() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(appendonly=True, args=("--appendfsync", "always")) as server:
        yield server
