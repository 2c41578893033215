"""Checks of real brokers, of which one falls silent: it costs nobody else anything, and itself little."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest
import redis

from queueworker_operator.api.types import QueueWorkerSpec
from queueworker_operator.observe import checks as checks_module
from queueworker_operator.observe.access import Access
from queueworker_operator.observe.brokers import observe_broker
from queueworker_operator.observe.checks import Asker, BrokerChecks
from queueworker_operator.plan.facts import FRESH, BrokerCheck, BrokerVerdict, Unknown
from tests.operator.resources import worker
from worker_runtime.brokers.redis.server import EmbeddedRedis

SECONDS = 60.0


def now() -> datetime:
    return datetime.now(UTC)


def spec_at(url: str, queue: str = "stats-usage") -> QueueWorkerSpec:
    return worker(spec__broker__redis__url=url, spec__queue__name=queue).spec


async def _look(url: str, spec: QueueWorkerSpec, at: datetime) -> BrokerCheck:
    """As always, with less patience for a broker that is silent."""
    return await observe_broker(url, spec, at, timeout=2.5)


@pytest.fixture
async def checks() -> AsyncIterator[BrokerChecks]:
    checks = BrokerChecks(now, _look)
    yield checks
    await checks.close()


@pytest.fixture
def healthy() -> Iterator[str]:
    with EmbeddedRedis() as one:
        yield one.url


@pytest.fixture
def silent() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as one:
        one.send(signal.SIGSTOP)
        yield one
        one.send(signal.SIGCONT)


async def check(checks: BrokerChecks, url: str, queue: str = "stats-usage") -> BrokerCheck | Unknown:
    return await checks.check(Access(url), spec_at(url, queue))


async def until(checks: BrokerChecks, url: str, verdict: BrokerVerdict) -> BrokerCheck:
    """Asked again and again, as passes do."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = await check(checks, url)
            if isinstance(found, BrokerCheck) and found.verdict is verdict:
                return found
            await asyncio.sleep(0.05)


