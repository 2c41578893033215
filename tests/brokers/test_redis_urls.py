"""Options of a client in the URL that would break the bytes of a payload have no power over them."""

from __future__ import annotations

import json

import pytest

from tests.brokers.site import Site, receive, settle
from tests.brokers.test_redis_claims import push
from worker_runtime.brokers.base import Action, Outcome

PAYLOADS = [
    '"caf\u00e9 \u2603 \U0001f600"'.encode(),
    rb'"\u0000\ud83d\ude00"',
    b'""',
    b"0",
    b'{"a":[1.0e5, null]}',
]


@pytest.mark.parametrize(
    "options", ["decode_responses=True", "encoding=latin-1", "decode_responses=1&protocol=3"]
)
async def test_payloads_come_back_byte_for_byte(options: str, standalone: Site) -> None:
    url = f"{standalone.url}/0?{options}"
    publisher = standalone.broker(url=url).publisher()
    pids = await publisher.publish_many("q", PAYLOADS)
    await publisher.close()
    junk = b'{"pid":"j","queue":"q","timestamp":1,"payload":"\xff\x00\x80"}'
    push(standalone, junk)
    consumer, renewer = standalone.consumer(url=url), standalone.renewer(url=url)
    received = await receive(consumer)
    assert [one.payload for one in received.deliveries] == PAYLOADS
    assert [one.pid for one in received.deliveries] == list(pids)
    assert received.poisoned == 1
    (poison,) = standalone.client.lrange(standalone.keys.poison, 0, -1)
    assert poison.endswith(b"\n" + junk)
    assert not await renewer.extend(received.deliveries)
    assert set(await settle(consumer, received.deliveries, Action.RELEASE)) == {Outcome.RELEASED}
    assert [json.loads(raw)["pid"] for raw in standalone.ready()] == list(pids)
    again = (await receive(consumer)).deliveries
    standalone.client.zadd(standalone.keys.liveness, {one.pid: 1 for one in again})
    assert (await renewer.recover()).deliveries == len(PAYLOADS)
    assert [one.payload for one in (await receive(consumer)).deliveries] == PAYLOADS
    assert (await standalone.inspector(url).read("q")).owned == len(PAYLOADS)
