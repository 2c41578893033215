"""Those who recover: they die in the middle, they come too often, they look while a claim is under way."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter

import pytest

from tests.brokers.fault_proxy import Fault, FaultProxy, Seen
from tests.brokers.site import CALM, PATIENCE, Site, receive, settle
from tests.brokers.test_redis_claims import envelope, push, run
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, BrokerError, Outcome
from worker_runtime.brokers.redis import transitions

#: More commands than one pass needs for so little; a bound against a test that never ends.
_MOST = 60


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER], ids=["unsent", "unanswered"])
async def test_one_that_dies_at_any_command_leaves_the_rest_to_the_next(
    fault: Fault, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    keys, client = standalone.keys, standalone.client
    raws = [envelope(f"p{n}") for n in range(13)]
    for n in range(1, _MOST):
        push(standalone, *raws)
        await receive(standalone.consumer("dead"), 10)
        client.zadd(keys.liveness, {f"p{k}": 1 for k in range(9)})
        client.zrem(keys.liveness, "p9")
        run(standalone, transitions.reserve(keys, "dead.1", "r1", 3, 0))
        seen: list[str] = []

        def die(one: Seen, n: int = n, seen: list[str] = seen) -> Fault:
            seen.append(one.name)
            return fault if len(seen) >= n else Fault.PASS

        async with FaultProxy(redis_server.port, before=die) as proxy:
            with contextlib.suppress(BrokerError):
                await asyncio.wait_for(standalone.renewer("dies", url=proxy.url).recover(), PATIENCE)
        await standalone.renewer("next").recover()
        assert sorted(standalone.ready()) == sorted(raws)
        reading = await standalone.read()
        assert (reading.private, reading.processing, reading.total) == (0, 0, 0)
        assert reading.ledger["r1"].taken_over == 10
        for_ever = {key for key in client.scan_iter(f"{standalone.namespace}.*") if client.pttl(key) < 0}
        lasting = {keys.ready, keys.ledger, *keys.counters()}
        assert for_ever <= {name.encode() for name in lasting}, "somebody's lock was left behind"
        client.delete(*client.keys(f"{standalone.namespace}.*"))
        if len(seen) < n:
            break
    assert len(seen) < n, "one pass never came to its end"
    assert {"recover_delivery", "recover_reservation"} <= set(seen)


async def test_one_that_looks_all_the_time_takes_nothing_whose_claim_is_slow(
    standalone: Site, redis_server: EmbeddedRedis
) -> None:
    """Between being taken and being owned a message is in a reservation with a deadline of its own."""
    count, workers = 300, 10
    push(standalone, *[envelope(f"p{n}") for n in range(count)])
    claims = 0

    def late(seen: Seen) -> float:
        nonlocal claims
        claims += seen.name == "claim"
        return 0.05 if seen.name == "claim" and claims % 2 else 0.0

    started: Counter[str] = Counter()
    over = asyncio.Event()
    renewer = standalone.renewer("sweeper")

    async def sweep() -> int:
        looks = 0
        while not over.is_set():
            recovered = await renewer.recover()
            assert (recovered.deliveries, recovered.reservations) == (0, 0)
            looks += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 0.01)
        return looks

    async with FaultProxy(redis_server.port, late=late) as proxy:
        timing = dataclasses.replace(CALM, block=0.01)

        async def work(name: str) -> None:
            consumer = standalone.consumer(name, timing=timing, url=proxy.url)
            while deliveries := (await receive(consumer, 1)).deliveries:
                started.update(one.pid for one in deliveries)
                assert await settle(consumer, deliveries, Action.COMMIT) == [Outcome.COMMITTED]
            await consumer.close()

        sweeping = asyncio.create_task(sweep())
        await asyncio.gather(*(work(f"w{n}") for n in range(workers)))
        over.set()
        assert await sweeping > 5
    assert (len(started), set(started.values())) == (count, {1})
    reading = await standalone.read()
    assert (reading.success, reading.ledger["r1"].taken_over, reading.private) == (count, 0, 0)


async def test_an_answer_is_lost_at_every_command(standalone: Site, redis_server: EmbeddedRedis) -> None:
    """The server did it and the worker does not know: for each command from its first to its last."""
    client = standalone.client
    for n in range(1, _MOST):
        pids = [f"p{k}" for k in range(6)]
        push(standalone, *[envelope(pid) for pid in pids])
        commands = 0

        def lose(_: Seen, n: int = n) -> Fault:
            nonlocal commands
            commands += 1
            return Fault.CUT_AFTER if commands == n else Fault.PASS

        starts: Counter[str] = Counter()
        committed: Counter[str] = Counter()
        async with FaultProxy(redis_server.port, before=lose) as proxy:
            timing = dataclasses.replace(CALM, block=0.01)
            consumer = standalone.consumer(timing=timing, url=proxy.url)
            renewer = standalone.renewer(url=proxy.url)
            async with asyncio.timeout(PATIENCE):
                while (await standalone.read()).success < len(pids):
                    with contextlib.suppress(BrokerError):
                        deliveries = (await consumer.receive(4)).deliveries
                        starts.update(one.pid for one in deliveries)
                        outcomes = await settle(consumer, deliveries, Action.COMMIT)
                        committed.update(
                            one.pid
                            for one, outcome in zip(deliveries, outcomes, strict=True)
                            if outcome is Outcome.COMMITTED
                        )
                        assert set(outcomes) <= {Outcome.COMMITTED, Outcome.UNKNOWN}
                    with contextlib.suppress(BrokerError):
                        await renewer.recover()
        assert set(starts) == set(pids)
        assert max(starts.values()) <= 2
        assert max(committed.values()) == 1
        reading = await standalone.read()
        assert (reading.success, reading.ready, reading.private) == (6, 0, 0)
        client.delete(*client.keys(f"{standalone.namespace}.*"))
        if commands < n:
            break
    assert commands < n, "it never came to its last command"
