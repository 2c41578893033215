"""An upgrade from older workers on NATS, which alone take the priority subject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.local.running import NAMESPACE, Up, resource
from tests.local.test_nats import PLAIN
from tests.nats_priority import PriorityQueue
from worker_runtime.brokers.base import Timing
from worker_runtime.brokers.nats import api
from worker_runtime.brokers.nats.address import parse_address
from worker_runtime.brokers.nats.broker import NatsBroker
from worker_runtime.brokers.nats.names import PRIORITY_DURABLE, QueueNames
from worker_runtime.brokers.nats.server import EmbeddedNats
from worker_runtime.brokers.nats.topology import Plan

NAMES = QueueNames(NAMESPACE, "work")


def older(url: str, may_take: Path) -> dict[str, Any]:
    return resource(
        broker={"nats": {"url": url}},
        protocol="Legacy",
        env={"MAY_TAKE": str(may_take)},
        container={"command": ["python", "-m", "tests.local.legacy_nats_app"], "args": []},
    )


def newer(url: str) -> dict[str, Any]:
    return resource(broker={"nats": {"url": url}}, container=PLAIN, rollback={"quietSeconds": 3})


def rollout(up: Up) -> dict[str, Any]:
    found: dict[str, Any] = up.of().get("status", {}).get("rollout", {})
    return found


async def test_the_first_worker_of_the_next_revision_starts_when_nothing_is_left(
    own_up: Up, tmp_path: Path
) -> None:
    may_take = tmp_path / "may take"
    with EmbeddedNats() as server:
        await NatsBroker(parse_address(server.url), NAMESPACE, Timing()).provision("work", Plan(ack_wait=60))
        producer = PriorityQueue(server.url, NAMES)
        own_up.write(older(server.url, may_take))
        await own_up.start()
        old = await own_up.ready()
        pids = own_up.pids()
        await producer.publish(b"{}", b"{}")
        own_up.write(newer(server.url))
        await own_up.until("the count", lambda: "2 pending" in (rollout(own_up).get("evidence") or ""))
        assert rollout(own_up)["stage"] == "DrainingLegacy"
        assert "2 pending" in own_up.condition("PriorityDrained")["message"]
        # Somebody goes on: more than there was before.
        await producer.publish(b"{}")
        await own_up.until("the event", lambda: "ProducersStillPublishing" in own_up.events())
        assert own_up.condition("Stalled")["reason"] == "ProducersStillPublishing"
        assert "publish to q.work.normal" in own_up.condition("Ready")["message"]
        assert own_up.pids() == pids, "no worker was started or stopped"
        may_take.touch()
        new = await own_up.ready(generation=2)
        assert new != old
        assert own_up.pids(revision=old) == set()
        told = [one for one in own_up.events() if one != "ProducersStillPublishing"]
        assert told[-4:] == ["LegacyDrainStarted", "LegacyDrained", "RolloutStarted", "Promoted"]
        assert await api.consumer_info(producer.link, NAMES.stream, PRIORITY_DURABLE) is not None
        await producer.close()
        assert await own_up.stop() == 0
