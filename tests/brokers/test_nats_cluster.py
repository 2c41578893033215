"""A queue that is kept on three servers: its leader is killed, and a majority is lost."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

import pytest

from tests.brokers.nats_site import PLAN, NatsSite
from tests.brokers.site import CALM, PATIENCE, eventually, receive, settle
from tests.nats_cluster import NatsCluster
from worker_runtime.brokers.base import Action, BrokerError, Consumer, Delivery, Outcome, Settlement

#: The version of the Redis server makes no difference.
pytestmark = pytest.mark.any_server

TIMING = dataclasses.replace(CALM, block=0.3, command_timeout=3)
#: Where nothing is lost, an answer is waited for as long as three servers on a busy machine may take.
PATIENT = dataclasses.replace(TIMING, command_timeout=30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    with NatsCluster() as running:
        yield running


async def once_it_works(step: Callable[[], Awaitable[object]]) -> None:
    """Servers that elect a leader refuse or do not answer for a while."""
    problem = ""

    async def works() -> bool:
        nonlocal problem
        try:
            await step()
        except BrokerError as error:
            problem = str(error)
            return False
        return True

    try:
        await eventually(works)
    except TimeoutError:
        raise AssertionError(f"it never worked, at last: {problem}") from None


@pytest.fixture
async def replicated(cluster: NatsCluster) -> AsyncIterator[NatsSite]:
    """A queue on all three of them."""
    site = NatsSite(cluster.url, timeout=5.0)
    await once_it_works(site.clear)
    await once_it_works(lambda: site.provision(PLAN, replicas=3))
    await once_it_works(lambda: site.nats(TIMING).check("q"))
    yield site
    await site.close()


async def leader_of(site: NatsSite) -> str:
    """The name of the server that leads the consumer."""
    names = []

    async def look() -> None:
        names.append((await site.consumer_info())["cluster"]["leader"])

    await once_it_works(look)
    return str(names[-1])


async def test_a_leader_that_is_killed_under_load_loses_nothing(
    cluster: NatsCluster, replicated: NatsSite
) -> None:
    site = replicated
    payloads = [b"%d" % n for n in range(1000)]
    await site.publish(*payloads)
    victim = cluster.node(await leader_of(site))
    consumer, renewer = site.consumer(timing=TIMING), site.renewer(timing=TIMING)
    committed: set[bytes] = set()
    #: Their acknowledgement may have counted: then they do not come again.
    unknown: set[bytes] = set()
    again: set[bytes] = set()
    killed = False

    def note(settlement: Settlement, outcome: Outcome, _: str) -> None:
        (committed if outcome is Outcome.COMMITTED else unknown).add(settlement.delivery.payload)

    try:
        async with asyncio.timeout(PATIENCE):
            while not await settled(site, committed | unknown, payloads):
                try:
                    deliveries = (await consumer.receive(50)).deliveries
                    await renewer.extend(deliveries)
                except BrokerError:
                    continue
                again |= {one.payload for one in deliveries} & committed
                settling = asyncio.create_task(
                    consumer.settle([Settlement(one, Action.COMMIT) for one in deliveries], note)
                )
                if len(committed) >= 300 and not killed:
                    killed = True
                    victim.kill()
                    # What was lost with the leader comes back within seconds, not after ten minutes.
                    await once_it_works(lambda: site.provision(PLAN, replicas=3, ack_wait=2, update=True))
                await settling
    finally:
        if killed:
            victim.restart()  # from this thread: it would die with another
    assert killed
    assert not again


async def settled(site: NatsSite, ended: set[bytes], payloads: Iterable[bytes]) -> bool:
    """Each has an outcome, and nothing is left in the stream."""
    try:
        return ended >= set(payloads) and not await site.stored(site.names.stream)
    except BrokerError:
        return False


async def test_without_a_majority_nothing_is_confirmed_and_all_goes_on_after_it(
    cluster: NatsCluster, replicated: NatsSite
) -> None:
    site = replicated
    await site.publish(b"1", b"2")
    consumer, patient = site.consumer(timing=TIMING), site.consumer(timing=PATIENT)
    # A pull on servers that have only just elected a leader may bring nothing, or one of the two.
    held: list[Delivery] = []
    while len(held) < 2:
        held += (await receive(patient)).deliveries
    one, two = held
    assert await settle(patient, [one], Action.COMMIT) == [Outcome.COMMITTED]
    down = cluster.nodes[1:]
    try:
        for node in down:
            node.kill()
        assert await settle(consumer, [two], Action.COMMIT) != [Outcome.COMMITTED]
        publisher = site.nats(dataclasses.replace(TIMING, command_timeout=1)).publisher()
        with pytest.raises(BrokerError):
            await publisher.publish_many("q", [b"3"])
        await publisher.close()
    finally:
        for node in down:
            node.restart()

    await once_it_works(lambda: site.publish(b"4"))
    seen: set[bytes] = set()
    while b"4" not in seen:
        await once_it_works(lambda: _receive_into(seen, consumer))
    assert b"1" not in seen


async def _receive_into(seen: set[bytes], consumer: Consumer) -> None:
    seen.update(each.payload for each in (await consumer.receive(10)).deliveries)


async def test_a_leader_that_is_cut_off_from_the_others_confirms_nothing_that_is_lost(
    cluster: NatsCluster, replicated: NatsSite
) -> None:
    """Its connections stay open, and it goes on to let clients in and to call itself the leader."""
    site = replicated
    await site.publish(*(b"%d" % n for n in range(300)))
    name = await leader_of(site)
    cut_off = cluster.node(name)
    others = [node for node in cluster.nodes if node is not cut_off]
    # Everybody's list of servers begins with the one that is cut off.
    url = "nats://" + ",".join(f"127.0.0.1:{node.port}" for node in (cut_off, *others))
    timing = dataclasses.replace(TIMING, command_timeout=1)
    consumer, renewer = site.consumer(timing=timing, url=url), site.renewer(timing=timing, url=url)
    committed: set[bytes] = set()
    #: Their acknowledgement may have counted: then they do not come again.
    unknown: set[bytes] = set()
    again: set[bytes] = set()

    def note(settlement: Settlement, outcome: Outcome, _: str) -> None:
        (committed if outcome is Outcome.COMMITTED else unknown).add(settlement.delivery.payload)

    async def work_until(done: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await done():
                try:
                    deliveries = (await consumer.receive(20)).deliveries
                    await renewer.extend(deliveries)
                except BrokerError:
                    continue
                again.update({one.payload for one in deliveries} & committed)
                await consumer.settle([Settlement(one, Action.COMMIT) for one in deliveries], note)

    async def a_third() -> bool:
        return len(committed) + len(unknown) >= 100

    async def meanwhile() -> bool:
        return b'"meanwhile"' in committed | unknown

    await work_until(a_third)
    await once_it_works(lambda: site.provision(PLAN, replicas=3, ack_wait=2, update=True))
    cluster.routes.isolate(name)
    try:
        alone = site.nats(timing, f"nats://127.0.0.1:{cut_off.port}").publisher()
        with pytest.raises(BrokerError):
            await alone.publish_many("q", [b'"alone"'])
        await alone.close()
        publisher = site.nats(timing, url).publisher()
        await once_it_works(lambda: publisher.publish_many("q", [b'"meanwhile"']))
        await publisher.close()
        await work_until(meanwhile)
    finally:
        cluster.routes.heal()
    await once_it_works(lambda: site.publish(b'"after"'))
    wanted = {b"%d" % n for n in range(300)} | {b'"meanwhile"', b'"after"'}
    await work_until(lambda: settled(site, committed | unknown, wanted))
    assert not again
