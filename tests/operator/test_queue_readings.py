"""Real queues as facts, what the operator does on their brokers, and brokers that do not answer."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta

import pytest

from queueworker_operator.act.broker import act_on_broker
from queueworker_operator.api.revisions import broker_identity
from queueworker_operator.api.types import QueueWorkerSpec
from queueworker_operator.observe.access import Access
from queueworker_operator.observe.queues import QueueReadings
from queueworker_operator.plan import actions as act
from queueworker_operator.plan.facts import Facts, QueueFacts, Unknown, Workers, fresh_queue
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.resources import START, worker
from worker_runtime.brokers.base import Action, Broker, Presence, Settlement, Timing, WorkerIdentity
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.redis.server import EmbeddedRedis

NAMESPACE, QUEUE = "utopia-queue", "stats-usage"
#: Nothing expires by itself while a test runs, and it does for the one that is about that.
CALM = Timing(expiry=600, reservation=600, block=0.05)
SOON = Timing(expiry=0.5, reservation=0.5, block=0.05)
IDENTITY = WorkerIdentity("h1-1", "w1")


class Clock:
    """Goes on by more than a reading counts as new each time that it is asked for a fact."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def goes_on(self, seconds: float = 1.0) -> None:
        self.now += timedelta(seconds=seconds)


def spec_at(url: str) -> QueueWorkerSpec:
    return worker(spec__broker__redis__url=url).spec


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as one:
        yield one


@pytest.fixture
async def broker(server: EmbeddedRedis) -> Broker:
    import redis

    redis.Redis.from_url(server.url).flushall()
    return broker_from_url(server.url, NAMESPACE, CALM)


class Reader:
    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.readings = QueueReadings(self.clock)
        self.access, self.spec = Access(url), spec_at(url)

    async def look(self) -> QueueFacts:
        """A new reading, however long the server takes for it."""
        self.clock.goes_on()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = await self.readings.latest(self.access, self.spec)
            if isinstance(found, QueueFacts) and found.observed_at == self.clock.now:
                return found
        raise AssertionError(f"no new reading: {found}")


@pytest.fixture
async def reader(server: EmbeddedRedis) -> AsyncIterator[Reader]:
    reader = Reader(server.url)
    yield reader
    await reader.readings.close()


async def publish(broker: Broker, number: int) -> None:
    publisher = broker.publisher()
    await publisher.publish_many(QUEUE, [b"%d" % n for n in range(number)])
    await publisher.close()


async def test_processes_that_ended_and_were_started_again(broker: Broker, reader: Reader) -> None:
    presence = Presence(receiving=True, outstanding=0, coroutines=1, prefetch=2)
    for identity in (
        WorkerIdentity("h1-1", "w0", "pod-a", restarts=0),
        WorkerIdentity("h1-1", "w1", "pod-a", restarts=1, last_end="signal SIGKILL"),
        WorkerIdentity("h1-1", "w2", "pod-a", restarts=2, last_end="exit code 1"),
        WorkerIdentity("h1-1", "w3", "pod-b", restarts=1),
        WorkerIdentity("h1-2", "w4", "pod-c"),
    ):
        await broker.renewer(QUEUE, identity).announce(presence)
    found = await reader.look()
    restarts = found.live["h1-1"].restarts
    assert restarts is not None
    assert restarts.number == 3, "one of pod-a is counted by the one in its place"
    assert "worker pod-a: a process of it ended with exit code 1 " in restarts.message
    assert timedelta(0) <= found.observed_at - restarts.last_at < timedelta(seconds=30)
    assert found.live["h1-2"].restarts is None


async def test_each_place_of_a_host_counts_once(broker: Broker, reader: Reader) -> None:
    presence = Presence(receiving=True, outstanding=0, coroutines=1, prefetch=2)
    for name, place, number in (("w1", "a/0", 1), ("w2", "a/0", 2), ("w3", "a/1", 1), ("w4", "b/0", 2)):
        identity = WorkerIdentity("h1-1", name, "laptop", number, "exit code 1", place)
        await broker.renewer(QUEUE, identity).announce(presence)
    restarts = (await reader.look()).live["h1-1"].restarts
    assert restarts is not None
    assert restarts.number == 5, "w1 is counted by w2, which follows it in its place"
    assert restarts.places == (("a/0", 2), ("a/1", 1), ("b/0", 2))


async def test_what_a_queue_says(broker: Broker, reader: Reader) -> None:
    await publish(broker, 3)
    consumer, renewer = broker.consumer(QUEUE, IDENTITY), broker.renewer(QUEUE, IDENTITY)
    held = (await consumer.receive(2)).deliveries
    await renewer.announce(Presence(receiving=True, outstanding=2, coroutines=1, prefetch=2))
    found = await reader.look()
    assert (found.identity, found.primary, found.has_registry) == (
        broker_identity(reader.spec.broker),
        True,
        True,
    )
    assert (found.owned, found.owned_by, found.registry) == (2, {"h1-1": 2}, 2)
    assert found.live == {"h1-1": LiveWorkers(capable=1, receiving=1, outstanding=2)}
    assert found.quiet_since is None

    await consumer.settle([Settlement(one, Action.COMMIT) for one in held], lambda *_: None)
    found = await reader.look()
    assert (found.owned_by, found.registry) == ({}, 0)
    await consumer.close()
    await renewer.close()


