"""What is refused at the start, and how a resource finds its broker and its secrets."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queueworker_operator.cli.up import up as up_command
from queueworker_operator.run.local_yaml import documents
from tests.local.running import Jobs, Up, resource
from tests.local.test_plugin import plugin
from worker_runtime.brokers.redis.server import EmbeddedRedis


def secret(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}


def run_here(up: Up) -> Result:
    """Run the command in this process, for what is refused before anything starts."""
    arguments = ["-f", str(up.file), "--state-dir", str(up.state_dir)]
    return CliRunner().invoke(up_command, arguments)


async def test_a_second_up_on_the_same_directory_is_refused(up: Up) -> None:
    up.write(resource())
    await up.start()
    await up.ready()
    assert up.process is not None
    second = Up(up.file.parent, *up.arguments)
    second.log = up.file.parent / "second.log"

    code, output = await second.refused()
    assert code == 1
    assert f"process {up.process.pid}" in output
    assert "--state-dir" in output
    assert await up.stop() == 0


async def test_a_second_up_of_the_same_file_on_the_same_broker_is_refused(up: Up) -> None:
    up.write(resource())
    await up.start()
    await up.ready()
    assert up.process is not None
    linked = up.file.parent / "elsewhere"
    linked.mkdir()
    (linked / "workers.yaml").symlink_to(up.file)
    second = Up(linked, *up.arguments)
    code, output = await second.refused()
    assert code == 1
    assert f"process {up.process.pid}, state in {up.state_dir}" in output
    assert "--broker embedded" in output

    third = Up(linked, "--broker", "embedded")
    third.log = linked / "third.log"
    await third.start()
    await third.ready()
    assert await third.stop() == 0, "on a broker of its own it is in nobody's way"

    up.process.kill()
    await up.process.wait()
    await second.start()
    await second.ready()
    assert await second.stop() == 0, "who was killed holds nothing"


async def test_an_edit_that_leads_to_what_another_up_runs_is_warned_of(up: Up) -> None:
    up.write(resource())
    await up.start()
    await up.ready()
    second = Up(up.file.parent)
    second.state_dir, second.log = up.file.parent / "other", up.file.parent / "second.log"
    await second.start()
    await second.ready()
    url = up.arguments[up.arguments.index("--broker") + 1]
    up.write(secret("nowhere", url=url), resource())
    assert up.process is not None
    wanted = f"process {up.process.pid}, state in {up.state_dir}"
    await second.until("the warning", lambda: wanted in second.log.read_text())
    assert await second.stop() == 0
    assert await up.stop() == 0


async def test_a_state_directory_that_was_removed_is_held_again(up: Up) -> None:
    up.write(resource())
    await up.start()
    await up.ready()
    up.state_dir.rename(up.file.parent / "away")
    await up.until("its state", lambda: (up.state_dir / "up.json").exists())
    code, told, _ = await plugin("why", "work", "--local", str(up.state_dir))
    assert (code, told.splitlines()[0]) == (0, "work: nothing to do (Serving)")
    second = Up(up.file.parent, *up.arguments)
    second.log = up.file.parent / "second.log"
    code, output = await second.refused()
    assert (code, "works with this directory" in output) == (1, True)
    assert await up.stop() == 0


def test_a_state_directory_that_cannot_be_made_is_named_with_the_way_out(up: Up) -> None:
    up.write(resource())
    up.state_dir = up.file / "below-a-file"
    result = run_here(up)
    assert result.exit_code == 1
    assert str(up.state_dir) in result.output
    assert "--state-dir" in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["workers.yaml", "empty"]),
        ("a: [b\n", ["workers.yaml", "cannot be read as YAML", "line 2"]),
        ("---\n- just a list\n", ["document 1", "expected a mapping", "just a list"]),
        ("kind: Service\nmetadata: {name: s}\n", ["holds no QueueWorker"]),
        ("apiVersion: v2\nkind: QueueWorker\nmetadata: {name: a}\n", ["queueworker.dev/v1alpha1", "'v2'"]),
        (
            "apiVersion: queueworker.dev/v1alpha1\nkind: Queueworker\n",
            ["document 1", "expected QueueWorker", "Queueworker"],
        ),
        ("kind: List\nitems: [{kind: QueueWorker}]\n", ["document 1: items", "a document of its own"]),
        ("kind: Secret\nmetadata: {name: s}\ndata: {url: '%%'}\n", ["Secret s", "data.url", "stringData"]),
        ("a: 1\nb:\n- c: {d: 1,\n  d: 2}\n", ["line 4, column 3", "'d' is there already, in line 3"]),
        ('{"a": {\n "b": 1,\n "c": 2,\n "b": 1}}', ["line 4, column 2", "'b' is there already, in line 2"]),
        ("a: 1\n---\na: &a [*a]\n", ["line 3, column 4", "alias"]),
        ("".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9 if n else 1}]\n" for n in range(9)), ["stands for more"]),
        ("a: 2026-13-45\n", ["month must be in 1..12", "put quotes around it"]),
        ("a: " + "[" * 2000, ["cannot be read as YAML"]),
        ("a: b\n" + "#" * (1 << 20), ["workers.yaml", "larger than 1 MiB"]),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, words: list[str]) -> None:
    up = Up(tmp_path)
    up.file.write_text(text)
    refused = run_here(up)
    assert refused.exit_code == 2
    assert [word for word in words if word not in refused.output] == []


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    up = Up(tmp_path)
    os.mkfifo(up.file)
    refused = run_here(up)
    assert (refused.exit_code, "no regular file" in refused.output) == (2, True)


def test_merge_keys_give_what_is_not_there_already() -> None:
    base = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: [*b, *a], y: 4}\nkind: Service\n"
    (found,) = documents(base)
    assert (found["b"], found["c"]) == ({"x": 3, "y": 2}, {"x": 3, "y": 4})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"coroutines": 5, "prefetch": 3}, ["document 2 (QueueWorker work)", "spec.prefetch", "read 3"]),
        ({"replicas": -1}, ["spec.replicas", "-1"]),
        ({"colour": "red"}, ["spec.colour", "not a field"]),
        ({"env": {"X": {"configMapKeyRef": {"name": "a", "key": "b"}}}}, ["env X", "configMapKeyRef"]),
        ({"env": {"X": {"secretKeyRef": {"name": "s", "key": "no"}}}}, ["env X", "Secret s", "no key no"]),
        ({"container": {"args": []}}, ["container worker", "neither command nor args"]),
    ],
)
def test_a_resource_that_cannot_be_used(tmp_path: Path, spec: dict[str, Any], words: list[str]) -> None:
    up = Up(tmp_path)
    up.write(secret("s", url="redis://127.0.0.1:1"), resource(**spec))
    refused = run_here(up)
    assert refused.exit_code == 2
    assert [word for word in words if word not in refused.output] == []
    assert not up.state_dir.exists(), "nothing was begun"


async def test_lines_for_machines_and_chosen_ports(own_up: Up) -> None:
    own_up.arguments = ("--json", "--admin-port-base", "21500")
    own_up.write(resource(replicas=2))
    await own_up.start()
    await own_up.ready(replicas=2)
    ports = {row["admin_port"] for row in own_up.of()["processes"]}
    assert await own_up.stop() == 0

    assert len(ports) == 2
    assert all(21500 <= port < 22500 for port in ports)
    lines = [json.loads(line) for line in own_up.output.splitlines()]
    assert {line["kind"] for line in lines} == {"state", "output"}
    assert any(line["subject"] == "work" and line["text"].startswith("Promoted: ") for line in lines)


async def test_a_broker_that_refuses(own_up: Up) -> None:
    async with EmbeddedRedis(args=("--requirepass", "right")) as server:
        own_up.write(resource(broker={"redis": {"url": f"redis://:wrong@127.0.0.1:{server.port}"}}))
        code, output = await own_up.refused()
    assert code == 3
    assert f"127.0.0.1:{server.port}" in output
    assert "wrong@" not in output
    assert "started" not in output


async def test_a_url_of_the_wrong_topology(own_up: Up) -> None:
    redis = {"url": "redis://127.0.0.1:1", "topology": "Cluster", "keyNamespace": "{utopia-queue}"}
    own_up.write(resource(broker={"redis": redis}))
    code, output = await own_up.refused()
    assert code == 3
    assert "redis+cluster://" in output


async def test_a_url_of_the_wrong_topology_in_a_secret(own_up: Up) -> None:
    """Rules see no Secret: the condition says it."""
    redis = {"secretRef": {"name": "nowhere"}, "topology": "Sentinel"}
    own_up.write(secret("nowhere", url="redis://me:secret@h:1"), resource(broker={"redis": redis}))
    code, output = await own_up.refused()
    assert code == 3
    assert "topology is Sentinel and the broker's URL begins with redis://" in output
    assert "write redis+sentinel://, or set topology to Standalone" in output
    assert "secret@" not in output


async def test_a_secret_without_the_key(own_up: Up) -> None:
    own_up.write(secret("nowhere", adress="redis://127.0.0.1:1"), resource())
    code, output = await own_up.refused()
    assert code == 2
    assert "Secret nowhere" in output
    assert "read adress" in output


async def test_broker_and_variables_come_from_secrets_of_the_file(
    own_up: Up, broker: EmbeddedRedis, jobs: Jobs
) -> None:
    encoded = base64.b64encode(broker.url.encode()).decode()
    url = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nowhere"}, "data": {"url": encoded}}
    env = {"VERSION": {"secretKeyRef": {"name": "words", "key": "version"}}}
    own_up.write(url, secret("words", version="from a secret"), resource(env=env))
    await own_up.start()
    await own_up.ready()
    await jobs.publish(["one"])
    await jobs.finished(1)

    assert own_up.state["broker_url"] == broker.url
    assert await jobs.store.hgetall("test:by-version") == {"from a secret": "1"}
    assert (own_up.state_dir / f"{own_up.of()['status']['stable']['deployment']}-0.log").exists()

    own_up.write(secret("words", version="from a secret"), resource(env=env))
    await own_up.until(
        "the condition", lambda: own_up.condition("BrokerReachable")["reason"] == "SecretNotFound"
    )
    assert len(own_up.pids()) == 1
    assert await own_up.stop() == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"resources": [1]}',
        '{"resources": {"work": {"spec_generation": 1e999, "kept": [{"revision": "a", "number": 1e999}]}}}',
    ],
    ids=["a list", "no number"],
)
async def test_a_strange_up_json_stops_nobody(up: Up, text: str) -> None:
    up.state_dir.mkdir()
    (up.state_dir / "up.json").write_text(text)
    up.write(resource())
    await up.start()
    await up.ready()
    assert "Traceback" not in up.output
    assert await up.stop() == 0
