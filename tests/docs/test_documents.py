"""Every command and every YAML of the documents is run or validated here, or named as run elsewhere."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import jsonschema
import pytest
import yaml

from queueworker_operator.api.parse import parse
from queueworker_operator.api.types import QueueWorker
from queueworker_operator.cli.plugin import main as plugin
from worker_runtime.brokers.nats.server import EmbeddedNats
from worker_runtime.brokers.redis.server import EmbeddedRedis

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")

#: Commands that a test of their own runs, word for word or with other values, and where.
RUN_ELSEWHERE = {
    "kubectl": "tests/cluster",
    "kubectl-queueworker": "tests/local/test_plugin.py and tests/cluster",
    "helm": "tests/operator/test_charts.py and tests/cluster",
    "queueworker-operator": "tests/cluster",
}
#: Languages whose blocks are output or code of others, shown to be read only.
SHOWN_ONLY = {"", "text", "json", "lua"}


def blocks(*languages: str) -> list[object]:
    return [
        pytest.param(document, body, id=f"{document.relative_to(ROOT)}:{number}")
        for document in DOCUMENTS
        for number, (language, body) in enumerate(FENCE.findall(document.read_text()), 1)
        if language in languages
    ]


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture(scope="module")
def nats_url() -> Iterator[str]:
    with EmbeddedNats() as server:
        yield server.url


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Documents about NATS are read beside one, all others beside a Redis."""
    broker = "nats_url" if request.getfixturevalue("document").name == "jetstream.md" else "redis_url"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {
        "QUEUEWORKER_BROKER_URL": request.getfixturevalue(broker),
        "PATH": path,
        "QUEUEWORKER_BLOCK_SECONDS": "0.5",
    }


def test_each_language_of_a_block_is_known() -> None:
    known = SHOWN_ONLY | {"bash", "yaml", "python"}
    for document in DOCUMENTS:
        for language, _ in FENCE.findall(document.read_text()):
            assert language in known, f"{document.name}: nothing checks a block of {language!r}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_each_link_to_a_file_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), (
                f"{document.name} links to {target}, which is not there"
            )


def test_each_test_that_a_document_names_is_there() -> None:
    named = [
        (document.name, *match)
        for document in DOCUMENTS
        for match in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document.read_text())
    ]
    assert len(named) > 30
    for document, file, test in named:
        source = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
        assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE), (
            f"{document} names {file}::{test}, which is not there"
        )


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_each_path_that_a_page_for_developers_names_is_there(document: str) -> None:
    named = re.findall(r"`(\.?\w[\w./-]*(?:\.(?:py|md|lua|yaml)|/))`", (ROOT / document).read_text())
    places = (ROOT, ROOT / "operator" / "queueworker_operator")
    assert named
    assert [path for path in named if not any((place / path).exists() for place in places)] == []


@pytest.mark.parametrize(("document", "body"), blocks("yaml"))
def test_yaml_is_accepted(document: Path, body: str) -> None:
    crd = yaml.safe_load((ROOT / "crds" / "queueworkers.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for text in yaml.safe_load_all(body):
        if isinstance(text, dict) and text.get("kind") == "QueueWorker":
            jsonschema.validate(text, schema)
            parsed = parse(text)
            assert isinstance(parsed, QueueWorker), parsed


@pytest.mark.parametrize(("document", "body"), blocks("python"))
def test_python_runs(document: Path, body: str, environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", body], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("document", "body"), blocks("bash"))
def test_commands_run(document: Path, body: str, environment: dict[str, str], tmp_path: Path) -> None:
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            run_documented(words, document, environment, tmp_path)


def run_documented(words: list[str], document: Path, environment: dict[str, str], tmp_path: Path) -> None:
    said = f"{document.name}: {shlex.join(words)}"
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment = environment | {name: value}
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        wanted = [a for a in arguments if "=" not in a]
        assert set(wanted) <= set(targets), f"{said}: no such target"
    elif program == "queueworker" and (arguments[0] in ("run", "up") or "--rate" in arguments):
        runs_until_it_is_told_to_stop([*words], environment, tmp_path, said)
    elif program in ("queueworker", "python"):
        command = [sys.executable if program == "python" else program, *arguments]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, f"{said}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
    else:
        assert program in RUN_ELSEWHERE, f"{said}: no test runs this command"
        if program == "kubectl-queueworker" or words[:2] == ["kubectl", "queueworker"]:
            is_understood_by_the_plugin(arguments[program == "kubectl" :])
        for argument in arguments:
            if argument.startswith(("charts/", "examples/", "crds/")):
                assert (ROOT / argument).exists(), f"{said}: {argument} is not there"


def is_understood_by_the_plugin(arguments: list[str]) -> None:
    """Raises click.UsageError for a verb or an option that it does not have."""
    context = click.Context(plugin, info_name="kubectl-queueworker")
    name, command, rest = plugin.resolve_command(context, list(arguments))
    assert command is not None
    command.make_context(name, rest, parent=context)


def runs_until_it_is_told_to_stop(
    words: list[str], environment: dict[str, str], tmp_path: Path, said: str
) -> None:
    """Start it, wait until it reports that it works, stop it as Ctrl-C does: exit code 0."""
    if words[1] == "up" and "--state-dir" not in words:
        words = [*words, "--state-dir", str(tmp_path)]
        environment = environment | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    seen = []
    try:
        for text in process.stdout:
            seen.append(text)
            if any(said in text for said in ("consumes with", "Ready=True", "Publishing to")):
                break
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 0, f"{said}: exit code {process.returncode}\n{''.join(seen)}{rest}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
