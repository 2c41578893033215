"""The planner is pure: it imports nothing that could do I/O, and nothing of the operator but `api`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import queueworker_operator.plan

FILES = sorted(Path(queueworker_operator.plan.__file__).parent.glob("*.py"))
OURS = ("queueworker_operator.api", "queueworker_operator.plan")
ALLOWED = (*OURS, "__future__", "collections", "dataclasses", "datetime", "enum", "functools", "typing")


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_imports(file: Path) -> None:
    foreign = {
        name
        for name in imported(ast.parse(file.read_text()))
        if not any(name == allowed or name.startswith(allowed + ".") for allowed in ALLOWED)
    }
    assert not foreign


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_clock_and_no_output(file: Path) -> None:
    calls = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
    }
    assert not calls & {"now", "utcnow", "today", "print", "open", "input"}
