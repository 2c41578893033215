"""The tables of fields in docs/resource.md, from the schema and the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from queueworker_operator.api.rules import RULES, TRANSITIONS

#: An object with so many fields is told once.
_MANY = 5
_BEGIN, _END = "<!-- generated: {} -->", "<!-- end: {} -->"


def with_tables(page: str, schema: Mapping[str, Any]) -> str:
    """The page with its generated parts renewed. Raises ValueError when a marker is missing."""
    parts = {
        "spec": _table(schema["properties"]["spec"], "spec"),
        "status": _table(schema["properties"]["status"], "status"),
        "rules": _rules(),
    }
    for name, text in parts.items():
        begin, end = _BEGIN.format(name), _END.format(name)
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"docs/resource.md needs the markers {begin} and {end}")
        page = f"{head}{begin}\n\n{text}\n{end}{tail}"
    return page


def _table(node: Mapping[str, Any], path: str) -> str:
    lines = ["| Field | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    for name, type_, default, text in _rows(node, path, []):
        lines.append(f"| `{name}` | {type_} | {default} | {text} |")
    return "\n".join(lines) + "\n"


def _rows(
    node: Mapping[str, Any], path: str, told: list[tuple[object, str]]
) -> Iterator[tuple[str, str, str, str]]:
    """`told` are the parts of objects that have their rows already, and where."""
    required = node.get("required", ())
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}"
        # The parts of a pod template are Kubernetes' to explain.
        inner = child.get("items", child) if "description" in child.get("items", child) else {}
        default = "required" if name in required and path.startswith("spec") else ""
        if "default" in child:
            value = child["default"]
            # As YAML has it.
            default = f"`{str(value).lower() if isinstance(value, bool) else value}`"
        suffix = "[]" if child["type"] == "array" else ""
        text, parts = child.get("description", ""), inner.get("properties")
        same = [where for known, where in told if parts and len(parts) >= _MANY and known == parts]
        if same:
            text += f" Its fields are those of `{same[0]}`."
        yield here + suffix, _type(child), default, text
        if "template" not in here and not same:
            told.append((parts, here + suffix))
            yield from _rows(inner, here + suffix, told)


def _type(node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return " or ".join(node["enum"])
    if "minimum" in node:
        return f"{node['type']}, {node['minimum']} to {node['maximum']}"
    return "time" if node.get("format") == "date-time" else str(node["type"])


def _rules() -> str:
    lines = ["| Field | Rule |", "| --- | --- |"]
    lines += [f"| `{rule.blames}` | {rule.message} |" for rule in RULES]
    lines += [f"| `{rule.blames}` | {rule.message} |" for rule in TRANSITIONS]
    return "\n".join(lines) + "\n"