async def test_a_broker_that_answers_is_waited_for(
    checks: BrokerChecks, healthy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that is busy takes longer than the moment that a pass has.
    monkeypatch.setattr(checks_module, "PATIENCE", SECONDS)
    found = await asyncio.gather(*(check(checks, healthy, f"q{number}") for number in range(30)))
    assert {one.verdict for one in found if isinstance(one, BrokerCheck)} == {BrokerVerdict.REACHABLE}
    assert not any(isinstance(one, Unknown) for one in found)


async def test_what_is_asked_of_a_silent_one_is_answered_before_it_is(
    checks: BrokerChecks, silent: EmbeddedRedis
) -> None:
    first = await check(checks, silent.url)
    assert isinstance(first, Unknown), "nobody waits for what may never come"
    found = await until(checks, silent.url, BrokerVerdict.TIMEOUT)
    assert "did not answer within 2.5 s" in found.message
    other = await check(checks, silent.url, "another-queue")
    assert isinstance(other, BrokerCheck), "what is known of the broker is known of every queue on it"
    assert other.verdict is BrokerVerdict.TIMEOUT


async def test_a_hundred_queues_on_a_silent_one_delay_no_other(
    checks: BrokerChecks, healthy: str, silent: EmbeddedRedis
) -> None:
    waiting = [asyncio.ensure_future(check(checks, silent.url, f"q{number}")) for number in range(100)]
    await asyncio.sleep(0)
    await until(checks, healthy, BrokerVerdict.REACHABLE)
    assert not any(
        isinstance(one, BrokerCheck) and one.verdict is BrokerVerdict.REACHABLE
        for one in await asyncio.gather(*waiting)
    )


async def test_a_silent_one_is_asked_again_without_anybody_waiting_and_its_return_is_noticed(
    silent: EmbeddedRedis,
) -> None:
    looks, again = 0, asyncio.Event()

    async def look(url: str, spec: QueueWorkerSpec, at: datetime) -> BrokerCheck:
        nonlocal looks
        looks += 1
        if looks > 2:
            again.set()
        return await _look(url, spec, at)

    checks = BrokerChecks(now, look)
    try:
        first = await until(checks, silent.url, BrokerVerdict.TIMEOUT)
        await asyncio.wait_for(again.wait(), SECONDS)  # nobody asks meanwhile
        found = await check(checks, silent.url)
        assert isinstance(found, BrokerCheck)
        assert found.observed_at > first.observed_at
        assert now() - found.observed_at < FRESH
        silent.send(signal.SIGCONT)
        await until(checks, silent.url, BrokerVerdict.REACHABLE)
    finally:
        await checks.close()


class News:
    """Who was told that there is something new."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._more = asyncio.Event()

    def __call__(self, asker: Asker) -> None:
        self.told.append(asker[1])
        self._more.set()

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(SECONDS):
            while not set(names) <= set(self.told):
                self._more.clear()
                await self._more.wait()


async def ask(checks: BrokerChecks, url: str, name: str) -> BrokerVerdict | None:
    found = await checks.check(Access(url), spec_at(url, name), asker=("workers", name))
    return found.verdict if isinstance(found, BrokerCheck) else None


async def is_told(checks: BrokerChecks, url: str, name: str, verdict: BrokerVerdict) -> None:
    """Asks again until that is the answer: on a busy machine it may come after nobody waits for it."""
    async with asyncio.timeout(SECONDS):
        while await ask(checks, url, name) is not verdict:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_all_on_a_broker_are_told_when_it_falls_silent_and_when_it_is_back_and_nobody_else(
    healthy: str,
) -> None:
    news = News()
    checks = BrokerChecks(now, _look, news)
    with EmbeddedRedis() as sick:
        try:
            for name in ("a", "b"):
                await is_told(checks, sick.url, name, BrokerVerdict.REACHABLE)
            await is_told(checks, healthy, "well", BrokerVerdict.REACHABLE)
            news.told.clear()
            sick.send(signal.SIGSTOP)
            assert await ask(checks, sick.url, "c") is None, "not known yet, and not waited for"
            await news.until("a", "b", "c")
            for name in ("a", "b", "c"):
                await is_told(checks, sick.url, name, BrokerVerdict.TIMEOUT)
            news.told.clear()
            sick.send(signal.SIGCONT)
            await news.until("a", "b", "c")
            for name in ("a", "b", "c"):
                await is_told(checks, sick.url, name, BrokerVerdict.REACHABLE)
            assert "well" not in news.told
        finally:
            sick.send(signal.SIGCONT)
            await checks.close()


async def test_whoever_did_not_wait_for_an_answer_is_told_when_it_comes_if_it_is_another_one(
    healthy: str,
) -> None:
    answers, news = asyncio.Event(), News()

    async def look(url: str, spec: QueueWorkerSpec, at: datetime) -> BrokerCheck:
        await answers.wait()
        return await _look(url, spec, at)

    checks = BrokerChecks(now, look, news)
    try:
        assert await ask(checks, healthy, "a") is None
        answers.set()
        await news.until("a")
        assert await ask(checks, healthy, "a") is BrokerVerdict.REACHABLE
        assert news.told == ["a"], "who waits for an answer needs no news of it"
    finally:
        await checks.close()


async def test_a_server_that_takes_no_writes_is_reachable_and_says_so(
    checks: BrokerChecks, healthy: str
) -> None:
    client = redis.Redis.from_url(healthy)
    client.config_set("maxmemory", "500kb")
    found = await until(checks, healthy, BrokerVerdict.REACHABLE)
    assert "OOM" in found.refuses_writes
    client.config_set("maxmemory", "0")
    found = await observe_broker(healthy, spec_at(healthy), now())
    assert found.refuses_writes == ""
