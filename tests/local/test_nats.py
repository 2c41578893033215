"""Resources whose broker is NATS JetStream."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.local.running import NAMESPACE, Up, is_directory, resource
from tests.local.test_start import secret
from worker_runtime.brokers.base import QueueReading
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.nats.server import EmbeddedNats

PLAIN = {"args": ["run", "tests.local.plain_jobs:app"]}
USER = 'authorization { users: [{ user: "mails", password: "s3cret" }] }'


def on_nats(**nats: Any) -> dict[str, Any]:
    return resource(broker={"nats": nats}, container=PLAIN)


def told_of(pid: int) -> bytes:
    """The command line and the environment of a process, which others may read."""
    return b"".join(Path(f"/proc/{pid}/{part}").read_bytes() for part in ("cmdline", "environ"))


async def run_jobs(url: str, number: int) -> QueueReading:
    """Publish, wait until all are settled, and give what the broker says then."""
    broker = broker_from_url(url, NAMESPACE)
    publisher, inspector = broker.publisher(), broker.inspector()
    try:
        await publisher.publish_many("work", [b'{"id":"%d"}' % index for index in range(number)])
        async with asyncio.timeout(60):
            while (reading := await inspector.read("work")).ready + reading.owned:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the event is in another process
        return reading
    finally:
        await publisher.close()
        await inspector.close()


async def test_an_embedded_broker_of_the_kind_that_the_resource_names(own_up: Up) -> None:
    own_up.write(on_nats(secretRef={"name": "nowhere"}, stream={"replicas": 3, "ackWaitSeconds": 90}))
    await own_up.start()
    await own_up.ready()
    reading = await run_jobs(own_up.state["broker_url"], 20)
    assert (reading.success, reading.dead) == (20, 0)
    assert {worker.revision for worker in reading.workers} == {own_up.stable()}
    assert own_up.condition("QueueProvisioned")["status"] == "True", "one replica has to do here"
    await own_up.until("priority", lambda: own_up.condition("PriorityDrained")["reason"] == "PriorityEmpty")
    own_up.write(on_nats(secretRef={"name": "nowhere"}, stream={"replicas": 3, "ackWaitSeconds": 120}))
    await own_up.until("the new ack wait", lambda: "ack_wait from 90 s to 120 s" in own_up.output)
    (directory,) = own_up.state["embedded_directories"]
    assert await own_up.stop() == 0
    assert not is_directory(directory)


async def test_what_is_wrong_with_the_queue_is_mended_where_the_broker_comes_from(tmp_path: Path) -> None:
    own_up = Up(tmp_path)
    own_up.write(on_nats(secretRef={"name": "none"}, stream={"ackWaitSeconds": 5}))
    code, output = await own_up.refused()
    assert code == 3
    assert (
        "QUEUEWORKER_EXPIRY_SECONDS in the env of the container to 5 or less, or spec.broker.nats." in output
    )
    assert "provision" not in output, "the server is its own, and gone by now"
    with EmbeddedNats() as server:
        given = Up(tmp_path, "--broker", server.url)
        given.log = tmp_path / "given.log"
        given.write(on_nats(secretRef={"name": "none"}, credentials={"login": {"name": "mails-nats"}}))
        code, output = await given.refused()
        assert code == 3
        assert f"`queueworker provision work --broker-url {server.url}`.\n" in output
        assert "Secret" not in output


async def test_credentials_from_secrets_of_the_file(own_up: Up, tmp_path: Path) -> None:
    with EmbeddedNats(config=USER) as server:
        mine = secret("mails-nats", username="mails", password="s3cret")
        work = on_nats(url=server.url, credentials={"login": {"name": "mails-nats"}})
        own_up.write(mine, work)
        code, output = await own_up.refused()
        assert code == 3
        (command,) = re.findall(r"`(queueworker provision [^`]+)`", output)
        for name in ("username", "password"):
            (tmp_path / name).write_text(mine["stringData"][name])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = os.environ | {"QUEUEWORKER_NATS_CREDENTIALS": str(tmp_path), "PATH": path}
        done = await asyncio.to_thread(subprocess.run, shlex.split(command), env=environ, check=False)
        assert done.returncode == 0

        await own_up.start()
        await own_up.ready()
        reading = await run_jobs(own_up.state["broker_url"], 5)
        assert reading.success == 5
        assert own_up.pids()
        assert not any(b"s3cret" in told_of(pid) for pid in own_up.pids())
        assert "s3cret" not in own_up.output
        pids = own_up.pids()
        for password, reason in (("wrong", "AuthenticationFailed"), ("s3cret", "Reachable")):
            own_up.write(secret("mails-nats", username="mails", password=password), work)

            def told(reason: str = reason) -> bool:
                return bool(own_up.condition("BrokerReachable")["reason"] == reason)

            await own_up.until(reason, told)
        assert own_up.pids() == pids, "workers read their credentials at each connection"
        own_up.write(work)
        await own_up.until(
            "the condition", lambda: own_up.condition("BrokerReachable")["reason"] == "SecretNotFound"
        )
        assert "Secret mails-nats" in own_up.condition("BrokerReachable")["message"]
        assert await own_up.stop() == 0
    assert not is_directory(str(own_up.state_dir / "credentials"))
