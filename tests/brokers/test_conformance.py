"""What every broker promises (see the contract in `worker_runtime.brokers.base`)."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re

import pytest

from tests.brokers.site import (
    CALM,
    CAN_COUNT_PLACES,
    CAN_KEEP_A_LEDGER,
    CAN_RENAME_RETRIES,
    CAN_TAKE_OVER,
    HASTY,
    PATIENCE,
    Site,
    eventually,
    receive,
    receive_all,
    settle,
)
from worker_runtime.brokers.base import (
    Action,
    Outcome,
    PayloadRefusedError,
    Recovered,
    Renewer,
    Settlement,
    Swept,
)


def numbered(count: int) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(count)]


async def test_check_accepts_a_healthy_broker(site: Site) -> None:
    await site.broker().check("q")
    assert (await site.read()).ready == 0


async def test_deliveries_come_in_order_with_their_bytes(site: Site) -> None:
    payloads = [b'{"a":[ ],"b":{}}', b"[]", b"1.0", b'"\\u00e9\xc3\xa9\\/"', b"null", b'{"x" : 1e2}']
    pids = await site.publish(*payloads)
    received = await receive(site.consumer())
    assert [one.payload for one in received.deliveries] == payloads
    assert [one.pid for one in received.deliveries] == list(pids)
    assert all(re.fullmatch(r"[0-9a-f]{14}\.\d{8}", pid) for pid in pids)
    assert {(one.queue, one.attempts) for one in received.deliveries} == {("q", 0)}


async def test_a_receive_takes_what_is_there_and_never_more_than_asked(site: Site) -> None:
    await site.publish(*numbered(150))
    consumer = site.consumer()
    first = (await receive(consumer, 100)).deliveries
    assert 0 < len(first) <= 100
    rest = await receive_all(consumer, 150 - len(first))
    assert [one.payload for one in (*first, *rest)] == numbered(150)


async def test_a_worker_that_makes_no_receive_can_ask_for_its_fence(site: Site) -> None:
    mine, other, fences = site.renewer("w1", "r1"), site.renewer("w2", "r2"), site.fences()
    assert await mine.fence() == ""
    await fences.fence("q", "r1", "it leaves")
    assert (await mine.fence(), await other.fence()) == ("it leaves", "")
    await fences.fence("q", "*", "maintenance")
    assert (await mine.fence(), await other.fence()) == ("it leaves", "maintenance")
    await fences.unfence("q", "r1")
    assert await mine.fence() == "maintenance"


async def test_a_waiting_receive_gets_what_is_published(site: Site) -> None:
    consumer = site.consumer()
    waiting = asyncio.create_task(consumer.receive(100))
    await eventually(site.somebody_waits)
    await site.publish(b"1")
    received = await asyncio.wait_for(waiting, PATIENCE)
    assert [one.payload for one in received.deliveries] == [b"1"]


async def test_an_empty_queue_answers_after_the_blocking_time(site: Site) -> None:
    received = await receive(site.consumer(timing=dataclasses.replace(CALM, block=0.05)))
    assert (list(received.deliveries), received.poisoned, received.fenced) == ([], 0, None)


async def test_interrupt_ends_a_wait_and_forbids_the_next(site: Site) -> None:
    consumer = site.consumer(timing=dataclasses.replace(CALM, block=10_000))
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(site.somebody_waits)
    consumer.interrupt()
    assert not (await asyncio.wait_for(waiting, PATIENCE)).deliveries
    assert not (await receive(consumer)).deliveries
    await site.publish(b"1")
    assert [one.payload for one in (await receive(consumer)).deliveries] == [b"1"]


async def test_nothing_is_left_in_private_places_after_close(site: Site) -> None:
    consumer = site.consumer(timing=dataclasses.replace(CALM, block=10_000))
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(site.somebody_waits)
    consumer.interrupt()
    await site.publish(*numbered(3))
    # The first may still have met the wait that was just given up.
    received = await asyncio.wait_for(waiting, PATIENCE)
    await settle(consumer, received.deliveries, Action.RELEASE)
    await consumer.close()
    assert site.free(await site.read()) == 3
    assert len(await receive_all(site.consumer("w2"), 3)) == 3


async def test_commit(site: Site) -> None:
    await site.publish(*numbered(3))
    consumer = site.consumer()
    received = await receive(consumer)
    assert await settle(consumer, received.deliveries, Action.COMMIT) == [Outcome.COMMITTED] * 3
    reading = await site.read()
    assert (reading.total, reading.success, reading.processing, reading.private) == (3, 3, 0, 0)


async def test_reject(site: Site) -> None:
    await site.publish(b"1")
    consumer = site.consumer()
    received = await receive(consumer)
    assert await settle(consumer, received.deliveries, Action.REJECT) == [Outcome.REJECTED]
    reading = await site.read()
    assert (site.failed(reading), reading.success, reading.processing, reading.private) == (1, 0, 0, 0)


@pytest.mark.needs(CAN_RENAME_RETRIES)
async def test_a_retry_is_a_new_message_with_the_same_bytes(site: Site) -> None:
    payload = b'{"a":[ ],"b":{},"c":1.0,"d":"\\u00e9\xc3\xa9\\/"}'
    await site.publish(payload)
    consumer, renewer = site.consumer(), site.renewer()
    for attempts in range(3):
        [delivery] = (await receive(consumer)).deliveries
        assert (delivery.payload, delivery.attempts) == (payload, attempts)
        assert await settle(consumer, [delivery], Action.RETRY) == [Outcome.REJECTED]
        reading = await site.read()
        assert (reading.delayed, reading.owned, reading.ready, reading.failed) == (1, 0, 0, 0)
        assert (await renewer.promote()).moved == 1
    [last] = (await receive(consumer)).deliveries
    assert last.pid != delivery.pid
    await settle(consumer, [last], Action.COMMIT)
    reading = await site.read()
    assert (reading.success, reading.private, reading.ready) == (1, 0, 0)
    row = reading.ledger["r1"]
    assert (row.claimed, row.committed, row.rejected) == (4, 1, 3)


@pytest.mark.needs(CAN_RENAME_RETRIES)
async def test_a_retry_waits_for_its_time(site: Site) -> None:
    await site.publish(b"1", b"2")
    consumer, renewer = site.consumer(), site.renewer()
    one, two = (await receive(consumer)).deliveries
    outcomes: list[Outcome] = []
    settlements = [Settlement(one, Action.RETRY, delay=600), Settlement(two, Action.RETRY, delay=0.3)]
    await consumer.settle(settlements, lambda _, outcome, __: outcomes.append(outcome))
    assert outcomes == [Outcome.REJECTED] * 2
    moved = 0

    async def one_has_come() -> bool:
        nonlocal moved
        promoted = await renewer.promote()
        moved += promoted.moved
        assert promoted.next_due is not None
        return moved > 0 and promoted.next_due > 500

    await eventually(one_has_come)
    assert moved == 1
    assert [each.payload for each in (await receive(consumer)).deliveries] == [b"2"]
    assert await site.maintenance().promote("q", everything=True) == 1
    assert (await renewer.promote()).next_due is None


async def test_dead_letters_and_failed_messages_keep_payload_and_reason(site: Site) -> None:
    await site.publish(b'{"n" : 1}', b"2")
    consumer = site.consumer("w7", "r9")
    one, two = (await receive(consumer)).deliveries
    settlements = [
        Settlement(one, Action.DEAD, "ValueError: \u00e9\n", why="exhausted"),
        Settlement(two, Action.REJECT, "KeyError"),
    ]
    outcomes: list[Outcome] = []
    await consumer.settle(settlements, lambda _, outcome, __: outcomes.append(outcome))
    assert outcomes == [Outcome.REJECTED] * 2
    maintenance = site.maintenance()
    [dead] = await maintenance.retained("q")
    assert (dead.pid, dead.payload, dead.attempts) == (one.pid, b'{"n" : 1}', 0)
    assert (dead.why, dead.reason) == ("exhausted", "ValueError: \u00e9\n")
    assert dead.at is not None
    [failed] = await maintenance.retained("q", dead=False)
    assert (failed.pid, failed.why, failed.reason) == (two.pid, "handler", "KeyError")
    reading = await site.read()
    assert (reading.dead + reading.failed, reading.private) == (2, 0)
    if CAN_COUNT_PLACES in site.can:
        assert (reading.dead, reading.failed) == (1, 1)
    if CAN_KEEP_A_LEDGER in site.can:
        assert reading.ledger["r9"].rejected == 2


async def test_released_work_comes_back_first_and_in_order(site: Site) -> None:
    await site.publish(*numbered(6))
    consumer = site.consumer()
    first = (await receive(consumer, 4)).deliveries
    await settle(consumer, first, Action.COMMIT, Action.RELEASE, Action.RELEASE, Action.RELEASE)
    again = (await receive(site.consumer("w2"))).deliveries
    assert [one.payload for one in again] == numbered(6)[1:]
    assert {one.attempts for one in again} == {0}
    assert [one.pid for one in again[:3]] == [one.pid for one in first[1:]]


async def test_more_releases_than_fit_into_one_call_keep_their_order(site: Site) -> None:
    await site.publish(*numbered(2500))
    consumer = site.consumer()
    deliveries = await receive_all(consumer, 2500)
    await consumer.settle([], lambda *_: None)
    outcomes = await settle(consumer, deliveries, Action.RELEASE)
    assert set(outcomes) == {Outcome.RELEASED}
    assert [one.payload for one in await receive_all(consumer, 1000)] == numbered(1000)
    if CAN_COUNT_PLACES in site.can:
        assert (await site.read()).ready == 1500
    assert [one.payload for one in await receive_all(consumer, 1500)] == numbered(2500)[1000:]


async def test_each_settlement_is_judged_on_its_own(site: Site) -> None:
    await site.publish(*numbered(4))
    consumer = site.consumer()
    a, b, c, d = (await receive(consumer)).deliveries
    await settle(consumer, [b], Action.COMMIT)
    outcomes = await settle(
        consumer, [a, b, c, d, a], Action.COMMIT, Action.COMMIT, Action.REJECT, Action.RELEASE, Action.COMMIT
    )
    assert outcomes == [
        Outcome.COMMITTED,
        Outcome.MISSING,
        Outcome.REJECTED,
        Outcome.RELEASED,
        Outcome.MISSING,
    ]
    assert (await site.read()).success == 2


@pytest.mark.needs(CAN_TAKE_OVER)
async def test_expired_work_is_taken_over_and_the_old_owner_is_superseded(site: Site) -> None:
    await site.publish(*numbered(3))
    old = site.consumer("old", timing=HASTY)
    lost = (await receive(old)).deliveries
    renewer = site.renewer("new")
    await eventually(lambda: _recovered(renewer))
    new = site.consumer("new")
    taken = (await receive(new)).deliveries
    assert [one.pid for one in taken] == [one.pid for one in lost]
    assert [one.payload for one in taken] == numbered(3)
    assert list(await site.renewer("old").extend(lost)) == list(lost)
    actions = (Action.COMMIT, Action.REJECT, Action.RELEASE)
    assert await settle(old, lost, *actions) == [Outcome.SUPERSEDED] * 3
    assert await settle(new, taken, Action.COMMIT) == [Outcome.COMMITTED] * 3
    reading = await site.read()
    assert (reading.success, reading.failed, reading.private, reading.ready) == (3, 0, 0, 0)


async def _recovered(renewer: Renewer) -> bool:
    return (await renewer.recover()).deliveries > 0


@pytest.mark.needs(CAN_TAKE_OVER)
async def test_a_late_owner_may_settle_when_nobody_took_over(site: Site) -> None:
    await site.publish(b"1")
    consumer = site.consumer(timing=HASTY)
    received = await receive(consumer)
    renewer = site.renewer(timing=HASTY)
    assert not await renewer.extend(received.deliveries)
    assert await settle(consumer, received.deliveries, Action.COMMIT) == [Outcome.COMMITTED]
    assert (await renewer.recover()).deliveries == 0


@pytest.mark.needs(CAN_TAKE_OVER)
async def test_renewed_work_is_left_alone(site: Site) -> None:
    await site.publish(b"1")
    consumer = site.consumer(timing=HASTY)
    received = await receive(consumer)
    assert not await site.renewer(timing=CALM).extend(received.deliveries)
    assert (await site.renewer("other").recover()).deliveries == 0
    assert (await site.read()).owned == 1


@pytest.mark.needs(CAN_TAKE_OVER)
async def test_one_winner_when_commit_and_recovery_race(site: Site) -> None:
    seed = random.Random(4)
    consumer, renewers = site.consumer(timing=HASTY), [site.renewer(f"r{n}") for n in range(3)]
    for _ in range(40):
        await site.publish(b"1")
        delivery = (await receive(consumer, 1)).deliveries
        tasks = [settle(consumer, delivery, Action.COMMIT), *(one.recover() for one in renewers)]
        seed.shuffle(tasks)
        results = await asyncio.gather(*tasks)
        outcome = next(one for one in results if isinstance(one, list))
        taken_over = sum(one.deliveries for one in results if isinstance(one, Recovered))
        assert (outcome, taken_over) in (([Outcome.COMMITTED], 0), ([Outcome.MISSING], 1))
        reading = await site.read()
        assert reading.ready == taken_over
        assert reading.private == 0
        if taken_over:
            again = (await receive(consumer, 1)).deliveries
            await settle(consumer, again, Action.COMMIT)


async def test_a_cancelled_receive_strands_nothing(site: Site) -> None:
    await site.publish(*numbered(5))
    for patience in range(0, 40, 2):
        consumer = site.consumer(f"w{patience}")
        task = asyncio.create_task(consumer.receive(5))
        for _ in range(patience):
            await asyncio.sleep(0)
        task.cancel()
        got = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(got[0], BaseException):
            await settle(consumer, got[0].deliveries, Action.RELEASE)
        await consumer.close()
        assert site.free(await site.read()) == 5
    payloads = [one.payload for one in (await receive(site.consumer())).deliveries]
    # In any order: JetStream hands out in the order in which what was given back reached it.
    assert sorted(payloads) == numbered(5)


async def test_many_consumers_share_without_twins(site: Site) -> None:
    await site.publish(*numbered(500))
    quick = dataclasses.replace(CALM, block=0.05)
    seen: list[bytes] = []

    async def work(name: str) -> None:
        consumer = site.consumer(name, timing=quick)
        # A wait that brings nothing is not the end: a busy server may be late.
        while len(seen) < 500:
            deliveries = (await receive(consumer, 7)).deliveries
            seen.extend(one.payload for one in deliveries)
            assert set(await settle(consumer, deliveries, Action.COMMIT)) <= {Outcome.COMMITTED}

    await asyncio.gather(*(work(f"w{n}") for n in range(4)))
    assert sorted(seen) == sorted(numbered(500))
    assert not site.free(await site.read())


async def test_what_is_not_json_is_not_published(site: Site) -> None:
    for bad in (b"", b"{", b"\xff", b'"\xff"', b"1 2", b"[" * 100_000):
        with pytest.raises(PayloadRefusedError, match="JSON"):
            await site.publish(b"1", bad)
    assert (await site.read()).ready == 0


@pytest.mark.needs(CAN_COUNT_PLACES)
async def test_the_reading_says_where_everything_is(site: Site) -> None:
    await site.publish(*numbered(5))
    a, b = site.consumer("wa", "ra"), site.consumer("wb", "rb")
    first = (await receive(a, 3)).deliveries
    await receive(b, 1)
    await settle(a, first[:2], Action.COMMIT, Action.REJECT)
    reading = await site.read()
    assert (reading.ready, reading.owned, reading.processing, reading.failed) == (1, 2, 2, 1)
    assert reading.oldest_ready_age is not None
    assert 0 <= reading.oldest_ready_age < 600
    assert dict(reading.owners) == {"wa": 1, "wb": 1}
    assert (reading.ledger["ra"].claimed, reading.ledger["ra"].committed, reading.ledger["rb"].claimed) == (
        3,
        1,
        1,
    )


async def test_the_retry_sweep_publishes_failed_messages_again_oldest_first(site: Site) -> None:
    await site.publish(*numbered(450))
    consumer = site.consumer()
    deliveries = await receive_all(consumer, 450)
    await settle(consumer, deliveries, Action.REJECT)
    maintenance = site.maintenance()
    assert (await maintenance.retry("q", limit=3)).retried == 3
    steps: list[Swept] = []
    assert await maintenance.retry("q", on_step=steps.append) == Swept(retried=447)
    assert len(steps) > 1
    assert steps[-1] == Swept(retried=447)
    again = await receive_all(consumer, 450)
    assert [one.payload for one in again] == numbered(450)
    assert {one.attempts for one in again} == {1}
    assert not {one.pid for one in again} & {one.pid for one in deliveries}
    reading = await site.read()
    assert (reading.failed, reading.dead, reading.owned) == (0, 0, 450)


async def test_sweeps_by_attempts(site: Site) -> None:
    await site.publish(*numbered(6))
    consumer, maintenance = site.consumer(), site.maintenance()
    await settle(consumer, (await receive(consumer, 3)).deliveries, Action.REJECT)
    await maintenance.retry("q")
    await settle(consumer, (await receive(consumer, 6)).deliveries, Action.REJECT)
    swept = await maintenance.retry("q", max_attempts=1, limit=4)
    assert (swept.retried, swept.parked) == (3, 1)
    assert await maintenance.park("q", max_attempts=2) == Swept(kept=2)
    assert await maintenance.park("q", max_attempts=1) == Swept(parked=2)
    assert (await site.read()).dead == 3
    assert {one.why for one in await maintenance.retained("q")} == {"parked"}
    assert await maintenance.retry("q", dead=True, max_attempts=1) == Swept(kept=3)
    assert await maintenance.retry("q", dead=True) == Swept(retried=3)
    attempts = [one.attempts for one in (await receive(consumer)).deliveries]
    assert attempts == [1, 1, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="bound"):
        await maintenance.park("q")


async def test_concurrent_sweeps_publish_each_message_once(site: Site) -> None:
    await site.publish(*numbered(900))
    consumer = site.consumer()
    await settle(consumer, await receive_all(consumer, 900), Action.REJECT)
    sweepers = [site.maintenance() for _ in range(5)]
    swept = await asyncio.gather(*(one.retry("q") for one in sweepers))
    assert sum(one.retried for one in swept) == 900
    assert sorted(one.payload for one in await receive_all(consumer, 900)) == sorted(numbered(900))
    assert (await site.read()).failed == 0
