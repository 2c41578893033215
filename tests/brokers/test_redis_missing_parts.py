"""Parts of a message's books that are gone, evicted or deleted by somebody: its neighbours go on."""

from __future__ import annotations

import pytest

from tests.brokers.site import CALM, Site, receive, settle
from tests.brokers.test_redis_claims import envelope, push
from worker_runtime.brokers.base import Action, Outcome

_WANTED = {
    Action.COMMIT: Outcome.COMMITTED,
    Action.REJECT: Outcome.REJECTED,
    Action.DEAD: Outcome.REJECTED,
    Action.RETRY: Outcome.REJECTED,
    Action.RELEASE: Outcome.RELEASED,
}


async def books_are_right(site: Site) -> None:
    reading = await site.read()
    row = reading.ledger["r1"]
    assert row.claimed == row.committed + row.rejected + row.released + row.taken_over
    assert (reading.owned, reading.processing) == (0, 0)
    client, keys = site.client, site.keys
    counters = {key: int(client.get(key) or 0) for key in keys.counters()}
    assert min(counters.values()) >= 0, counters


@pytest.mark.parametrize("action", list(Action))
async def test_one_record_of_ten_is_gone_before_a_settlement(action: Action, standalone: Site) -> None:
    """Only a release needs the record; the others know the payload or need none."""
    raws = [envelope(f"p{n}") for n in range(10)]
    push(standalone, *raws)
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    standalone.client.delete(standalone.keys.job("p3"))
    outcomes = await settle(consumer, deliveries, action)
    missing = Outcome.MISSING if action is Action.RELEASE else _WANTED[action]
    assert outcomes == [missing if n == 3 else _WANTED[action] for n in range(10)]
    if action is Action.RELEASE:
        assert standalone.ready() == raws[:3] + raws[4:]
        # Nothing can come of it, and whoever cleans up after its owner sees that.
        standalone.client.zadd(standalone.keys.liveness, {"p3": 1})
        assert (await standalone.renewer().recover()).deliveries == 1
        assert standalone.ready() == raws[:3] + raws[4:]
    await books_are_right(standalone)
    swept = await standalone.maintenance().retry("q", dead=action is Action.DEAD)
    kept = action in (Action.REJECT, Action.DEAD)
    assert (swept.retried, swept.dropped) == ((9, 1) if kept else (0, 0))


async def test_one_record_of_ten_is_gone_before_the_recovery(standalone: Site) -> None:
    raws = [envelope(f"p{n}") for n in range(10)]
    push(standalone, *raws)
    dead = standalone.consumer("dead")
    await receive(dead)
    keys, client = standalone.keys, standalone.client
    client.delete(keys.job("p3"))
    client.zadd(keys.liveness, {f"p{n}": 1 for n in range(10)})
    assert (await standalone.renewer().recover()).deliveries == 10
    assert standalone.ready() == raws[:3] + raws[4:]
    await books_are_right(standalone)


@pytest.mark.parametrize("lost", ["rows", "liveness", "processing", "liveness and processing"])
async def test_what_is_lost_of_liveness_and_processing_strands_nothing(lost: str, standalone: Site) -> None:
    """A dead owner's messages are found by their tokens; a living owner restores what it renews."""
    raws = [envelope(f"p{n}") for n in range(6)]
    push(standalone, *raws)
    keys, client = standalone.keys, standalone.client
    alive, dead = standalone.consumer("alive"), standalone.consumer("dead")
    ours = (await receive(alive, 3)).deliveries
    await receive(dead, 3)
    if lost == "rows":
        client.zrem(keys.liveness, "p0", "p4")
        client.lrem(keys.processing, 1, "p4")
    if "liveness" in lost:
        client.delete(keys.liveness)
    if "processing" in lost:
        client.delete(keys.processing)
    renewer = standalone.renewer("alive")
    assert list(await renewer.extend(ours)) == []
    client.zadd(keys.liveness, {f"p{n}": 1 for n in (3, 4, 5)}, xx=True)
    assert (await renewer.recover()).deliveries == 3
    assert sorted(standalone.ready()) == raws[3:]
    assert set(await settle(alive, ours, Action.COMMIT)) == {Outcome.COMMITTED}
    await books_are_right(standalone)


async def test_a_server_that_evicts_takes_nothing_of_the_protocol(standalone: Site) -> None:
    """What may be evicted is what has a time to live, and that is nothing that a message depends on."""
    push(standalone, *[envelope(f"p{n}") for n in range(8)])
    consumer = standalone.consumer(timing=CALM)
    deliveries = (await receive(consumer, 6)).deliveries
    actions = [Action.RETRY, Action.REJECT, Action.DEAD, Action.COMMIT]
    await settle(consumer, deliveries[:4], *actions)
    client, keys = standalone.client, standalone.keys
    for key in client.scan_iter(f"{standalone.namespace}.*"):
        if client.pttl(key) >= 0:
            client.delete(key)
    reading = await standalone.read()
    assert (reading.ready, reading.owned, reading.delayed, reading.failed, reading.dead) == (2, 2, 1, 1, 1)
    assert set(await settle(consumer, deliveries[4:], Action.COMMIT)) == {Outcome.COMMITTED}
    assert (await standalone.maintenance().retry("q")).retried == 1
    assert client.exists(keys.ledger)
