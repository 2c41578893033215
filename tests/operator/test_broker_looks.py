"""How old a look at the broker may be: remembered for some seconds, made anew where a change rests on it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorkerSpec, RolloutStatus
from queueworker_operator.observe.access import Access
from queueworker_operator.observe.checks import BrokerChecks
from queueworker_operator.observe.priority import watches_closely
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict
from tests.operator.resources import START, after, image_revision, reachable, stable_status, wants, worker

NATS: dict[str, Any] = {"spec__broker": {"nats": {"url": "nats://nats:4222"}}}
V1 = image_revision("demo:v1", **NATS)


async def test_a_look_is_made_anew_where_it_is_asked_for_unless_the_broker_just_failed() -> None:
    resource, now, looks = worker(**NATS), START, 0
    verdict = BrokerVerdict.REACHABLE

    async def look(_: str, __: QueueWorkerSpec, when: datetime) -> BrokerCheck:
        nonlocal looks
        looks += 1
        found = reachable(resource, when)
        return BrokerCheck(verdict, "", when, found.identity)

    checks, access = BrokerChecks(lambda: now, look), Access("nats://nats:4222")
    await checks.check(access, resource.spec)
    now = after(2)
    assert (await checks.check(access, resource.spec)).observed_at == START
    assert (await checks.check(access, resource.spec, anew=True)).observed_at == now
    assert looks == 2
    verdict, now = BrokerVerdict.TIMEOUT, after(4)
    for _ in range(2):
        found = await checks.check(access, resource.spec, anew=True)
        assert isinstance(found, BrokerCheck)
        assert found.verdict is BrokerVerdict.TIMEOUT
    assert looks == 3, "a broker that does not answer is not asked by each pass"


@pytest.mark.parametrize(
    ("image", "stage", "broker", "closely"),
    [
        ("demo:v1", Stage.IDLE, NATS, False),
        ("demo:v2", Stage.IDLE, NATS, True),
        ("demo:v2", Stage.DRAINING_LEGACY, NATS, True),
        ("demo:v1", Stage.RETIRE, NATS, True),
        ("demo:v2", Stage.PROMOTING, {}, False),
    ],
    ids=["nothing to do", "a change begins", "a change waits", "on the way back", "no such subject"],
)
def test_a_change_on_nats_is_watched_closely(
    image: str, stage: Stage, broker: dict[str, Any], closely: bool
) -> None:
    status = stable_status(V1, rollout=RolloutStatus(target=V1.name, stage=stage))
    assert watches_closely(wants(image, 2, status, **broker)) is closely
