"""Sweeps over lists that others fill as well."""

from __future__ import annotations

import dataclasses
import time

from tests.brokers.site import CALM, HASTY, Site, eventually, receive
from tests.brokers.test_redis_claims import envelope, push
from worker_runtime.brokers.base import Recovered, Swept


def failed(site: Site, pid: str, raw: bytes | None) -> None:
    """As any worker of this layout leaves it."""
    if raw is not None:
        site.client.set(site.keys.job(pid), raw)
    site.client.lpush(site.keys.failed, pid)


def dated(pid: str, seconds_ago: float, attempts: str = "") -> bytes:
    return b'{"pid":"%b","queue":"q","timestamp":%d,"payload":{"p":"%b"}%b}' % (
        pid.encode(),
        time.time() - seconds_ago,
        pid.encode(),
        attempts.encode(),
    )


async def test_what_cannot_be_retried_is_cleared_or_kept(standalone: Site) -> None:
    client, keys = standalone.client, standalone.keys
    failed(standalone, "gone", None)
    failed(standalone, "junk", b"\xff\x00")
    failed(standalone, "fine", dated("fine", 10))
    client.set(keys.reason("gone"), "why")
    client.lpush(keys.failed, b"\xff odd")
    client.set(keys.job(b"\xff odd"), envelope("x"))
    assert await standalone.maintenance().retry("q") == Swept(retried=2, dropped=1, kept=1, unreadable=1)
    assert client.lrange(keys.failed, 0, -1) == [b"junk"]
    assert sorted(client.keys(f"{standalone.namespace}.*")) == sorted(
        str(key).encode() for key in (keys.failed, keys.ready, keys.job("junk"))
    )
    assert [one.attempts for one in (await receive(standalone.consumer())).deliveries] == [1, 1]


async def test_sweeps_by_age(standalone: Site) -> None:
    for number in range(6):
        failed(standalone, f"p{number}", dated(f"p{number}", (6 - number) * 1000 - 500))
    maintenance = standalone.maintenance()
    assert await maintenance.retry("q", newer_than=3000, older_than=1000) == Swept(retried=2, kept=4)
    payloads = [one.payload for one in (await receive(standalone.consumer())).deliveries]
    assert payloads == [b'{"p":"p3"}', b'{"p":"p4"}']
    assert await maintenance.park("q", older_than=5000) == Swept(parked=1, kept=3)
    client, keys = standalone.client, standalone.keys
    assert client.lrange(keys.dead, 0, -1) == [b"p0"]
    assert client.lrange(keys.failed, 0, -1) == [b"p5", b"p2", b"p1"]


async def test_parking_starts_the_time_to_live(standalone: Site) -> None:
    failed(standalone, "a", dated("a", 10, ',"attempts":5'))
    maintenance = standalone.maintenance(timing=dataclasses.replace(CALM, job_ttl=3600))
    assert await maintenance.park("q", max_attempts=5) == Swept(parked=1)
    for key in (standalone.keys.job("a"), standalone.keys.reason("a")):
        assert 3500 < standalone.client.ttl(key) <= 3600


async def test_a_sweep_among_many_that_stay(standalone: Site) -> None:
    """Every tenth of 2,000 is old enough; the places of the others do not mislead it."""
    for number in range(2000):
        failed(standalone, f"p{number}", dated(f"p{number}", 5000 if number % 10 == 0 else 10))
    assert await standalone.maintenance().retry("q", older_than=1000) == Swept(retried=200, kept=1800)
    left = standalone.client.lrange(standalone.keys.failed, 0, -1)
    assert left == [b"p%d" % n for n in reversed(range(2000)) if n % 10]
    assert len(standalone.ready()) == 200


async def test_what_fails_again_during_a_sweep_waits_for_the_next(standalone: Site) -> None:
    for number in range(300):
        failed(standalone, f"p{number}", dated(f"p{number}", 10))
    again = 0

    def fail_again(swept: Swept) -> None:
        nonlocal again
        for _ in range(200):
            again += 1
            failed(standalone, f"again{again}", dated(f"again{again}", 10))

    assert (await standalone.maintenance().retry("q", on_step=fail_again)).retried == 300
    assert standalone.client.llen(standalone.keys.failed) == again


async def test_recover_runs_until_nothing_is_due(standalone: Site) -> None:
    client, keys = standalone.client, standalone.keys
    push(standalone, *(envelope(f"p{n}") for n in range(1500)))
    held = standalone.consumer("alive")
    await receive(held, 700)
    dead = standalone.consumer("dead", timing=HASTY)
    await receive(dead, 700)
    # Liveness that vanished: found only by the search that looks at a window a call.
    lost = [pid for pid, token in client.hgetall(keys.owners).items() if b" dead " in token]
    client.zrem(keys.liveness, *lost[:300])
    client.set(keys.job("old"), envelope("old"))
    client.rpush(keys.processing, "old")
    recovered = Recovered()

    async def all_back() -> bool:
        nonlocal recovered
        steps: list[Recovered] = []
        one = await standalone.maintenance().recover("q", steps.append)
        assert steps[-1] == one
        recovered = Recovered(0, recovered.deliveries + one.deliveries)
        return recovered.deliveries == 701

    await eventually(all_back)
    reading = await standalone.read()
    assert (reading.ready, reading.owned, reading.processing) == (801, 700, 700)
    assert await standalone.maintenance().recover("q") == Recovered()
