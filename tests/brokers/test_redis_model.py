"""A stateful model: random operations of several workers against a real Redis, some of whose answers are
lost. After every step no message is missing, nothing is committed twice, and the books balance.

The model knows each message by the number in its payload and tracks what the workers were told. What it
cannot know after a lost answer it leaves open: what has to hold on the server holds all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.brokers.fault_proxy import Fault, FaultProxy, Seen
from tests.brokers.site import CALM, HASTY, Site, receive, settle
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, BrokerUnavailableError, Consumer, Delivery, Outcome, Renewer

QUICK = dataclasses.replace(CALM, block=0.001)
WORKERS = {"w1": "r1", "w2": "r1", "w3": "r2"}
EVERY = "*"
Result = TypeVar("Result")

workers = st.sampled_from(sorted(WORKERS))
#: As often as they are listed.
operations = st.sampled_from(
    ["receive"] * 5
    + ["settle"] * 5
    + ["publish", "extend", "expire", "expire", "promote", "promote"]
    + ["run_out", "recover_alive", "fence", "retry_failed", "flush_scripts"]
)
kinds = st.sampled_from([*Action, Action.COMMIT, Action.COMMIT])
#: What is drawn must not depend on what a real server did: Hypothesis takes the same draws for the same run.
picks = st.integers(0, 59)
losses = st.sampled_from([Fault.PASS, Fault.PASS, Fault.PASS, Fault.CUT_BEFORE, Fault.CUT_AFTER])


class Model(RuleBasedStateMachine):
    """One loop and one proxy for each run; `server` is set by the test."""

    server: EmbeddedRedis

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.fault = Fault.PASS
        self.published = 0
        #: number -> how often a worker was told that its commit counted.
        self.commits: Counter[int] = Counter()
        self.held: dict[str, list[Delivery]] = {name: [] for name in WORKERS}
        #: Deliveries that may not be settled any more, by identity: another delivery of the message followed.
        self.superseded: dict[int, Delivery] = {}
        self.fenced: set[str] = set()
        self.say(self.set_up())

    def say(self, asked: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(asked)

    async def set_up(self) -> None:
        self.proxy = FaultProxy(self.server.port, before=self.lose)
        await self.proxy.__aenter__()
        client = redis.Redis(port=self.server.port)
        self.site = Site(self.server.url, client, f"m{secrets.token_hex(4)}")
        self.consumers: dict[str, Consumer] = {
            name: self.site.consumer(name, revision, QUICK, self.proxy.url)
            for name, revision in WORKERS.items()
        }
        self.renewers: dict[str, Renewer] = {
            name: self.site.renewer(name, revision, QUICK, self.proxy.url, max_takeovers=0)
            for name, revision in WORKERS.items()
        }
        self.fences = self.site.fences()
        self.maintenance = self.site.maintenance()
        self.inspector = self.site.inspector()
        self.recoverer = self.site.renewer("recoverer", timing=HASTY, max_takeovers=0)

    def teardown(self) -> None:
        async def end() -> None:
            self.fault = Fault.PASS
            for key in self.site.client.scan_iter(f"{self.site.namespace}.*"):
                self.site.client.delete(key)
            await self.site.close()
            await self.proxy.__aexit__()

        self.say(end())
        self.runner.close()

    def lose(self, seen: Seen) -> Fault:
        """The next transition's answer, or the transition itself."""
        fault, self.fault = self.fault, Fault.PASS
        if seen.name in ("HELLO", "SELECT", "SCRIPT", "CLIENT"):
            self.fault = fault
            return Fault.PASS
        return fault

    # what happens

    @rule(operation=operations, data=st.data())
    def step(self, operation: str, data: st.DataObject) -> None:
        """One rule for all, since Hypothesis leaves rules out at random, and most runs would do nothing."""
        getattr(self, operation)(data)

    @initialize(count=st.integers(4, 10))
    def begin(self, count: int) -> None:
        self.publish_some(count)

    def publish(self, data: st.DataObject) -> None:
        self.publish_some(data.draw(st.integers(1, 6)))

    def publish_some(self, count: int) -> None:
        numbers = range(self.published, self.published + count)
        self.say(self.site.publish(*[b"%d" % number for number in numbers]))
        self.published += count

    def receive(self, data: st.DataObject) -> None:
        worker, limit = data.draw(workers), data.draw(st.integers(1, 6))
        self.fault = data.draw(losses)
        with contextlib.suppress(BrokerUnavailableError):
            received = self.say(receive(self.consumers[worker], limit))
            fenced = bool(self.fenced & {WORKERS[worker], EVERY})
            assert len(received.deliveries) <= (0 if fenced else limit)
            assert not (received.fenced and not fenced), "told of a fence that is not there"
            for delivery in received.deliveries:
                self.others_lose(delivery)
            self.held[worker] += received.deliveries
        self.fault = Fault.PASS

    def others_lose(self, delivery: Delivery) -> None:
        for held in self.held.values():
            self.superseded.update({id(one): one for one in held if one.pid == delivery.pid})

    def settle(self, data: st.DataObject) -> None:
        chosen, actions = data.draw(picks), data.draw(st.lists(kinds, min_size=4, max_size=4))
        indexes, fault = data.draw(st.sets(picks, min_size=1, max_size=4)), data.draw(losses)
        holding = [name for name, held in self.held.items() if held]
        if not holding:
            return
        worker = holding[chosen % len(holding)]
        held = self.held[worker]
        some = [held[index] for index in {index % len(held) for index in indexes}]
        actions = actions[: len(some)]
        self.held[worker] = [one for one in held if all(one is not other for other in some)]
        self.fault = fault
        outcomes = self.say(settle(self.consumers[worker], some, *actions))
        self.fault = Fault.PASS
        for delivery, action, outcome in zip(some, actions, outcomes, strict=True):
            if id(delivery) in self.superseded:
                assert outcome in (Outcome.SUPERSEDED, Outcome.MISSING, Outcome.UNKNOWN)
            if outcome is Outcome.COMMITTED:
                assert action is Action.COMMIT
                self.commits[int(delivery.payload)] += 1

    def extend(self, data: st.DataObject) -> None:
        worker = data.draw(workers)
        held = self.held[worker]
        fault = data.draw(losses)
        self.fault = fault if held else Fault.PASS
        lost = self.say(self.renewers[worker].extend(held)) if held else []
        self.fault = Fault.PASS
        lost_ids = {id(one) for one in lost}
        assert self.superseded.keys() & {id(one) for one in held} <= lost_ids, "renewed what others own"
        self.held[worker] = [one for one in held if id(one) not in lost_ids]

    def expire(self, data: st.DataObject) -> None:
        """Some deliveries ceased to be renewed: their liveness is over, or gone."""
        share, vanish = data.draw(st.integers(1, 3)), data.draw(st.booleans())
        client, liveness = self.site.client, self.site.keys.liveness
        for pid in client.zrange(liveness, 0, -1)[::share]:
            client.zrem(liveness, pid) if vanish else client.zadd(liveness, {pid: 1})
        self.say(self.recoverer.recover())

    def run_out(self, _: st.DataObject) -> None:
        """Reservations that nobody claimed are overdue."""
        client, registry = self.site.client, self.site.keys.reservations
        for name in client.zrange(registry, 0, -1):
            client.zadd(registry, {name: 1})
        self.say(self.recoverer.recover())

    def recover_alive(self, data: st.DataObject) -> None:
        worker = data.draw(workers)
        owned = self.say(self.inspector.read("q")).owned
        recovered = self.say(self.renewers[worker].recover())
        assert recovered.deliveries == 0
        assert self.say(self.inspector.read("q")).owned == owned

    def fence(self, data: st.DataObject) -> None:
        revision, chosen = data.draw(st.sampled_from(["r1", "r2", EVERY])), data.draw(picks)
        if self.fenced:
            revision = sorted(self.fenced)[chosen % len(self.fenced)]
            assert self.say(self.fences.unfence("q", revision)) == (revision in self.fenced)
            self.fenced.discard(revision)
        else:
            self.say(self.fences.fence("q", revision, "because"))
            self.fenced.add(revision)

    def promote(self, data: st.DataObject) -> None:
        self.say(self.maintenance.promote("q", everything=data.draw(st.booleans())))

    def retry_failed(self, data: st.DataObject) -> None:
        self.say(self.maintenance.retry("q", dead=data.draw(st.booleans())))

    def flush_scripts(self, _: st.DataObject) -> None:
        self.site.client.script_flush()

    # what holds after every step

    @invariant()
    def no_message_is_missing_and_the_books_balance(self) -> None:
        reading = self.say(self.inspector.read("q"))
        places = reading.ready + reading.private + reading.failed + reading.dead + reading.poison
        assert places + reading.success == self.published, reading
        owned: Counter[str] = Counter()
        for worker, count in reading.owners.items():
            owned[WORKERS[worker]] += count
        claimed = back = rejected = committed = 0
        for revision, row in reading.ledger.items():
            ended = row.committed + row.rejected + row.released + row.taken_over
            assert row.claimed == ended + owned[revision], (revision, row, owned)
            claimed += row.claimed
            back += row.released + row.taken_over
            committed += row.committed
            rejected += row.rejected
        assert reading.processing == reading.owned == self.counter("processing")
        assert (reading.total, reading.success) == (claimed - back, committed)
        assert rejected == self.counter("failed")
        records = self.site.client.keys(f"{self.site.namespace}.jobs.q.*")
        assert len(records) == reading.owned + reading.failed + reading.dead, "a record for each that left"

    @invariant()
    def nothing_is_committed_twice(self) -> None:
        assert all(times == 1 for times in self.commits.values()), self.commits

    def counter(self, name: str) -> int:
        return int(self.site.client.get(f"{self.site.namespace}.stats.q.{name}") or 0)


@pytest.fixture(scope="module")
def model_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


def test_random_operations_of_several_workers(model_server: EmbeddedRedis) -> None:
    Model.server = model_server
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=20,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            # The steps of a failure as they were found: to shrink them takes minutes.
            phases=[Phase.generate],
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
