"""A namespace without a hash tag on a Redis Cluster is refused by everything, before anything moves."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
import redis

from tests.replicated_cluster import ReplicatedCluster
from tests.runtime.running import environment, queueworker
from worker_runtime import App
from worker_runtime.brokers.base import UnsafePlacementError
from worker_runtime.cli.main import main

JOB = """
from worker_runtime import App
app = App.from_env()

@app.job("q")
async def job(payload: dict) -> None: ...
"""


@dataclass
class Queue:
    """Five messages in the ready list of a namespace."""

    url: str
    namespace: str
    client: Any
    before: dict[bytes, list[bytes]] = field(default_factory=dict)

    def content(self) -> dict[bytes, list[bytes]]:
        """Every key of the namespace, on whichever node, with its entries."""
        found: dict[bytes, list[bytes]] = {}
        for key in self.client.scan_iter(match=f"*{self.namespace.strip('{}')}*", count=1000):
            found[key] = self.client.lrange(key, 0, -1) if self.client.type(key) == b"list" else []
        return found


def queue_of(six: ReplicatedCluster, namespace: str) -> Iterator[Queue]:
    with redis.RedisCluster(host="127.0.0.1", port=six.primary("{any}").port) as client:
        queue = Queue(six.url, namespace, client)
        envelope = '{"pid":"p%d","queue":"q","timestamp":1,"payload":{},"attempts":0}'
        client.lpush(f"{namespace}.queue.q", *[envelope % n for n in range(5)])
        queue.before = queue.content()
        assert [len(entries) for entries in queue.before.values()] == [5]
        yield queue


@pytest.fixture
def unsafe(six: ReplicatedCluster) -> Iterator[Queue]:
    yield from queue_of(six, f"t{secrets.token_hex(4)}")


def refusal(namespace: str) -> str:
    """Two keys, their slots, and the way out."""
    name = re.escape(namespace)
    return rf"{name}\.\S+ is in slot \d+ and {name}\.\S+ in slot \d+; .*\{{{name}\}}"


#: What else each command wants. A new command has to be entered here, or refuses nothing for all we know.
COMMANDS: dict[str, tuple[str, ...]] = {
    "explain": ("q", "p0"),
    "fence": ("q", "--revision", "r1", "--reason", "test"),
    "inspect": ("q",),
    "park": ("q", "--max-attempts", "1"),
    "publish": ("q", "{}"),
    "recover": ("q",),
    "retry": ("q",),
    "run": ("jobs:app",),
    "unfence": ("q", "--revision", "r1"),
    "verify-empty": ("q",),
}
#: They have no queue, make their own namespace, or are for another broker.
OTHERS = {"chaos", "provision", "settings", "up"}


def test_every_command_is_here() -> None:
    assert set(main.list_commands(click.Context(main))) == set(COMMANDS) | OTHERS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_with_3_and_has_moved_nothing(name: str, unsafe: Queue, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOB)
    env = environment(unsafe.url, unsafe.namespace, PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}")
    ended = queueworker(name, *COMMANDS[name], env=env)
    assert ended.returncode == 3, ended.stderr
    assert re.search(refusal(unsafe.namespace), ended.stderr.replace("\\", "")), ended.stderr
    assert "Traceback" not in ended.stderr
    assert unsafe.content() == unsafe.before


def test_chaos_is_refused_too(unsafe: Queue) -> None:
    namespace = unsafe.namespace[::-1]
    env = environment(unsafe.url, "")
    ended = queueworker("chaos", "--broker", unsafe.url, "--namespace", namespace, "--kills", "1", env=env)
    assert ended.returncode == 3, ended.stderr
    assert re.search(refusal(namespace), ended.stderr)
    assert unsafe.content() == unsafe.before


@pytest.mark.parametrize(
    "publish",
    [
        lambda app: app.publish("q", {"n": 1}),
        lambda app: app.publish_many("q", [{"n": 1}, {"n": 2}]),
        lambda app: app.enqueue("q", {"n": 1}),
    ],
    ids=["publish", "publish_many", "enqueue"],
)
async def test_a_publishing_call_raises_at_once(
    publish: Callable[[App], Coroutine[Any, Any, Any]], unsafe: Queue
) -> None:
    app = App(broker=unsafe.url, namespace=unsafe.namespace)
    with pytest.raises(UnsafePlacementError, match=refusal(unsafe.namespace)):
        await publish(app)
    await app.close()
    assert unsafe.content() == unsafe.before


def test_a_hash_tag_is_the_remedy(six: ReplicatedCluster, tmp_path: Path) -> None:
    for queue in queue_of(six, f"{{t{secrets.token_hex(4)}}}"):
        env = environment(queue.url, queue.namespace)
        assert queueworker("publish", "q", "{}", env=env).returncode == 0
        assert [len(entries) for entries in queue.content().values()] == [6]
