"""The work queue: one pass per key, melted reports, backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from queueworker_operator.run.queue import Key, Later, TryAgain, WorkQueue

ONE, TWO = Key("default", "one"), Key("default", "two")
LONG = 120.0


def _never(key: Key, error: Exception, delay: float) -> None:
    raise AssertionError(f"{key} failed: {error}")


def _queue(work: Callable[[Key], Awaitable[Later | float | None]], **options: object) -> WorkQueue:
    return WorkQueue(work, options.pop("on_failure", _never), **options)  # type: ignore[arg-type]


async def _waiting(queue: WorkQueue, number: int) -> None:
    """Until so many are due and wait. Nobody tells of it, and it takes a few turns of the loop."""
    async with asyncio.timeout(LONG):
        while queue.waiting < number:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_reports_during_a_pass_melt_into_one_more() -> None:
    passes: list[Key] = []
    inside, go_on, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
    running = most = 0

    async def work(key: Key) -> float | None:
        nonlocal running, most
        passes.append(key)
        running += 1
        most = max(most, running)
        inside.set()
        await go_on.wait()
        running -= 1
        if key == TWO:
            last.set()
        elif len(passes) == 2:
            queue.add(TWO, after=0.2)  # after everything that is due now
        return None

    queue = _queue(work)
    queue.add(ONE)
    await asyncio.wait_for(inside.wait(), LONG)
    for _ in range(5):
        queue.add(ONE)
    go_on.set()
    await asyncio.wait_for(last.wait(), LONG)
    await queue.close()
    assert passes == [ONE, ONE, TWO]
    assert most == 1


async def test_a_report_brings_a_later_look_forward_and_a_later_one_does_not_push_it_back() -> None:
    seen = asyncio.Event()

    async def work(key: Key) -> float | None:
        seen.set()
        return None

    queue = _queue(work)
    queue.add(ONE, after=3600)
    queue.add(ONE)
    queue.add(ONE, after=3600)
    await asyncio.wait_for(seen.wait(), LONG)
    await queue.close()


async def test_a_key_comes_back_after_the_time_that_its_pass_asked_for() -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    done = asyncio.Event()

    async def work(key: Key) -> float | None:
        times.append(loop.time())
        if len(times) == 2:
            done.set()
            return None
        return 0.2

    queue = _queue(work)
    queue.add(ONE)
    await asyncio.wait_for(done.wait(), LONG)
    await queue.close()
    assert times[1] - times[0] >= 0.2


async def test_failures_back_off_twice_as_long_each_time_and_are_told() -> None:
    delays: list[float] = []
    told = asyncio.Event()

    def failed(key: Key, error: Exception, delay: float) -> None:
        delays.append(delay)
        if len(delays) == 4:
            told.set()

    async def work(key: Key) -> float | None:
        raise ValueError("no")

    queue = _queue(work, on_failure=failed, backoff_seconds=0.02, jitter=lambda: 1.0)
    queue.add(ONE)
    await asyncio.wait_for(told.wait(), LONG)
    await queue.close()
    assert delays[:4] == [0.02, 0.04, 0.08, 0.16]


async def test_whoever_is_asked_is_left_alone_for_as_long_as_it_says_also_by_reports() -> None:
    loop = asyncio.get_running_loop()
    tries: list[float] = []
    failed, again = asyncio.Event(), asyncio.Event()

    async def work(key: Key) -> float | None:
        tries.append(loop.time())
        if len(tries) == 1:
            raise ValueError("1.5")
        again.set()
        return None

    queue = _queue(
        work,
        on_failure=lambda *_: failed.set(),
        backoff_seconds=0.02,
        wait_of=lambda error: float(str(error)),
    )
    queue.add(ONE)
    await asyncio.wait_for(failed.wait(), LONG)
    queue.add(ONE)
    await asyncio.wait_for(again.wait(), LONG)
    await queue.close()
    assert tries[1] - tries[0] >= 1.5


async def test_a_conflict_is_tried_again_and_told_to_nobody() -> None:
    tries = 0
    done = asyncio.Event()

    async def work(key: Key) -> float | None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TryAgain
        done.set()
        return None

    queue = _queue(work, jitter=lambda: 0.0)
    queue.add(ONE)
    await asyncio.wait_for(done.wait(), LONG)
    await queue.close()


async def test_a_sick_key_is_ended_by_its_deadline_and_does_not_stop_others() -> None:
    failures: list[Exception] = []
    failed, other = asyncio.Event(), asyncio.Event()

    def told(key: Key, error: Exception, delay: float) -> None:
        failures.append(error)
        failed.set()

    async def work(key: Key) -> float | None:
        if key == ONE:
            await asyncio.Event().wait()
        other.set()
        return None

    queue = _queue(work, on_failure=told, concurrency=1, pass_seconds=0.1)
    queue.add(ONE)
    queue.add(TWO)
    await asyncio.wait_for(failed.wait(), LONG)
    await asyncio.wait_for(other.wait(), LONG)
    await queue.close()
    assert isinstance(failures[0], TimeoutError)


async def test_nothing_runs_after_close() -> None:
    running = asyncio.Event()
    ended = 0

    async def work(key: Key) -> float | None:
        nonlocal ended
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1
        return None

    queue = _queue(work)
    queue.add(ONE)
    await asyncio.wait_for(running.wait(), LONG)
    await queue.close()
    assert ended == 1
    queue.add(TWO)
    assert (queue.running, queue.waiting) == (0, 0)


async def test_what_was_reported_goes_before_what_is_patient() -> None:
    passes: list[str] = []
    inside, go_on, last = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(key: Key) -> float | None:
        passes.append(key.name)
        inside.set()
        await go_on.wait()
        if len(passes) == 5:
            last.set()
        return None

    queue = _queue(work, concurrency=1)
    queue.add(ONE)
    await asyncio.wait_for(inside.wait(), LONG)
    for name in ("p1", "p2", "p3"):
        queue.add(Key("default", name), patient=True)
    queue.add(TWO)
    await _waiting(queue, 4)
    queue.add(Key("default", "p3"))  # it was patient until now
    go_on.set()
    await asyncio.wait_for(last.wait(), LONG)
    await queue.close()
    assert passes == ["one", "two", "p3", "p1", "p2"]


async def test_a_closed_queue_leaves_nobody_waiting() -> None:
    inside = asyncio.Event()

    async def work(key: Key) -> float | None:
        inside.set()
        await asyncio.Event().wait()
        return None

    queue = _queue(work, concurrency=1)
    queue.add(ONE)
    await asyncio.wait_for(inside.wait(), LONG)
    queue.add(TWO)
    queue.add(Key("default", "p"), patient=True)
    await _waiting(queue, 2)
    await asyncio.wait_for(queue.close(), LONG)
    assert (queue.waiting, queue.running) == (0, 0)


async def test_who_was_not_looked_at_for_the_longest_time_goes_first() -> None:
    passes: list[str] = []
    inside, go_on, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
    looked = {name: asyncio.Event() for name in ("a", "b")}

    async def work(key: Key) -> float | None:
        passes.append(key.name)
        if key == ONE:
            inside.set()
            await go_on.wait()
        elif (event := looked.get(key.name)) is not None:
            event.set()
        if passes.count("b") == 2:
            last.set()
        return 3600.0

    queue = _queue(work, concurrency=1)
    for name, event in looked.items():
        queue.add(Key("default", name))
        await asyncio.wait_for(event.wait(), LONG)
    queue.add(ONE)
    await asyncio.wait_for(inside.wait(), LONG)
    # Reported again and again, such as for what its own pass wrote.
    for name in ("b", "a", "new"):
        queue.add(Key("default", name))
    await _waiting(queue, 3)
    go_on.set()
    await asyncio.wait_for(last.wait(), LONG)
    await queue.close()
    assert passes == ["a", "b", "one", "new", "a", "b"]


async def _passes_of_three(first: str, second: str, again: Callable[[Key], Later | float]) -> list[str]:
    """The order of passes where `first` is inside when `second` and ONE come, and each of the first three
    ends when the two others wait. ONE has one pass, the others two; `again` says when the second is due."""
    passes: list[str] = []
    inside, last = asyncio.Event(), asyncio.Event()

    async def work(key: Key) -> Later | float | None:
        passes.append(key.name)
        inside.set()
        if len(passes) <= 3:
            await _waiting(queue, 2)
        elif len(passes) == 5:
            last.set()
        return None if key == ONE or passes.count(key.name) == 2 else again(key)

    queue = _queue(work, concurrency=1)
    queue.add(Key("default", first))
    await asyncio.wait_for(inside.wait(), LONG)
    queue.add(Key("default", second))
    queue.add(ONE)
    await asyncio.wait_for(last.wait(), LONG)
    await queue.close()
    return passes


async def test_a_pass_says_whether_the_next_one_is_in_a_hurry() -> None:
    def again(key: Key) -> Later | float:
        return Later(0.0, patient=True) if key.name == "at-rest" else 0.0

    passes = await _passes_of_three("at-rest", "in-a-change", again)
    assert passes == ["at-rest", "in-a-change", "one", "in-a-change", "at-rest"]


async def test_who_is_patient_gets_a_turn_also_while_others_are_always_in_a_hurry() -> None:
    seen = asyncio.Event()

    async def work(key: Key) -> Later | float | None:
        if key == ONE:
            seen.set()
            return None
        await _waiting(queue, 2)
        return 0.0

    queue = _queue(work, concurrency=1)
    for name in ("a", "b", "c"):
        queue.add(Key("default", name))
    queue.add(ONE, patient=True)
    await asyncio.wait_for(seen.wait(), LONG / 4)
    await queue.close()


async def test_a_pass_that_saw_nothing_takes_no_turn_from_the_next_one() -> None:
    def again(key: Key) -> Later:
        return Later(0.0, patient=True, looked=key.name == "seen")

    passes = await _passes_of_three("seen", "unseen", again)
    assert passes == ["seen", "unseen", "one", "unseen", "seen"]
