"""The operator dies between any two of its writes: every story reaches its end, and nothing of it twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from e2e.fixtures import Kubectl, wait_until
from queueworker_operator.api.names import LABEL_WORKER
from tests.cluster.call_proxy import CallProxy
from tests.cluster.older import older_worker
from tests.cluster.operators import OperatorProcess
from tests.cluster.short_lives import Rule, ShortLives, Write, at_every_write, broker_proxy, never
from tests.cluster.story import (
    LONG,
    NAME,
    SOON,
    Body,
    Story,
    event_payloads,
    queueworker,
    with_version,
)

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(900, func_only=True)]

BROKER_SECRET = "broker-url"
#: A life of the operator takes some seconds, and there are dozens in a change.
THROUGH_DEATHS = 300.0
ONE: Body = {"setCanaryScale": {"replicas": 1}}
KINDS = ("rolling", "canary")


@pytest.fixture
def short_lives(
    rested: None, kubectl: Kubectl, story: Story, namespace: str, tmp_path: Path
) -> Iterator[ShortLives]:
    """An operator that may be killed at any of its writes, behind proxies for its API server and its broker.
    The broker is there, and the Secret BROKER_SECRET has its URL."""
    url = urlsplit(story.given_broker())
    story.given_secret(BROKER_SECRET, url=story.url)
    assert url.hostname is not None
    assert url.port is not None
    with CallProxy(kubectl, tmp_path / "proxy") as api, broker_proxy(url.hostname, url.port) as broker:
        # Only the operator goes that way: its workers have the true URL.
        api.broker_url = broker.url
        operator = OperatorProcess.of(api.kubeconfig, namespace, tmp_path / "operator.log")
        lives = ShortLives(operator, api, broker)
        operator.start()
        try:
            yield lives
        finally:
            lives.from_now_on(never)
            operator.stop()
            print(f"{len(lives.deaths)} deaths: {', '.join(lives.deaths)}")


#: One worker, whose broker is known by a Secret only.
SPEC: Body = {
    "broker": {"redis": {"secretRef": {"name": BROKER_SECRET}}},
    "replicas": 1,
    "shutdownSeconds": 5,
    "rollback": {"quietSeconds": 3},
}


def in_steps(resource: Body, *steps: Body) -> Body:
    spec = resource["spec"] | {"rollout": {"strategy": "Canary", "steps": [ONE, *steps]}}
    return resource | {"spec": spec}


def told_once(story: Story) -> Counter[str]:
    """Reasons of all events, none of which was told twice. (How many workers run is told as of then.)"""
    items = story.kubectl.json("get", "events", "--field-selector", f"involvedObject.name={NAME}")["items"]
    words = Counter(
        (one["involvedObject"]["uid"], one["reason"], one["message"].partition(" is over")[0])
        for one in items
    )
    twice = {one: number for one, number in words.items() if number > 1}
    assert not twice, twice
    return Counter(item["reason"] for item in items)


def then_nothing_is_left(story: Story) -> None:
    story.then_gone(seconds=THROUGH_DEATHS)
    for kind in ("deployments", "controllerrevisions", "pods"):

        def gone(kind: str = kind) -> bool:
            return not story.kubectl.json("get", kind, "-l", f"{LABEL_WORKER}={NAME}")["items"]

        wait_until(gone, f"no {kind} are left", SOON)
    reading = story.reading()
    assert not reading.fences
    assert reading.private == 0


def test_a_rollout_a_canary_and_a_deletion_with_a_death_at_every_write(
    short_lives: ShortLives, story: Story
) -> None:
    short_lives.from_now_on(at_every_write)
    first = queueworker(**SPEC)
    stable = [story.given_ready(first, THROUGH_DEATHS)]
    second = with_version(first, "v2")
    third = with_version(in_steps(first, {"setPrefetch": 20}, {"pause": {"durationSeconds": 1}}), "v3")

    with story.publishing(event_payloads(600), pause=1.0):
        for changed in (second, third):
            story.apply(changed)
            stable.append(story.then_serves(changed, THROUGH_DEATHS))
            assert len(story.deployments()) == 1

    story.then_committed(600)
    assert set(story.handled().values()) == {1}
    assert short_lives.stable == stable, "one after the other, and none of them twice"
    told = told_once(story)
    # A change that goes on while nobody looks is not told of afterwards: only its end.
    assert told["Promoted"] == 3, told

    story.kubectl("delete", "queueworker", NAME, "--wait=false")
    then_nothing_is_left(story)
    told = told_once(story)
    assert (told["DrainStarted"], told["DrainCompleted"]) == (1, 1), told
    assert len(short_lives.deaths) >= 20, short_lives.deaths


def sent_back(short_lives: ShortLives, story: Story, version: str, dies: Rule) -> None:
    """A canary beside older workers has taken work and is aborted; `dies` holds from the request on."""
    canary = with_version(in_steps(queueworker(**SPEC), {"setPrefetch": 20}, {"pause": {}}), version)
    story.apply(canary)
    wait_until(lambda: story.stage() == "Paused", "the canary serves", LONG)
    wait_until(lambda: story.by_version().get(version, 0) >= 10, "it has taken work", SOON)
    short_lives.from_now_on(dies)
    story.apply(canary | {"spec": canary["spec"] | {"request": {"id": version, "action": "Abort"}}})
    story.then_condition("Ready", "False", "RolloutAborted", THROUGH_DEATHS)
    wait_until(lambda: story.stage() == "Idle", "the canary is gone", THROUGH_DEATHS)
    assert len(story.deployments()) == 1


def then_handled_once(story: Story, count: int) -> None:
    """Older workers keep no books of what they have committed."""
    wait_until(lambda: len(story.handled()) == count, "all are handled", SOON)
    wait_until(lambda: story.reading().processing == 0, "all are committed", SOON)
    assert set(story.handled().values()) == {1}
    reading = story.reading()
    assert reading.private == reading.ready == reading.failed == reading.dead == reading.poison == 0, reading


def test_the_way_back_to_a_legacy_revision_with_a_death_at_every_write(
    short_lives: ShortLives, story: Story
) -> None:
    stable = story.given_ready(older_worker(story, **SPEC))

    with story.publishing(event_payloads(400), pause=1.0):
        sent_back(short_lives, story, "v2", at_every_write)

    then_handled_once(story, 400)
    assert short_lives.stable == [stable]
    told = told_once(story)
    assert told["RolledBack"] == 1, told
    assert any("HSET" in death for death in short_lives.deaths), short_lives.deaths


def at_write(number: int, done: bool) -> Rule:
    """Only the first time: who died before the write is followed by one that comes to the same."""
    died = False

    def dies(write: Write) -> bool:
        nonlocal died
        dying = not died and (write.number, write.done) == (number, done)
        died = died or dying
        return dying

    return dies


#: The other side has not heard of the write at which the operator dies, or has done it.
UNHEARD_OR_DONE = pytest.mark.parametrize("done", [False, True], ids=["unheard", "done"])


@UNHEARD_OR_DONE
@pytest.mark.timeout(2400, func_only=True)
@pytest.mark.parametrize("steps", [(), ({"setPrefetch": 20}, {"pause": {"durationSeconds": 1}})], ids=KINDS)
def test_a_change_with_one_death_at_each_of_its_writes(
    short_lives: ShortLives, story: Story, steps: tuple[Body, ...], done: bool
) -> None:
    resource = queueworker(**SPEC)
    story.given_ready(resource)
    resource = in_steps(resource, *steps) if steps else resource
    for nth in range(1, 100):
        short_lives.from_now_on(at_write(nth, done))
        changed = with_version(resource, f"{done}-{nth}")
        with story.publishing(event_payloads(50, f"{nth}-")):
            story.apply(changed)
            story.then_serves(changed)
        short_lives.from_now_on(never)
        story.then_committed(50 * nth)
        assert set(story.handled().values()) == {1}
        assert len(story.deployments()) == 1
        assert told_once(story)["Promoted"] == 1 + nth, short_lives.deaths
        if len(short_lives.deaths) < nth:
            break
    assert len(short_lives.deaths) == nth - 1 >= 8, short_lives.deaths


@UNHEARD_OR_DONE
def test_a_deletion_with_one_death_at_each_of_its_writes(
    short_lives: ShortLives, story: Story, done: bool
) -> None:
    resource = queueworker(**SPEC)
    for nth in range(1, 100):
        story.given_ready(resource)
        short_lives.from_now_on(at_write(nth, done))
        story.publish(event_payloads(20, f"{nth}-"))
        story.kubectl("delete", "queueworker", NAME, "--wait=false")
        then_nothing_is_left(story)
        short_lives.from_now_on(never)
        assert told_once(story)["DrainCompleted"] == nth, short_lives.deaths
        if len(short_lives.deaths) < nth:
            break
    assert len(short_lives.deaths) == nth - 1 >= 3, short_lives.deaths


@UNHEARD_OR_DONE
@pytest.mark.timeout(2400, func_only=True)
def test_the_way_back_to_a_legacy_revision_with_one_death_at_each_of_its_writes(
    short_lives: ShortLives, story: Story, done: bool
) -> None:
    stable = story.given_ready(older_worker(story, **SPEC))
    for nth in range(1, 100):
        with story.publishing(event_payloads(200, f"{nth}-"), pause=0.5):
            sent_back(short_lives, story, f"{nth}", at_write(nth, done))
        short_lives.from_now_on(never)
        then_handled_once(story, 200 * nth)
        assert short_lives.stable == [stable]
        assert told_once(story)["RolledBack"] == nth, short_lives.deaths
        if len(short_lives.deaths) < nth:
            break
    assert len(short_lives.deaths) == nth - 1 >= 6, short_lives.deaths