async def test_quiet_begins_anew_with_every_movement(broker: Broker, reader: Reader) -> None:
    began = (await reader.look()).quiet_since
    assert began == reader.clock.now
    reader.clock.goes_on(10)
    assert (await reader.look()).quiet_since == began

    fence = act.FenceRevision("h1-1", "it leaves")
    await act_on_broker(reader.access, reader.spec, fence)
    found = await reader.look()
    assert found.fences == {"h1-1": "it leaves"}
    assert found.quiet_since == reader.clock.now, "a fence is where the time begins"

    await act_on_broker(reader.access, reader.spec, act.UnfenceRevision("h1-1"))
    assert (await reader.look()).fences == {}
    await publish(broker, 1)
    consumer = broker.consumer(QUEUE, IDENTITY)
    held = (await consumer.receive(1)).deliveries
    await consumer.settle([Settlement(one, Action.COMMIT) for one in held], lambda *_: None)
    await consumer.close()
    found = await reader.look()
    assert found.registry == 0
    assert found.quiet_since == reader.clock.now, "it came and went between two looks"


async def test_what_the_operator_returns_to_the_queue(broker: Broker, reader: Reader) -> None:
    await publish(broker, 3)
    consumer = broker_from_url(reader.access.url, NAMESPACE, SOON).consumer(QUEUE, IDENTITY)
    one, two = (await consumer.receive(2)).deliveries
    await consumer.settle([Settlement(one, Action.RETRY, delay=3600)], lambda *_: None)
    await consumer.close()  # and the other is left behind
    assert two.pid
    found = await reader.look()
    assert (found.owned, found.delayed) == (1, 1)

    await act_on_broker(reader.access, reader.spec, act.PromoteDelayed())
    await eventually_empty(reader, act.RecoverWork())
    found = await reader.look()
    assert (found.registry, found.delayed) == (0, 0)
    inspector = broker.inspector()
    assert (await inspector.read(QUEUE)).ready == 3
    await inspector.close()


async def eventually_empty(reader: Reader, action: act.RecoverWork) -> None:
    deadline = time.monotonic() + 30
    while (await reader.look()).registry:
        assert time.monotonic() < deadline, "what is expired is not recovered"
        await act_on_broker(reader.access, reader.spec, action)


async def test_a_broker_that_stands_still_delays_no_other(server: EmbeddedRedis, reader: Reader) -> None:
    with EmbeddedRedis() as sick:
        access, spec = Access(sick.url), spec_at(sick.url)
        first = await until_read(lambda: reader.readings.latest(access, spec))
        os.kill(sick.pid, signal.SIGSTOP)
        try:
            reader.clock.goes_on()
            stuck = [asyncio.create_task(reader.readings.latest(access, spec)) for _ in range(20)]
            await reader.look()  # of the sound one, while all of these are under way or were given up
            answers = await asyncio.gather(*stuck)
            assert {getattr(one, "observed_at", None) for one in answers} == {first.observed_at}

            reader.clock.goes_on(16)
            old = await reader.readings.latest(access, spec)
            nobody = Unknown("nobody looked", START)
            facts = Facts(Workers((), START), nobody, old)
            judged = fresh_queue(facts, broker_identity(spec.broker), reader.clock.now)
            assert isinstance(judged, Unknown)
        finally:
            os.kill(sick.pid, signal.SIGCONT)


async def test_whoever_reads_a_broker_that_stands_still_waits_only_the_first_time(reader: Reader) -> None:
    with EmbeddedRedis() as sick:
        access, spec = Access(sick.url), spec_at(sick.url)
        await until_read(lambda: reader.readings.latest(access, spec))
        os.kill(sick.pid, signal.SIGSTOP)
        try:
            # One after the other: as many as nobody could wait for at half a second each.
            async with asyncio.timeout(30):
                for number in range(100):
                    other = worker(spec__broker__redis__url=sick.url, spec__queue__name=f"q{number}").spec
                    assert isinstance(await reader.readings.latest(access, other), Unknown)
            await reader.look()
        finally:
            os.kill(sick.pid, signal.SIGCONT)


async def until_read(ask: Callable[[], object]) -> QueueFacts:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = await ask()  # type: ignore[misc]
        if isinstance(found, QueueFacts):
            return found
    raise AssertionError(f"never read: {found}")


async def test_why_a_queue_could_not_be_read_is_told(reader: Reader) -> None:
    gone = "redis://127.0.0.1:1/0"
    reader.clock.goes_on()
    found = await reader.readings.latest(Access(gone), spec_at(gone))
    deadline = time.monotonic() + 30
    while "127.0.0.1:1" not in ((isinstance(found, Unknown) and found.reason) or ""):
        assert time.monotonic() < deadline, found
        found = await reader.readings.latest(Access(gone), spec_at(gone))
    assert isinstance(found, Unknown)


async def test_queues_of_one_broker_share_a_connection(server: EmbeddedRedis, reader: Reader) -> None:
    import redis

    with redis.Redis.from_url(server.url) as client:
        before = client.info("clients")["connected_clients"]
        specs = [
            worker(spec__broker__redis__url=server.url, spec__queue__name=f"q{n}").spec for n in range(20)
        ]
        found = await asyncio.gather(*(reader.readings.latest(reader.access, spec, 30.0) for spec in specs))
        assert all(isinstance(one, QueueFacts) for one in found)
        assert client.info("clients")["connected_clients"] <= before + 1
