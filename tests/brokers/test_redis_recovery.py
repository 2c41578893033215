"""What dead workers, and workers without tokens, leave behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.brokers.site import CALM, HASTY, Site, eventually, receive, settle
from tests.brokers.test_redis_claims import envelope, push, run
from worker_runtime.brokers.base import Action, Outcome, Recovered, Renewer
from worker_runtime.brokers.redis import transitions


async def test_an_expired_reservation_goes_back_in_order(standalone: Site) -> None:
    raws = [envelope(f"p{n}") for n in range(6)] + [b"\x00junk\xff"]
    push(standalone, *raws)
    run(standalone, transitions.reserve(standalone.keys, "one", "r", 2, 0))
    run(standalone, transitions.reserve(standalone.keys, "two", "r", 2, 0.001))
    run(standalone, transitions.reserve(standalone.keys, "alive", "r", 1, 600))
    renewer = standalone.renewer()
    recovered = 0

    async def both() -> bool:
        nonlocal recovered
        recovered += (await renewer.recover()).reservations
        return recovered == 2

    await eventually(both)
    assert sorted(standalone.ready()) == sorted([*raws[:4], *raws[5:]])
    assert standalone.ready()[4:] == raws[5:]
    reading = await standalone.read()
    assert [(one.id, one.size) for one in reading.reservations] == [("alive", 1)]
    assert reading.reservations[0].deadline_in > 500


async def test_a_reservation_in_time_is_left_alone(standalone: Site) -> None:
    push(standalone, envelope("a"))
    run(standalone, transitions.reserve(standalone.keys, "one", "r", 2, 600))
    assert run(standalone, transitions.recover_reservation(standalone.keys, "one")) == -1
    assert run(standalone, transitions.recover_reservation(standalone.keys, "none")) == -1
    assert (await standalone.renewer().recover()) == Recovered()


async def test_missing_liveness_means_expired(standalone: Site) -> None:
    push(standalone, envelope("a"), envelope("b"))
    await receive(standalone.consumer("dead"))
    standalone.client.zrem(standalone.keys.liveness, "a")
    assert (await standalone.renewer().recover()).deliveries == 1
    assert standalone.ready() == [envelope("a")]
    assert (await standalone.read()).ledger["r1"].taken_over == 1


async def test_a_candidate_that_is_alive_is_left_alone(standalone: Site) -> None:
    push(standalone, envelope("a"))
    await receive(standalone.consumer())
    call = transitions.recover_delivery(standalone.keys, [(b"a", 0.0), (b"a", None), (b"other", 0.0)], 0)
    assert run(standalone, call) == [0, 0, 0]
    assert (await standalone.read()).owned == 1


async def test_taken_over_work_goes_to_the_head(standalone: Site) -> None:
    raws = [envelope(f"p{n}") for n in range(5)]
    push(standalone, *raws)
    await receive(standalone.consumer("dead", timing=HASTY), 3)
    await eventually(lambda: _gave_back(standalone.renewer(), 3))
    assert standalone.ready() == raws
    reading = await standalone.read()
    assert (reading.total, reading.processing, reading.private) == (0, 0, 0)


async def _gave_back(renewer: Renewer, count: int) -> bool:
    return (await renewer.recover()).deliveries == count


async def test_work_of_a_dead_worker_whose_record_is_gone_is_cleared(standalone: Site) -> None:
    push(standalone, envelope("a"), envelope("b"))
    await receive(standalone.consumer("dead", timing=HASTY))
    standalone.client.delete(standalone.keys.job("a"))
    await eventually(lambda: _gave_back(standalone.renewer(), 2))
    assert standalone.ready() == [envelope("b")]
    reading = await standalone.read()
    assert (reading.processing, reading.private) == (0, 0)
    assert (reading.ledger["r1"].claimed, reading.ledger["r1"].taken_over) == (2, 2)


@pytest.mark.any_server
async def test_thousands_of_stranded_messages_come_back_in_one_pass(standalone: Site) -> None:
    count = 20_000
    push(standalone, *(envelope(f"p{n:05}") for n in range(count)))
    dead = standalone.consumer("dead")
    for _ in range(count // 1000):
        await receive(dead, 1000)
    pids = standalone.client.zrange(standalone.keys.liveness, 0, -1)
    standalone.client.zadd(standalone.keys.liveness, dict.fromkeys(pids, 1))
    assert (await standalone.renewer().recover()).deliveries == count
    reading = await standalone.read()
    assert (reading.ready, reading.private, reading.ledger["r1"].taken_over) == (count, 0, count)


def _legacy(site: Site, pid: str, timestamp: str) -> bytes:
    """What a worker of the older protocol leaves when it dies in its handler."""
    raw = b'{"pid":"%b","queue":"q","timestamp":%b,"payload":[]}' % (pid.encode(), timestamp.encode())
    site.client.set(site.keys.job(pid), raw)
    site.client.lpush(site.keys.processing, pid)
    site.client.incr(site.keys.total)
    site.client.incr(site.keys.processing_count)
    return raw


async def test_leftovers_of_workers_without_tokens_go_by_publish_age(standalone: Site) -> None:
    now = int(time.time())
    old = _legacy(standalone, "old", str(now - 100_000))
    text = _legacy(standalone, "text", f'"{now - 100_000}.5"')
    young = _legacy(standalone, "young", str(now - 80_000))
    standalone.client.lpush(standalone.keys.processing, b"\xff\x00 no record")
    standalone.client.incr(standalone.keys.processing_count)
    push(standalone, envelope("ours"))
    await receive(standalone.consumer())
    assert (await standalone.renewer(timing=CALM).recover()).deliveries == 3
    assert sorted(standalone.ready()) == sorted([old, text])
    assert standalone.client.get(standalone.keys.job("young")) == young
    assert standalone.client.lrange(standalone.keys.processing, 0, -1) == [b"ours", b"young"]
    reading = await standalone.read()
    assert (reading.total, reading.owned, reading.processing) == (2, 1, 2)
    assert standalone.client.get(standalone.keys.processing_count) == b"2"
    assert (await standalone.renewer().recover()).deliveries == 0


async def test_leftovers_behind_many_living_entries_are_found(standalone: Site) -> None:
    push(standalone, *(envelope(f"p{n}") for n in range(900)))
    await receive(standalone.consumer(), 900)
    _legacy(standalone, "old", "5")
    renewer = standalone.renewer()
    assert sum([(await renewer.recover()).deliveries for _ in range(6)]) == 1


async def test_ten_recoverers_give_back_once(standalone: Site) -> None:
    push(standalone, *(envelope(f"p{n}") for n in range(200)))
    await receive(standalone.consumer("dead", timing=HASTY), 200)
    renewers = [standalone.renewer(f"w{n}") for n in range(10)]
    recovered = 0

    async def all_back() -> bool:
        nonlocal recovered
        recovered += sum(one.deliveries for one in await asyncio.gather(*(r.recover() for r in renewers)))
        return recovered >= 200

    await eventually(all_back)
    assert recovered == 200
    consumer = standalone.consumer("new")
    deliveries = (await receive(consumer, 1000)).deliveries
    assert len({one.pid for one in deliveries}) == 200
    assert set(await settle(consumer, deliveries, Action.COMMIT)) == {Outcome.COMMITTED}


async def test_a_user_who_may_not_count_recovers_as_well(standalone: Site) -> None:
    push(standalone, envelope("a"))
    run(standalone, transitions.reserve(standalone.keys, "one", "r", 1, 0))
    user = f"u{standalone.keys.ready.split('.')[0]}"
    standalone.client.execute_command("ACL", "SETUSER", user, "on", "nopass", "~*", "+@all", "-hlen")
    try:
        port = standalone.client.connection_pool.connection_kwargs["port"]
        renewer = standalone.renewer(url=f"redis://{user}:any@127.0.0.1:{port}")

        async def recovered() -> bool:
            return (await renewer.recover()).reservations == 1

        await eventually(recovered)
    finally:
        standalone.client.execute_command("ACL", "DELUSER", user)
    assert standalone.ready() == [envelope("a")]
