"""Whatever gives a message back gives back the bytes that were taken; and each namespace is its own world."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import redis

from tests.brokers.site import HASTY, Site, receive, settle
from tests.brokers.test_redis_claims import push
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, Outcome

#: Valid, and written as no encoder of ours would: spaces, order, escapes, unknown and repeated fields.
ENVELOPES = [
    b'{ "payload" : {"a": 1.0, "b":[ ]} , "pid":"p0", "timestamp": 1,"queue":"q" }',
    b'{"pid":"p1","queue":"q","timestamp":1.50,"payload":"\\u00e9\\/","attempts":0,"more":{"x":[1 ,2]}}  ',
    b'\t{"pid":"p2","queue":"other","timestamp":1,"payload":1e2,"payload":1E2}',
]


async def test_a_release_puts_back_the_bytes_that_were_taken(standalone: Site) -> None:
    push(standalone, *ENVELOPES)
    consumer = standalone.consumer()
    deliveries = (await receive(consumer)).deliveries
    assert await settle(consumer, deliveries, Action.RELEASE) == [Outcome.RELEASED] * 3
    assert standalone.ready() == ENVELOPES


async def test_both_recoveries_put_back_the_bytes_that_were_taken(standalone: Site) -> None:
    push(standalone, *ENVELOPES)
    consumer, renewer = standalone.consumer(timing=HASTY), standalone.renewer(max_takeovers=0)
    await receive(consumer)
    while not (await renewer.recover()).deliveries:
        pass
    assert standalone.ready() == ENVELOPES, "the first time at once"
    await receive(consumer)
    while not (await renewer.recover()).deliveries:
        pass
    assert set(standalone.client.zrange(standalone.keys.delayed, 0, -1)) == set(ENVELOPES), (
        "then after a wait"
    )


async def test_settling_in_one_namespace_leaves_the_same_message_of_another(
    redis_server: EmbeddedRedis, make_site: Callable[..., Site]
) -> None:
    """The same queue name, the same ids, the same moment."""
    name = f"t{secrets.token_hex(4)}"
    one, other = (
        make_site(redis_server.url, redis.Redis(port=redis_server.port), namespace)
        for namespace in (name, f"{name}.queue")
    )
    for site in (one, other):
        push(site, *ENVELOPES)
    mine, theirs = one.consumer(), other.consumer()
    deliveries = (await receive(mine)).deliveries
    same = (await receive(theirs)).deliveries
    assert [each.pid for each in deliveries] == [each.pid for each in same]
    assert await settle(theirs, deliveries, Action.COMMIT) == [Outcome.SUPERSEDED] * 3
    assert await settle(mine, deliveries, Action.COMMIT) == [Outcome.COMMITTED] * 3
    reading = await other.read()
    assert (reading.owned, reading.processing, reading.success) == (3, 3, 0)
    assert await settle(theirs, same, Action.COMMIT) == [Outcome.COMMITTED] * 3
