"""publish, inspect, settings and foreign commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.conftest import Bench
from tests.runtime.running import environment, queueworker, wait_until
from tests.services import free_port
from worker_runtime import __version__
from worker_runtime.cli.settings import as_markdown
from worker_runtime.settings import VARIABLES


def test_publish_one_and_inspect(bench: Bench) -> None:
    done = queueworker("publish", "q", '{"a": [1, "\u00e9"]}', env=bench.env)
    assert done.returncode == 0, done.stderr
    [envelope] = bench.ready()
    assert json.loads(envelope)["payload"] == {"a": [1, "\u00e9"]}
    assert json.loads(envelope)["pid"] in done.stdout

    shown = queueworker("inspect", "q", env=bench.env)
    assert shown.returncode == 0, shown.stderr
    assert "ready" in shown.stdout
    reading = json.loads(queueworker("inspect", "q", "--json", env=bench.env).stdout)
    assert (reading["queue"], reading["ready"], reading["owned"], reading["private"]) == ("q", 1, 0, 0)


def test_publish_a_file_in_order(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f'{{"n": {n}}}\n' for n in range(2500)) + "\n  \n")
    done = queueworker("publish", "q", "--file", str(file), "--json", env=bench.env)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["published"] == 2500
    assert [json.loads(envelope)["payload"]["n"] for envelope in bench.ready()] == list(range(2500))
    assert summary["first"] == json.loads(bench.ready()[0])["pid"]


def test_publish_at_a_rate_until_it_is_told_to_stop(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f'{{"n": {n}}}\n' for n in range(3)))
    command = ["queueworker", "publish", "q", "--file", str(file), "--rate", "50", "--json"]
    command[0] = str(Path(sys.executable).parent / "queueworker")
    with subprocess.Popen(command, env=bench.env, stdout=subprocess.PIPE, text=True) as running:
        try:
            wait_until(lambda: len(bench.ready()) >= 20, "more messages than the file has")
            running.send_signal(signal.SIGINT)
            told, _ = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 0
    ready = [json.loads(envelope) for envelope in bench.ready()]
    assert [one["payload"]["n"] for one in ready] == [n % 3 for n in range(len(ready))]
    summary = json.loads(told)
    assert (summary["published"], summary["last"]) == (len(ready), ready[-1]["pid"])


def test_a_rate_of_a_file_without_a_line_ends(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    done = queueworker("publish", "q", "--file", str(tmp_path / "empty.jsonl"), "--rate", "5", env=bench.env)
    assert (done.returncode, done.stdout.split(" in ")[0]) == (0, "Published 0 messages to q")


def test_a_malformed_line_is_named_and_its_batch_is_not_published(bench: Bench) -> None:
    lines = [f'{{"n": {n}}}' for n in range(1500)]
    lines[1200] = '{"n": '
    done = queueworker("publish", "q", "--file", "-", env=bench.env, text="\n".join(lines))
    assert done.returncode == 2
    assert "line 1201 is not JSON" in done.stderr
    assert "1000 messages" in done.stderr
    assert len(bench.ready()) == 1000


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish", "q", "{not json"),
        ("publish", "q"),
        ("publish", "q", ""),
        ("publish", "q", '"no utf-8: \udcff"'),
        ("publish", "q", "--file", "/does/not/exist"),
        ("publish", "q", "{}", "--rate", "5"),
        ("publish", "q", "--file", "-", "--rate", "5"),
        ("publish", "q", "--file", "README.md", "--rate", "nan"),
    ],
)
def test_bad_input_ends_with_2(bench: Bench, arguments: tuple[str, ...]) -> None:
    done = queueworker(*arguments, env=bench.env)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not bench.ready()


@pytest.mark.parametrize("queue", ["", "\udcff"])
@pytest.mark.parametrize("command", [("publish", "{}"), ("inspect",)])
def test_a_queue_without_a_usable_name_is_refused(bench: Bench, command: tuple[str, ...], queue: str) -> None:
    done = queueworker(command[0], queue, *command[1:], env=bench.env)
    assert done.returncode == 2
    assert "the queue's name" in done.stderr
    assert "Traceback" not in done.stderr
    assert not bench.client.keys(f"{bench.namespace}*")


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "q", "\udcff"),
        ("fence", "q", "--reason", "\udcff"),
        ("fence", "q", "--reason", "x", "--revision", "\udcff"),
        ("unfence", "q", "--revision", "\udcff"),
        ("inspect", "q", "--namespace", "\udcff"),
        ("run", "jobs:app", "--revision", "\udcff"),
    ],
)
def test_bytes_that_are_no_utf_8_are_bad_usage(bench: Bench, arguments: tuple[str, ...]) -> None:
    done = queueworker(*arguments, env=bench.env)
    assert done.returncode == 2
    assert "UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("localhost:6379", ("publish", "q", "{}")),
        ("redis+sentinel://h", ("inspect", "q")),
        ("nats://", ("explain", "q", "p")),
        ("redis://h:x", ("retry", "q")),
    ],
)
def test_a_url_that_cannot_be_used_is_bad_usage(command: tuple[str, ...], url: str) -> None:
    done = queueworker(*command, env=environment(url, "n"))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "broker" in done.stderr
    assert "run the command again" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify-empty", "q", "--timeout", "nan"),
        ("retry", "q", "--older-than", "nan"),
        ("park", "q", "--older-than", "inf"),
        ("inspect", "q", "--watch", "nan"),
    ],
)
def test_what_is_no_number_of_seconds_ends_with_2(arguments: tuple[str, ...]) -> None:
    # Nothing listens there: whoever asks ends with 3.
    env = environment(f"redis://127.0.0.1:{free_port()}", "n")
    done = queueworker(*arguments, env=env)
    assert (done.returncode, "is not a number of seconds" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("arguments", [("publish", "q", "{}"), ("inspect", "q")])
def test_an_unreachable_broker_ends_with_3_and_one_line(arguments: tuple[str, ...]) -> None:
    port = free_port()
    env = environment(f"redis://:secret-word@127.0.0.1:{port}", "n")
    done = queueworker(*arguments, env=env)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert str(port) in done.stderr
    assert "secret-word" not in done.stderr


def test_settings_are_listed_completely_and_the_page_is_fresh(bench: Bench) -> None:
    done = queueworker("settings", env=bench.env)
    assert all(variable.name in done.stdout for variable in VARIABLES)
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text() == as_markdown(), "write it again: queueworker settings --markdown"


@pytest.mark.parametrize("program", ["queueworker", "kubectl-queueworker", "queueworker-operator"])
def test_the_list_of_commands_cuts_no_sentence(program: str) -> None:
    listed = subprocess.run(
        [str(Path(sys.executable).parent / program), "-h"], capture_output=True, text=True, timeout=60
    )
    assert listed.returncode == 0, listed.stderr
    commands = listed.stdout.split("Commands:\n")[1].splitlines()
    assert commands
    assert [line for line in commands if line.endswith("...") or len(line) > 80] == []


def test_a_flag_names_its_default(bench: Bench) -> None:
    told = " ".join(queueworker("run", "--help", env=bench.env).stdout.split())
    assert "[QUEUEWORKER_SHUTDOWN_SECONDS; default: 30]" in told
    assert "[QUEUEWORKER_PREFETCH; default: as in the code, else coroutines]" in told


def test_version(bench: Bench) -> None:
    assert __version__ in queueworker("--version", env=bench.env).stdout


def test_a_broken_plugin_costs_one_warning_line(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(
        "import click\n\n@click.command()\ndef good():\n    click.echo('from a plugin')\n"
    )
    metadata = tmp_path / "plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[queueworker.commands]\ngood = plugin:good\nbroken = no_such_plugin:command\n"
    )
    env = bench.env | {"PYTHONPATH": str(tmp_path)}
    assert queueworker("good", env=env).stdout == "from a plugin\n"
    listed = queueworker("--help", env=env)
    assert listed.returncode == 0
    assert "good" in listed.stdout
    assert "publish" in listed.stdout
    warnings = listed.stderr.splitlines()
    assert len(warnings) == 1
    assert "'broken'" in warnings[0]
    broken = queueworker("broken", env=env)
    assert broken.returncode == 2
    assert "Traceback" not in broken.stderr
