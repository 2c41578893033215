"""`kubectl queueworker --local` beside a `queueworker up`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import PATIENCE, ROOT, Jobs, Up, resource

PLUGIN = Path(sys.executable).parent / "kubectl-queueworker"


async def plugin(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        str(PLUGIN), *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_serving_worker_is_shown_with_its_processes(up: Up, jobs: Jobs) -> None:
    up.write(resource(replicas=2))
    await up.start()
    stable = await up.ready(replicas=2)

    code, shown, _ = await plugin("get", "--local", str(up.state_dir))
    assert code == 0
    assert "work  nothing to do  Serving" in shown
    assert "queue work, stage Idle" in shown
    assert f"{stable}  Stable  2/2 ready, 2 coroutines, prefetch 10" in shown
    assert all(f"pid {pid}  ready" in shown for pid in up.pids())

    for name in (["work"], []):
        code, told, _ = await plugin("why", *name, "--local", str(up.state_dir))
        assert (code, told.splitlines()[0]) == (0, "work: nothing to do (Serving)")

    page = up.state_dir / "page.html"
    code, told, _ = await plugin("report", "work", "-o", str(page), "--local", str(up.state_dir))
    assert (code, f"wrote {page}" in told) == (0, True)
    shown = page.read_text()
    assert all(text in shown for text in (stable, "nothing to do", "RolloutStarted", *map(str, up.pids())))

    code, out, _ = await plugin("get", "work", "--json", "--local", str(up.state_dir))
    (one,) = json.loads(out)
    assert code == 0
    assert [member["state"] for member in one["members"][stable]] == ["ready", "ready"]
    assert one["status"]["stable"]["revision"] == stable


async def test_a_bad_edit_is_blocked_and_says_the_way_out(up: Up, jobs: Jobs) -> None:
    up.write(resource())
    await up.start()
    await up.ready()
    up.write(resource(prefetch=0))
    await up.until("the refusal", lambda: up.condition("Stalled")["status"] == "True")

    code, told, _ = await plugin("why", "work", "--local", str(up.state_dir))
    assert code == 4
    assert told.startswith("work: blocked (InvalidSpec)")
    assert "spec.prefetch" in told
    code, out, _ = await plugin("why", "work", "--json", "--local", str(up.state_dir))
    assert (code, json.loads(out)["answer"]) == (4, "blocked")


async def test_watching_tells_each_change_until_it_is_interrupted(up: Up, jobs: Jobs) -> None:
    up.write(resource(version="v1"))
    await up.start()
    first = await up.ready()
    process = await asyncio.create_subprocess_exec(
        *(str(PLUGIN), "get", "work", "--watch", "--json", "--local", str(up.state_dir)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None

    async def one() -> Any:
        assert process.stdout is not None
        return json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE))[0]

    assert (await one())["status"]["stable"]["revision"] == first
    up.write(resource(version="v2"))
    while (seen := await one())["status"]["stable"]["revision"] == first or seen["answer"] != "settled":
        assert seen["answer"] in {"settled", "moving", "waiting"}
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_an_up_that_has_ended_is_told(number: signal.Signals, up: Up, jobs: Jobs) -> None:
    up.write(resource())
    await up.start()
    await up.ready()
    up.signal(number)
    await up.wait()

    code, told, _ = await plugin("why", "work", "--local", str(up.state_dir))
    assert code == 4
    assert told.startswith("work: blocked (NotRunning)")
    assert f"Start it again: queueworker up -f {up.file}" in told
    code, shown, _ = await plugin("get", "--local", str(up.state_dir))
    assert code == 0
    assert "NotRunning" in shown
    assert "pid" not in shown, "no process is called alive"


async def test_a_pause_is_blocked_until_somebody_ends_it(up: Up, jobs: Jobs) -> None:
    up.write(resource(version="v1"))
    await up.start()
    await up.ready()
    up.write(resource(version="v2", paused=True))
    await up.until("the pause", lambda: up.condition("Ready")["reason"] == "Paused")
    code, told, _ = await plugin("why", "work", "--local", str(up.state_dir))
    assert (code, told.splitlines()[0]) == (4, "work: blocked (Paused)")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, "start queueworker up -f FILE"),
        ("{", "cannot be read as the state of queueworker up"),
        ('{"state": "stopped", "file": "f", "resources": {"work": {}}}', "cannot be read as the state"),
        (
            '{"state": "stopped", "file": "f", "resources": {"work": {"status": {"conditions": 7}}}}',
            "status.conditions cannot be read",
        ),
        ('{"state": "stopped", "file": "f", "resources": {}}', "has no QueueWorker work; it has none"),
    ],
)
async def test_a_state_that_cannot_be_used_is_named(text: str | None, wanted: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "up.json").write_text(text)
    code, _, err = await plugin("why", "work", "--local", str(tmp_path))
    assert code == 1
    assert wanted in err
    assert str(tmp_path) in err or "status." in err


@pytest.mark.parametrize(
    ("names", "code", "wanted"),
    [((), 1, "there is no QueueWorker here"), (("mail", "work"), 2, "name one of mail, work")],
)
async def test_why_without_a_name_needs_exactly_one(
    names: tuple[str, ...], code: int, wanted: str, tmp_path: Path
) -> None:
    one = {"queue": "q", "status": {}, "spec_generation": 1, "deleting": False}
    state = {"state": "stopped", "file": "q.yaml", "resources": dict.fromkeys(names, one)}
    (tmp_path / "up.json").write_text(json.dumps(state))
    ended, _, error = await plugin("why", "--local", str(tmp_path))
    assert ended == code
    assert wanted in error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("get", "-A"), "--all-namespaces"),
        (("why", "work", "-n", "default"), "--namespace"),
        (("report", "work", "--context", "kind"), "--context"),
        (("get", "--kubeconfig", "none"), "--kubeconfig"),
    ],
)
async def test_what_is_about_a_cluster_is_refused_in_local_mode(
    arguments: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    code, _, error = await plugin(*arguments, "--local", str(tmp_path))
    assert (code, f"{named} is about a cluster" in error) == (2, True)


async def test_another_file_with_the_same_state_directory_is_told_apart(tmp_path: Path) -> None:
    ours, other = tmp_path / "workers.yaml", tmp_path / "workers.yml"
    directory = tmp_path / ".queueworker" / "workers"
    directory.mkdir(parents=True)
    (directory / "up.json").write_text(json.dumps({"state": "stopped", "file": str(ours), "resources": {}}))
    for file in (ours, other):
        file.touch()
    code, _, error = await plugin("pause", "work", "--local", str(other))
    assert (code, f"is of queueworker up -f {ours}, not of {other}" in error) == (1, True)
    code, _, error = await plugin("get", "--local", str(ours))
    assert code == 0, error


@pytest.mark.parametrize("command", ["pause", "report"])
async def test_an_empty_name_is_none(command: str, tmp_path: Path) -> None:
    code, _, error = await plugin(command, "", "--local", str(tmp_path))
    assert (code, "name a QueueWorker" in error) == (2, True)


async def test_without_a_cluster_it_says_where_it_looked(tmp_path: Path) -> None:
    nowhere = tmp_path / "nothing.yaml"
    code, _, err = await plugin("get", "--kubeconfig", str(nowhere))
    assert code == 2
    assert str(nowhere) in err
    assert "--local FILE" in err
    assert len(err.splitlines()) == 1
