"""What the operator sees of a queue on JetStream, by a user who may only ask."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from queueworker_operator.api.types import QueueWorkerSpec
from queueworker_operator.observe.access import Access, opened
from queueworker_operator.observe.brokers import observe_broker
from queueworker_operator.observe.checks import BrokerChecks
from queueworker_operator.observe.provisioning import Source
from queueworker_operator.plan.facts import BrokerCheck, BrokerVerdict, PriorityWork, Unknown
from tests.brokers.nats_site import NatsSite, fresh_site
from tests.nats_priority import PriorityQueue
from tests.operator.resources import START, after, worker
from tests.services import EmbeddedNats

#: What docs/resource.md says that the operator needs.
ASK = '"$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.INFO.>"'


def granted(name: str, subjects: str, denied: str = "") -> str:
    publish = f"publish: {{ allow: [{subjects}], deny: [{denied}] }}"
    return (
        f'{{user: {name}, password: "{name}-s3cret", permissions: {{ {publish}, subscribe: ["_INBOX.>"] }}}}'
    )


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    users = [
        '{user: admin, password: "admin-s3cret"}',
        granted("asker", ASK),
        granted("half", ASK, '"$JS.API.CONSUMER.INFO.Q_Q.worker_priority"'),
        granted("blind", '"nothing"'),
    ]
    with EmbeddedNats(config=f"authorization {{ users: [{', '.join(users)}] }}") as running:
        yield running


def url_of(server: EmbeddedNats, user: str) -> str:
    return server.url.replace("//", f"//{user}:{user}-s3cret@")


@pytest.fixture
async def queue(server: EmbeddedNats) -> AsyncIterator[NatsSite]:
    site = await fresh_site(url_of(server, "admin"))
    yield site
    await site.close()


def spec_of(**nats: Any) -> QueueWorkerSpec:
    body = {"url": "nats://nats:4222", **nats}
    return worker(spec__queue__name="q", spec__broker={"nats": body}).spec


async def look(server: EmbeddedNats, user: str, now: datetime = START, **nats: Any) -> BrokerCheck:
    return await observe_broker(url_of(server, user), spec_of(**nats), now)


def login(user: str, password: str = "") -> Access:
    files = (("username", user.encode()), ("password", (password or f"{user}-s3cret").encode()))
    return Access("", files)


async def test_one_who_may_only_ask_sees_the_queue_and_can_take_nothing(
    server: EmbeddedNats, queue: NatsSite
) -> None:
    check = await look(server, "asker")
    assert (check.verdict, check.differs) == (BrokerVerdict.REACHABLE, "")
    await queue.publish(b"1")
    asker = PriorityQueue(url_of(server, "asker"), queue.names)
    for subject, body in (
        (f"$JS.API.CONSUMER.MSG.NEXT.{queue.names.stream}.worker", b'{"batch":1,"no_wait":true}'),
        (f"$JS.API.STREAM.PURGE.{queue.names.stream}", b""),
        (f"$JS.API.CONSUMER.DELETE.{queue.names.stream}.worker", b""),
        (queue.names.normal, b"{}"),
    ):
        assert (await asker.link.request(subject, body)).status == 403, subject
    await asker.close()
    assert (await queue.read()).ready == 1


async def test_the_priority_subject_is_read_without_taking_from_it(
    server: EmbeddedNats, queue: NatsSite
) -> None:
    async def seen() -> PriorityWork:
        priority = (await look(server, "asker")).priority
        assert isinstance(priority, PriorityWork), priority
        return priority

    never = await seen()
    assert (never.stored, never.consumed, never.empty) == (0, False, True)

    older = PriorityQueue(queue.url, queue.names)
    await older.publish(b"{}", b"{}", b"{}")
    unserved = await seen()
    assert (unserved.pending, unserved.stored, unserved.consumed) == (3, 3, False)

    await older.provision(ack_wait=600, max_deliver=2)
    waiting = await seen()
    assert (waiting.pending, waiting.unacknowledged, waiting.stored, waiting.stuck) == (3, 0, 3, 0)

    await older.take()
    in_work = await seen()
    assert (in_work.pending, in_work.unacknowledged, in_work.stored, in_work.stuck) == (2, 1, 3, 0)
    assert in_work.last_sequence > waiting.last_sequence
    assert in_work.last_sequence <= waiting.stream_sequence, "it was there at the look before"

    await older.settle()
    done = await seen()
    assert (done.pending, done.unacknowledged, done.stored, done.stuck) == (2, 0, 2, 0)
    assert done.ack_wait.total_seconds() == 600

    await older.exhaust()
    stuck = await seen()
    assert (stuck.pending, stuck.unacknowledged, stuck.stored, stuck.stuck) == (0, 0, 2, 2)
    assert (await queue.stored(queue.names.stream)) == 2, "looking took nothing"
    await older.close()


async def test_who_may_not_ask_learns_nothing(server: EmbeddedNats, queue: NatsSite) -> None:
    blind = await look(server, "blind")
    assert blind.verdict is BrokerVerdict.AUTHENTICATION_FAILED
    assert "describe the stream Q_Q" in blind.message
    half = await look(server, "half")
    assert half.verdict is BrokerVerdict.REACHABLE
    assert isinstance(half.priority, Unknown)
    assert "worker_priority" in half.priority.reason
    for check in (blind, half):
        assert "s3cret" not in repr(check)


def run_command_of(message: str, server: EmbeddedNats, directory: Path) -> None:
    """What the message says, to the letter."""
    (command,) = re.findall(r"`([^`]+)`", message)
    assert "QUEUEWORKER_NATS_CREDENTIALS" in message
    for name, content in login("admin").files:
        (directory / name).write_bytes(content)
    words = shlex.split(command.replace("nats://nats:4222", server.url))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"QUEUEWORKER_NATS_CREDENTIALS": str(directory), "PATH": path}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_queue_that_is_missing_is_told_with_the_command_that_makes_it(
    server: EmbeddedNats, queue: NatsSite, tmp_path: Path
) -> None:
    await queue.clear()
    nats: dict[str, Any] = {
        "queueNamespace": "shop",
        "credentials": {"login": {"name": "mails-nats"}},
        "stream": {"storage": "Memory", "ackWaitSeconds": 45, "maxDeliver": 7, "maxAckPending": 50},
    }
    check = await look(server, "asker", **nats)
    assert check.verdict is BrokerVerdict.QUEUE_NOT_PROVISIONED
    assert "has no stream Q_Q: make it with" in check.message
    run_command_of(check.message, server, tmp_path)
    made = await look(server, "asker", **nats)
    assert (made.verdict, made.differs) == (BrokerVerdict.REACHABLE, "")
    assert (await queue.consumer_info())["config"]["ack_wait"] == 45_000_000_000
    other = await look(server, "asker")
    assert other.verdict is BrokerVerdict.QUEUE_UNUSABLE
    assert "belongs to the queue '4:shop:q'" in other.message


async def test_a_queue_that_differs_is_told_with_the_command_that_changes_it(
    server: EmbeddedNats, queue: NatsSite, tmp_path: Path
) -> None:
    before = await queue.consumer_info()
    nats: dict[str, Any] = {
        "credentials": {"login": {"name": "mails-nats"}},
        "stream": {"replicas": 1, "ackWaitSeconds": 60, "maxAgeSeconds": 3600},
    }
    check = await look(server, "asker", **nats)
    assert check.verdict is BrokerVerdict.REACHABLE, "workers can use it as it is"
    assert "the stream Q_Q has max age no limit, not 3600 s" in check.differs
    assert "the consumer worker of Q_Q has ack wait 600 s, not 60 s" in check.differs
    assert "replicas" not in check.differs.partition(". ")[0]
    assert (await queue.consumer_info())["config"] == before["config"], "looking changed nothing"
    run_command_of(check.differs, server, tmp_path)
    assert (await look(server, "asker", **nats)).differs == ""


async def test_an_ack_wait_that_is_too_short_for_the_workers_of_the_template(
    server: EmbeddedNats, queue: NatsSite, tmp_path: Path
) -> None:
    await queue.provision(ack_wait=5, update=True)
    nats: dict[str, Any] = {
        "credentials": {"login": {"name": "mails-nats"}},
        "stream": {"ackWaitSeconds": 5, "replicas": 1},
    }
    short = await look(server, "asker", **nats)
    assert short.verdict is BrokerVerdict.QUEUE_UNUSABLE
    assert "QUEUEWORKER_EXPIRY_SECONDS in the env of the container to 5 or less; or" in short.message
    assert "raise spec.broker.nats.stream.ackWaitSeconds and the ack wait of the queue to 60" in short.message
    embedded = await observe_broker(
        url_of(server, "asker"), spec_of(**nats), START, source=Source(embedded=True)
    )
    assert "or spec.broker.nats.stream.ackWaitSeconds to 60 or more." in embedded.message
    assert "provision" not in embedded.message
    run_command_of(short.message, server, tmp_path)
    assert (await look(server, "asker", **nats)).verdict is BrokerVerdict.REACHABLE
    await queue.provision(ack_wait=5, update=True)
    env = [{"name": "QUEUEWORKER_EXPIRY_SECONDS", "value": "5"}]
    container = {"name": "worker", "image": "demo:v1", "env": env}
    nats = {"nats": {"url": "nats://nats:4222"}}
    quick = worker(
        spec__queue__name="q", spec__broker=nats, spec__template={"spec": {"containers": [container]}}
    )
    check = await observe_broker(url_of(server, "asker"), quick.spec, START)
    assert check.verdict is BrokerVerdict.REACHABLE, check.message


def modes_below(directory: Path) -> list[int]:
    """Who may do what with each file and directory, directories first."""
    found = sorted(directory.rglob("*"), key=lambda path: (path.is_file(), path))
    return [path.stat().st_mode & 0o777 for path in found]


async def test_credentials_are_files_only_while_they_are_used(
    server: EmbeddedNats, queue: NatsSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    now = START
    checks = BrokerChecks(lambda: now)
    spec = spec_of(credentials={"login": {"name": "mails-nats"}})

    async def checked(access: Access) -> BrokerCheck:
        nonlocal now
        now = after((now - START).total_seconds() + 60)  # nothing that was remembered counts
        found = await checks.check(Access(server.url, access.files), spec)
        assert isinstance(found, BrokerCheck)
        return found

    assert (await checked(login("asker"))).verdict is BrokerVerdict.REACHABLE
    wrong = await checked(login("asker", "wr0ng"))
    assert wrong.verdict is BrokerVerdict.AUTHENTICATION_FAILED
    bad = Access("", (*login("asker").files, ("ca.crt", b"no certificate")))
    said = {(await checked(bad)).message for _ in range(3)}
    assert (await checked(bad)).verdict is BrokerVerdict.INVALID_CREDENTIALS
    (message,) = said
    assert "(ca.crt) cannot be loaded" in message
    assert "wr0ng" not in wrong.message
    assert str(tmp_path) not in message
    assert modes_below(tmp_path) == []
    with opened(login("asker")) as place:
        assert modes_below(tmp_path) == [0o700, 0o600, 0o600]
        assert "s3cret" not in repr(place)
    assert "s3cret" not in repr(login("asker"))


async def test_the_time_without_priority_work_goes_on_from_look_to_look(
    server: EmbeddedNats, queue: NatsSite
) -> None:
    now = START
    checks = BrokerChecks(lambda: now)
    spec, access = spec_of(), Access(url_of(server, "asker"))
    older = PriorityQueue(queue.url, queue.names)
    await older.provision(ack_wait=30)

    async def empty_since(seconds: float) -> datetime | None:
        nonlocal now
        now = after(seconds)
        check = await checks.check(access, spec)
        assert isinstance(check, BrokerCheck)
        priority = check.priority
        assert isinstance(priority, PriorityWork)
        assert priority.observed_at == now
        return priority.empty_since

    assert await empty_since(0) == after(0)
    assert await empty_since(20) == after(0)
    assert await empty_since(40) == after(0)
    await older.publish(json.dumps({"pid": "p"}).encode())
    assert await empty_since(60) is None
    await older.take()
    await older.settle()
    assert await empty_since(80) == after(80)
    # It came and went between two looks: nothing is seen of it but the place in the stream.
    await older.publish(b"{}")
    await older.take()
    await older.settle()
    assert await empty_since(100) == after(100)
    await older.close()
