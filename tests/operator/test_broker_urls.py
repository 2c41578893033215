"""A URL that names another kind of broker than the resource is told without asking anybody."""

from __future__ import annotations

import pytest

from queueworker_operator.api.parse import parse
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.observe.brokers import observe_broker
from queueworker_operator.plan.facts import BrokerVerdict
from tests.operator.resources import START, body


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_a_nats_url_under_redis_is_refused(scheme: str) -> None:
    resource = parse(body())
    assert isinstance(resource, QueueWorker)
    check = await observe_broker(f"{scheme}://user:secret@nats:4222", resource.spec, START)
    assert check.verdict is BrokerVerdict.INVALID_URL
    assert f"begins with {scheme}://: write redis://" in check.message
    assert "secret" not in check.message


@pytest.mark.parametrize("scheme", ["redis", "rediss+sentinel", "unix"])
async def test_another_url_under_nats_is_refused(scheme: str) -> None:
    resource = parse(body(spec__broker={"nats": {"secretRef": {"name": "mails-nats"}}}))
    assert isinstance(resource, QueueWorker)
    check = await observe_broker(f"{scheme}://user:secret@nats:4222", resource.spec, START)
    assert check.verdict is BrokerVerdict.INVALID_URL
    assert f"begins with {scheme}://: write nats://" in check.message
    assert "secret" not in check.message
