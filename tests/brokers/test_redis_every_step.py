"""SIGKILL and SIGSTOP of a real worker process at every single command that it sends, from its connection to
its last settlement: others finish the work, each message is committed once, nothing is left anywhere."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.brokers.fault_proxy import Fault, FaultProxy, Seen
from tests.brokers.site import PATIENCE, Site, receive, settle
from tests.services import EmbeddedRedis
from worker_runtime.brokers.base import Action, Consumer, Outcome, Renewer
from worker_runtime.chaos.plan import Plan
from worker_runtime.chaos.record import Account, read_account
from worker_runtime.chaos.worker import number_of
from worker_runtime.chaos.workers import Nursery

_COUNT = 12
#: More commands than a worker needs for so few messages; a bound against a test that never ends.
_MOST = 200


@dataclass
class Case:
    """One worker that is caught at its n-th command, and the others that finish its work."""

    site: Site
    proxy: FaultProxy
    others: Consumer
    renewer: Renewer
    #: Committed by the others, by number.
    commits: Counter[int] = field(default_factory=Counter)
    published: int = 0
    #: Of the held command, in the proxy's log.
    number: int = 0

    async def prepare(self, n: int, fault: Fault) -> None:
        """Publish, and hold the n-th command from now on (or its answer)."""
        numbers = range(self.published, self.published + _COUNT)
        await self.site.publish(*[b'{"n":%d}' % number for number in numbers])
        self.published = numbers.stop
        self.number = number = len(self.proxy.log) + n
        self.proxy.event, self.proxy.let_go = asyncio.Event(), asyncio.Event()

        def hold(seen: Seen) -> Fault:
            return fault if seen.number == number else Fault.PASS

        self.proxy.before = hold

    async def finish(self) -> None:
        """Everything that the caught worker has is overdue; take it over and commit it."""
        client, keys = self.site.client, self.site.keys
        async with asyncio.timeout(PATIENCE):
            while (await self.site.read()).success < self.published:
                for key in (keys.liveness, keys.reservations):
                    for name in client.zrange(key, 0, -1):
                        client.zadd(key, {name: 1}, xx=True)
                await self.renewer.recover()
                reading = await self.site.read()
                if reading.ready or reading.staging:
                    deliveries = (await receive(self.others)).deliveries
                    outcomes = await settle(self.others, deliveries, Action.COMMIT)
                    assert set(outcomes) <= {Outcome.COMMITTED}
                    self.commits.update(number_of(one.payload) for one in deliveries)

    async def nothing_is_left(self) -> None:
        reading = await self.site.read()
        assert (reading.success, reading.total) == (self.published, self.published)
        places = (reading.ready, reading.private, reading.processing, len(reading.reservations))
        assert places == (0, 0, 0, 0)
        for row in reading.ledger.values():
            assert row.claimed == row.committed + row.rejected + row.released + row.taken_over


@pytest.fixture
def plan(standalone: Site, tmp_path: Path) -> Plan:
    return Plan("", standalone.namespace, str(tmp_path / "record"), str(tmp_path / "log"), "q")


def _case(site: Site, proxy: FaultProxy) -> Case:
    return Case(site, proxy, site.consumer("other", "r2"), site.renewer("other", "r2", max_takeovers=0))


def _on(plan: Plan, proxy: FaultProxy) -> Plan:
    return Plan(proxy.url, plan.namespace, plan.record, plan.log, plan.queue)


def _account(plan: Plan) -> Account:
    with plan.record_path.open() as lines:
        return read_account(lines)


def _log(plan: Plan) -> str:
    return Path(plan.log).read_text()


@pytest.mark.parametrize("fault", [Fault.HOLD_COMMAND, Fault.HOLD_REPLY], ids=["unsent", "unanswered"])
async def test_killed_at_every_command(
    fault: Fault, plan: Plan, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    """That the n-th command is not sent is what a kill after the n-th answer but one looks like."""
    wanted, caught, n = {"reserve", "claim", "settle"}, set[str](), 0
    async with FaultProxy(redis_server.port) as proxy, Nursery(_on(plan, proxy)) as nursery:
        case = _case(standalone, proxy)
        for seed in range(1, _MOST):
            n += 1
            before = case.published
            await case.prepare(n, fault)
            pid = await nursery.start("r1", f"k{seed}", seed)
            await asyncio.wait_for(proxy.event.wait(), PATIENCE)
            assert await nursery.killed(pid), _log(plan)
            caught.add(proxy.log[case.number - 1].name)
            through = (await standalone.read()).success == before + _COUNT
            await case.finish()
            await case.nothing_is_left()
            if through:
                if wanted <= caught:
                    break
                n = 0  # each worker does as its seed says: all of them had their settlements elsewhere
    assert through, "it never came to its last settlement"
    assert wanted <= caught
    assert all(times == 1 for times in (case.commits + _account(plan).commits).values())


async def test_stopped_at_every_command_while_others_do_its_work(
    plan: Plan, standalone: Site, redis_server: EmbeddedRedis
) -> None:
    """SIGSTOP, everything recovered and committed by others, the held command sent after all, SIGCONT."""
    async with FaultProxy(redis_server.port) as proxy, Nursery(_on(plan, proxy)) as nursery:
        case = _case(standalone, proxy)
        for n in range(1, _MOST):
            before = case.published
            await case.prepare(n, Fault.HOLD_COMMAND)
            pid = await nursery.start("r1", f"p{n}", n)
            await asyncio.wait_for(proxy.event.wait(), PATIENCE)
            os.kill(pid, signal.SIGSTOP)
            through = (await standalone.read()).success == before + _COUNT
            await case.finish()
            proxy.let_go.set()
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
            code = await asyncio.wait_for(nursery.ended(pid), PATIENCE)
            assert code in (0, -signal.SIGTERM), _log(plan)
            await case.finish()
            await case.nothing_is_left()
            if through:
                break
        assert through, "it never came to its last settlement"
    account = _account(plan)
    assert account.outcomes["superseded"] + account.outcomes["missing"] > 0
    assert account.outcomes["unknown"] == 0
    assert all(times == 1 for times in (case.commits + account.commits).values())
