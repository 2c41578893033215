"""What workers say on /metrics, asked over HTTP: pairs of both ends of a window, and who is left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import aiohttp
import pytest
from aiohttp import web

from queueworker_operator.api.gates import AnalysisStatus, BooksStatus, Counts
from queueworker_operator.api.types import QueueWorkerStatus, RolloutStatus
from queueworker_operator.observe import samples as samples_module
from queueworker_operator.observe.samples import AT_MOST, NotAWorkerError, WorkerSamples, read_sample
from queueworker_operator.plan.facts import Unknown
from queueworker_operator.plan.samples import NOT_SAMPLED, Samples
from tests.operator.resources import START, after
from worker_runtime.fleet import Fleet
from worker_runtime.metrics import registry_of, render
from worker_runtime.state import QueueState


class Clock:
    def __init__(self) -> None:
        self.now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def to(self, seconds: float) -> None:
        self.now = after(seconds)


def fleet_text(settled: int, took: float = 0.02) -> str:
    """What a real worker that settled so many would say."""
    state = QueueState("work", "work", 1, 1, 60.0)
    state.committed = settled
    for _ in range(settled):
        state.durations.observe(took)
        state.latencies.observe(3.0)
    fleet = Fleet("v1-p8", 1, 60.0)
    fleet.started(0, 1)
    report = {"queues": {"work": state.report()}, "cpu_seconds": 1.5, "problem": "", "receiving": True}
    fleet.reported(0, report)
    return render(registry_of(fleet)).decode()


class Workers:
    """Pods that answer."""

    def __init__(self) -> None:
        self.settled: dict[str, int] = {}
        self.silent: set[str] = set()
        self.restarted: set[str] = set()
        self.asked: list[str] = []
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.asked.append(name)
        if name in self.silent:
            await asyncio.sleep(600)
        text = fleet_text(self.settled.get(name, 0))
        if name in self.restarted:
            text = text.replace("\nprocess_start_time_seconds ", "\nprocess_start_time_seconds 1")
        return web.Response(text=text)

    def urls(self, *names: str) -> dict[str, str]:
        return {name: f"http://127.0.0.1:{self.port}/{name}/metrics" for name in names}


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    app = web.Application()
    app.add_routes([web.get("/{name}/metrics", answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    workers = Workers()
    async with answering(workers.answer) as port:
        workers.port = port
        yield workers


@pytest.fixture
async def clock_and_samples(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Clock, WorkerSamples]]:
    # A pass has half a second for those who answer; on a busy machine that may be too little.
    monkeypatch.setattr(samples_module, "PATIENCE", 60.0)
    clock = Clock()
    samples = WorkerSamples(clock)
    yield clock, samples
    await samples.close()


def measuring(since: float | None) -> QueueWorkerStatus:
    """A status whose analysis measures since then, or has not begun to."""
    books = BooksStatus(at=START, canary=Counts(), stable=Counts())
    measured = None if since is None else books.model_copy(update={"at": after(since)})
    analysis = AnalysisStatus(revision="b", settings="1", began=books, began_at=START, measured=measured)
    return QueueWorkerStatus(rollout=RolloutStatus(target="b", analysis=analysis))


Both = tuple[Clock, WorkerSamples]


async def test_the_difference_between_both_ends(workers: Workers, clock_and_samples: Both) -> None:
    clock, samples = clock_and_samples
    places = {"a": workers.urls("a1", "a2"), "b": workers.urls("b1")}
    workers.settled = {"a1": 10, "a2": 20, "b1": 5}
    assert await samples.latest("q", measuring(None), "work", places) is NOT_SAMPLED
    assert workers.asked == []
    await samples.latest("q", measuring(0), "work", places)
    workers.settled = {"a1": 110, "a2": 220, "b1": 55}
    clock.to(60)
    found = await samples.latest("q", measuring(0), "work", places)
    assert isinstance(found, Samples)
    assert found.window == START
    a, b = found.of("a", clock.now), found.of("b", clock.now)
    assert (a.workers, a.settled, a.seconds, a.durations[-1][1]) == (2, 300, 120.0, 300)
    assert (b.workers, b.settled, b.latencies[-1][1]) == (1, 50, 50)
    assert found.of("nobody", clock.now).workers == 0

    clock.to(80)
    later = await samples.latest("q", measuring(70), "work", places)
    assert isinstance(later, Samples)
    assert later.of("a", clock.now).settled == 0, "another window begins with itself"


async def test_who_was_restarted_or_came_later_does_not_count(
    workers: Workers, clock_and_samples: Both
) -> None:
    clock, samples = clock_and_samples
    await samples.latest("q", measuring(0), "work", {"a": workers.urls("a1", "a2")})
    workers.restarted = {"a1"}
    workers.settled = {"a2": 7, "a3": 100}
    clock.to(60)
    found = await samples.latest("q", measuring(0), "work", {"a": workers.urls("a1", "a2", "a3")})
    assert isinstance(found, Samples)
    assert (found.of("a", clock.now).workers, found.of("a", clock.now).settled) == (1, 7)


async def test_one_that_does_not_answer_delays_nobody(
    workers: Workers, clock_and_samples: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, samples = clock_and_samples
    monkeypatch.setattr(samples_module, "PATIENCE", 0.5)
    monkeypatch.setattr(samples_module, "_ANSWER", aiohttp.ClientTimeout(total=600))
    workers.silent = {"a1"}
    places = {"a": workers.urls("a1", "a2")}
    async with asyncio.timeout(60):  # the one that is silent is silent for longer
        found = await samples.latest("q", measuring(0), "work", places)
        clock.to(1)
        while isinstance(found, Unknown):  # also the other one may take more than a moment
            found = await samples.latest("q", measuring(0), "work", places)
    assert isinstance(found, Samples)
    assert found.of("a", clock.now).workers == 1


async def test_what_comes_in_two_pieces_is_read_whole(
    clock_and_samples: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, samples = clock_and_samples
    monkeypatch.setattr(samples_module, "PATIENCE", 0.5)
    raw, rest = fleet_text(7).encode(), asyncio.Event()
    asked = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        pieces = web.StreamResponse()
        await pieces.prepare(request)
        await pieces.write(raw[:100])
        await rest.wait()
        await pieces.write(raw[100:])
        return pieces

    async with answering(answer) as port, asyncio.timeout(60):
        places = {"a": {"a1": f"http://127.0.0.1:{port}/a1/metrics"}}
        found = await samples.latest("q", measuring(0), "work", places)
        assert isinstance(found, Unknown), "half an answer says nothing yet"
        rest.set()
        while isinstance(found, Unknown) and "none has answered yet" in found.reason:
            found = await samples.latest("q", measuring(0), "work", places)
    assert isinstance(found, Samples)
    assert asked == 1


async def test_nobody_that_answers_is_unknown_and_old_answers_are_nothing(
    workers: Workers, clock_and_samples: Both
) -> None:
    clock, samples = clock_and_samples
    nowhere = {"a": {"a1": "http://127.0.0.1:1/metrics"}}
    found = await samples.latest("q", measuring(0), "work", nowhere)
    assert isinstance(found, Unknown)
    assert "a1" in found.reason
    places = {"a": workers.urls("a1")}
    clock.to(3)
    assert isinstance(await samples.latest("q", measuring(0), "work", places), Samples)
    clock.to(30)
    assert isinstance(await samples.latest("q", measuring(0), "work", nowhere), Unknown)


async def test_a_crowd_is_asked_in_part_and_always_the_same(
    workers: Workers, clock_and_samples: Both
) -> None:
    clock, samples = clock_and_samples
    crowd = [f"a{n:02}" for n in range(10, 30)]
    await samples.latest("q", measuring(0), "work", {"a": workers.urls(*crowd[5:])})
    first = set(workers.asked)
    assert len(first) == AT_MOST
    workers.asked.clear()
    clock.to(5)
    await samples.latest("q", measuring(0), "work", {"a": workers.urls(*crowd)})
    assert set(workers.asked) == first


def test_what_is_no_worker_is_named() -> None:
    with pytest.raises(NotAWorkerError, match="queueworker_cpu_seconds_total"):
        read_sample("# TYPE something gauge\nsomething 1\n", "work", START)
    with pytest.raises(NotAWorkerError, match="queue other"):
        read_sample(fleet_text(1), "other", START)
