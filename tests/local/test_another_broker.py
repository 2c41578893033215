"""A change of spec.broker on this machine: what served goes on with the broker that it has."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.local.running import EXPIRES_SOON, Jobs, Up, resource, running, until
from tests.local.test_canary import ONE, PAUSE, numbers
from tests.local.test_rollback import stage
from worker_runtime.brokers.redis.server import EmbeddedRedis

CANARY: dict[str, Any] = {"strategy": "Canary", "steps": [ONE, PAUSE]}
ROLLING: dict[str, Any] = {"strategy": "Rolling"}


@pytest.fixture
async def other() -> AsyncIterator[EmbeddedRedis]:
    async with EmbeddedRedis() as server:
        yield server


def on(url: str, rollout: dict[str, Any], **spec: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"replicas": 2, "env": EXPIRES_SOON, "broker": {"redis": {"url": url}}}
    return resource(rollout=rollout, **(content | spec))


async def started_anew(up: Up, end: signal.Signals) -> None:
    everybody = up.pids()
    up.signal(end)
    await up.wait()
    await until("the workers to end by themselves", lambda: not any(map(running, everybody)))
    await up.start()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
async def test_a_canary_on_another_broker_is_still_one_when_up_is_started_anew(
    own_up: Up, broker: EmbeddedRedis, other: EmbeddedRedis, jobs: Jobs, end: signal.Signals
) -> None:
    own_up.write(on(broker.url, CANARY))
    await own_up.start()
    stable = await own_up.ready(replicas=2)
    own_up.write(on(other.url, CANARY))
    await own_up.until("the pause", lambda: stage(own_up) == "Paused" and own_up.condition("Ready")["reason"])
    (canary,) = set(numbers(own_up)) - {stable}

    await started_anew(own_up, end)
    await own_up.until("both of them", lambda: numbers(own_up) == {stable: 1, canary: 1})
    assert own_up.stable() == stable
    await jobs.publish(["for-the-stable"])
    assert (await jobs.finished(1)).private == 0
    assert (await jobs.done()) == {"for-the-stable": 1}, "it consumes where it did"
    assert await own_up.stop() == 0


@pytest.mark.parametrize("rollout", [CANARY, ROLLING], ids=["Canary", "Rolling"])
async def test_an_aborted_change_to_another_broker_stays_so_when_up_is_started_anew(
    own_up: Up, broker: EmbeddedRedis, other: EmbeddedRedis, jobs: Jobs, rollout: dict[str, Any]
) -> None:
    own_up.write(on(broker.url, rollout))
    await own_up.start()
    stable = await own_up.ready(replicas=2)
    # Its workers never start, so that a change without steps lasts, too.
    broken: dict[str, Any] = {"args": ["run", "tests.local.nothing:app"]}
    own_up.write(on(other.url, rollout, container=broken))
    await own_up.until("the new one", lambda: len(own_up.of()["status"]["revisions"]) == 2)
    asked = on(other.url, rollout, container=broken, request={"id": "1", "action": "Abort"})
    own_up.write(asked)

    def is_back() -> bool:
        reason = own_up.condition("Ready")["reason"]
        return reason == "RolloutAborted" and numbers(own_up) == {stable: 2}

    await own_up.until("the abort", is_back)
    await started_anew(own_up, signal.SIGKILL)
    await own_up.until("the abort, again", is_back)
    assert own_up.stable() == stable
    await jobs.publish(["for-the-stable"])
    await jobs.finished(1)
    own_up.write(on(broker.url, rollout))
    await own_up.ready(generation=own_up.of()["spec_generation"], replicas=2)
    assert await own_up.stop() == 0


async def test_back_to_the_embedded_broker_that_is_still_there(own_up: Up, other: EmbeddedRedis) -> None:
    embedded = resource(rollout=ROLLING)
    own_up.write(embedded)
    await own_up.start()
    first = await own_up.ready()
    url = own_up.state["broker_url"]
    own_up.write(on(other.url, ROLLING))
    assert await own_up.ready(generation=2, replicas=2) != first
    own_up.write(on("", ROLLING, broker={"redis": {"secretRef": {"name": "misspelt"}}}))
    await own_up.until(
        "no empty broker", lambda: own_up.condition("BrokerReachable")["reason"] == "SecretNotFound"
    )
    assert "Secret misspelt" in own_up.condition("BrokerReachable")["message"]
    own_up.write(embedded)
    assert await own_up.ready(generation=4, replicas=1) == first
    assert own_up.state["broker_url"] == url
    assert await own_up.stop() == 0
