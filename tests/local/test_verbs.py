"""The verbs of `kubectl queueworker --local` beside a `queueworker up`: they edit its file."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.local.running import Jobs, Up, resource, until
from tests.local.test_plugin import plugin

STEPS = {"strategy": "Canary", "steps": [{"setCanaryScale": {"replicas": 1}}, {"pause": {}}]}


async def ask(up: Up, verb: str, *options: str, name: str = "work") -> tuple[int, str, str]:
    return await plugin(verb, name, "--local", str(up.state_dir), *options)


def spec(up: Up) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(up.file.read_text())["spec"]
    return found


def write(up: Up, version: str, **changes: Any) -> str:
    """A file that a person wrote: with comments, which stay. Returns its text."""
    text = "# Mine.\n" + yaml.safe_dump(resource(version=version, **changes)).replace(
        "\nspec:\n", "\nspec: # what is wanted\n"
    )
    up.file.write_text(text)
    return text


async def canary_waits(up: Up, **changes: Any) -> tuple[str, str]:
    """A canary at its pause. Returns the text of the file and the stable revision."""
    write(up, "v1", replicas=2, rollout=STEPS, **changes)
    await up.start()
    first = await up.ready(replicas=2)
    text = write(up, "v2", replicas=2, rollout=STEPS, **changes)
    await up.until("the pause", lambda: up.condition("Ready")["reason"] == "PauseStep")
    return text, first


async def test_an_abort_leads_back_and_a_retry_and_a_skip_forward(up: Up, jobs: Jobs) -> None:
    text, first = await canary_waits(up)

    code, shown, _ = await ask(up, "abort", "--dry-run")
    assert code == 0
    assert "+  request: {id: abort-" in shown
    assert up.file.read_text() == text

    code, told, error = await ask(up, "abort", "--wait")
    assert code == 0, told + error
    assert "is aborted" in told
    assert told.splitlines()[-1].startswith("  then: done (RolloutAborted)")
    assert "  now: " in error, "what it waits for is told meanwhile"
    assert up.stable() == first
    lines = up.file.read_text().splitlines()
    new = [line for line in lines if line not in text.splitlines()]
    assert [line.split(":")[0] for line in new] == ["  request"]
    assert [line for line in lines if line not in new] == text.splitlines(), "all else is as it was"

    code, _, error = await ask(up, "abort")
    assert code == 5
    assert "no change is under way that could be aborted" in error

    code, out, _ = await ask(up, "retry", "--wait", "--json")
    answer = json.loads(out)
    assert (code, answer["reason"], answer["field"]) == (0, "PauseStep", "spec.request")
    assert "(Abort) was done" in answer["before"]

    code, told, _ = await ask(up, "skip", "--wait")
    assert (code, told.splitlines()[-1].split(":")[1].strip()) == (0, "nothing to do (Serving)")
    assert up.stable() != first
    assert [one for one in up.events() if one.startswith("Request")] == ["RequestHandled"] * 3


async def test_a_rollback_names_a_kept_revision_and_a_promotion_ends_the_steps(up: Up, jobs: Jobs) -> None:
    _, first = await canary_waits(up)
    code, told, error = await ask(up, "promote", "--wait")
    assert code == 0, told + error
    second = up.stable()
    assert second != first

    code, _, error = await ask(up, "rollback", "--to", "h1-00000000-p1")
    assert code == 5
    assert first in error, "it says which are kept"
    code, told, error = await ask(up, "rollback", "--to", first, "--wait")
    assert code == 0, told + error
    assert (up.stable(), spec(up)["request"]["revision"]) == (first, first)


async def test_pause_and_hold_are_written_and_taken_out_again(up: Up, jobs: Jobs) -> None:
    text = write(up, "v1")
    await up.start()
    await up.ready()
    code, told, _ = await ask(up, "hold", "--reason", "no changes: holidays #1", "--wait")
    assert code == 0, told
    code, told, _ = await ask(up, "pause")
    assert (code, spec(up)["paused"]) == (0, True)
    held = up.file.read_text()
    up.file.write_text(held.replace("value: v1", "value: v2"))
    await up.until("the hold", lambda: "no changes: holidays #1" in up.condition("Ready")["message"])

    code, told, _ = await ask(up, "release", "--wait")
    assert (code, up.condition("Ready")["reason"]) == (4, "Paused"), told
    code, told, _ = await ask(up, "pause")
    assert (code, "nothing to write" in told) == (0, True)
    code, told, _ = await ask(up, "resume", "--wait")
    assert code == 0, told
    assert up.condition("Ready")["status"] == "True"
    assert up.file.read_text() == text.replace("value: v1", "value: v2")


async def test_a_request_that_is_ignored_is_told_and_shown_until_the_spec_has_it_no_more(
    up: Up, jobs: Jobs
) -> None:
    up.write(resource())
    await up.start()
    await up.ready()
    up.write(resource(request={"id": "1", "action": "Abort"}))
    await up.until("the answer", lambda: up.of()["status"].get("requestIgnored"))
    for command in ("get", "why"):
        code, shown, _ = await plugin(command, "work", "--local", str(up.state_dir))
        assert code == 0
        assert "request 1 was ignored: no change is under way" in shown
    up.write(resource())
    await up.until("its end", lambda: "requestIgnored" not in up.of()["status"])


async def test_many_at_once_write_one_after_the_other(up: Up, jobs: Jobs) -> None:
    """None of them takes away what another one wrote, and the file can be read at each moment."""
    write(up, "v1")
    await up.start()
    await up.ready()
    asked = [ask(up, "hold", "--reason", "night"), ask(up, "pause"), ask(up, "pause"), ask(up, "pause")]
    codes = [code for code, _, _ in await asyncio.gather(*asked)]
    assert codes == [0, 0, 0, 0]
    assert (spec(up)["hold"], spec(up)["paused"]) == ({"reason": "night"}, True)
    assert up.file.read_text().count("paused") == 1
    assert not list(up.file.parent.glob(".workers*")), "nothing is left beside it"


async def test_the_mode_of_the_file_and_a_link_to_it_stay(up: Up, jobs: Jobs, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real.yaml"
    real.parent.mkdir()
    up.file.symlink_to(real)
    write(up, "v1")
    real.chmod(0o640)
    await up.start()
    await up.ready()
    code, told, error = await ask(up, "pause", "--wait")
    assert code == 0, told + error
    assert up.file.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert spec(up)["paused"] is True


async def test_what_cannot_be_edited_or_answered_is_left_alone(up: Up, jobs: Jobs) -> None:
    text = write(up, "v1").replace("spec: # what is wanted\n", "spec: &spec # what is wanted\n")
    text += "again: *spec\n"
    up.file.write_text(text.replace("again: *spec\n", ""))
    await up.start()
    await up.ready()
    code, _, error = await ask(up, "pause", name="nobody")
    assert (code, "it has work" in error) == (1, True)
    up.file.write_text("{")
    code, _, error = await ask(up, "pause")
    assert (code, "cannot be read as YAML" in error) == (2, True)
    up.file.write_text(text + "#" * (1 << 20))
    code, _, error = await ask(up, "pause")
    assert (code, "larger than 1 MiB" in error) == (2, True)
    up.file.write_text(text)
    code, _, error = await ask(up, "pause")
    assert code == 2
    assert "write under spec: paused: true" in error
    assert up.file.read_text() == text
    up.signal(signal.SIGINT)
    await up.wait()
    code, _, error = await ask(up, "pause")
    assert code == 5
    assert "Start it again: queueworker up" in error
    assert up.file.read_text() == text


async def test_a_wait_ends_when_its_up_dies(up: Up, jobs: Jobs) -> None:
    write(up, "v1")
    await up.start()
    await up.ready()
    up.signal(signal.SIGSTOP)  # it reads nothing of what is written from now on
    asked = asyncio.create_task(ask(up, "pause", "--wait"))
    await until("the edit", lambda: spec(up).get("paused"))
    up.signal(signal.SIGKILL)
    code, told, error = await asked
    assert code == 5, told + error
    assert "wrote spec.paused: true" in told
    assert f"Start it again: queueworker up -f {up.file}" in told.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), "--reason"),
        (("--reason", ""), "1 to 256"),
        (("--reason", "\udcff"), "not UTF-8"),
        (("--reason", "x", "--timeout", "nan"), "nan is not a number of seconds"),
        (("--reason", "x", "--timeout", "inf"), "inf is not a number of seconds"),
        (("--reason", "x", "--timeout", "-1"), "--timeout"),
        (("--reason", "x", "-n", "default"), "--namespace is about a cluster"),
    ],
)
async def test_what_means_nothing_is_refused(options: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    code, _, error = await plugin("hold", "work", "--local", str(tmp_path), *options)
    assert (code, wanted in error) == (2, True)
