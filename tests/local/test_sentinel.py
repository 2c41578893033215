"""A resource whose broker is watched by Sentinels."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.local.running import NAMESPACE, Up, resource
from tests.sentinels import WatchedRedis
from worker_runtime.brokers.connect import broker_from_url


@pytest.fixture(scope="module")
def watched() -> Iterator[WatchedRedis]:
    with WatchedRedis() as running:
        yield running


async def test_its_workers_follow_a_failover_and_it_stays_ready(own_up: Up, watched: WatchedRedis) -> None:
    redis = {"url": watched.url, "topology": "Sentinel"}
    own_up.write(resource(broker={"redis": redis}, container={"args": ["run", "tests.local.plain_jobs:app"]}))
    await own_up.start()
    await own_up.ready()
    before = own_up.pids()
    new = await asyncio.to_thread(watched.fail_over)
    broker = broker_from_url(watched.url, NAMESPACE)
    publisher, inspector = broker.publisher(), broker.inspector()
    await publisher.publish_many("work", [b'{"id":"a"}', b'{"id":"b"}'])
    async with asyncio.timeout(60):
        while (await inspector.read("work")).success != 2:  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(0.05)
    assert (await inspector.read("work")).server == f"127.0.0.1:{new.port}"
    await publisher.close()
    await inspector.close()
    await own_up.ready()
    assert own_up.condition("BrokerReachable")["status"] == "True"
    assert own_up.pids() == before, "no worker was restarted"
    assert await own_up.stop() == 0
