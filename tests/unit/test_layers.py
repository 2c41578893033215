"""Who may import whom, as CONTRIBUTING.md has it: no layer knows of one above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

RUNTIME = Path("worker_runtime")
OPERATOR = Path("operator", "queueworker_operator")
#: What each place of the product may import of the product, from the lowest up; the longest path counts.
LAYERS = {
    "worker_runtime": {"worker_runtime"},
    # A broker knows nothing of handlers.
    "worker_runtime.brokers": {
        "worker_runtime.brokers",
        "worker_runtime.envelope",
        "worker_runtime.pausing",
    },
    "queueworker_operator.api": {"queueworker_operator.api"},
    "queueworker_operator.apiserver": {"queueworker_operator.api"},
    "queueworker_operator.plan": {"queueworker_operator.api", "queueworker_operator.plan"},
    "queueworker_operator.observe": {
        "queueworker_operator.api",
        "queueworker_operator.apiserver",
        "queueworker_operator.plan",
        "queueworker_operator.observe",
        # Local workers are child processes: what is known of one is with what starts it.
        "queueworker_operator.act.processes",
        "worker_runtime",
    },
    "queueworker_operator.act": {
        "queueworker_operator.api",
        "queueworker_operator.apiserver",
        "queueworker_operator.plan",
        "queueworker_operator.observe",
        "queueworker_operator.act",
        # Each write asks first whether this operator may still write.
        "queueworker_operator.run.lease",
        "worker_runtime",
    },
    "queueworker_operator.run": {"queueworker_operator", "worker_runtime"},
    "queueworker_operator.cli": {"queueworker_operator", "worker_runtime"},
}
#: Packages that only these may import: without a cluster nobody needs them.
KUBERNETES = {"kubernetes", "kopf"}
WITH_KUBERNETES = ("queueworker_operator.apiserver", "queueworker_operator.run")
FILES = sorted((*RUNTIME.rglob("*.py"), *OPERATOR.rglob("*.py")))


def _name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "operator" else parts).removesuffix(".__init__")


def _is_in(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def _imported(file: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} imports relatively: name the package"
            assert node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_nothing_is_imported_from_above(file: Path) -> None:
    here = max((place for place in LAYERS if _is_in(_name(file), place)), key=len, default="")
    imported = set(_imported(file))
    if here:
        ours = {one for one in imported if one.startswith(("worker_runtime", "queueworker_operator"))}
        assert not {one for one in ours if not any(_is_in(one, allowed) for allowed in LAYERS[here])}
    if not any(_is_in(_name(file), place) for place in WITH_KUBERNETES):
        assert not {one for one in imported if one.split(".")[0] in KUBERNETES}


def test_each_layer_has_files() -> None:
    """A place that moved would be checked no longer."""
    names = [_name(file) for file in FILES]
    assert not [place for place in LAYERS if not any(_is_in(name, place) for name in names)]
