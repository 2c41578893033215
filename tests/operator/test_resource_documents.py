"""The CRD, the example and the pages agree with the models and the enums."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from queueworker_operator.api import crd
from queueworker_operator.api.parse import parse
from queueworker_operator.api.reasons import ConditionReason, ConditionType, EventReason, Stage
from queueworker_operator.api.template import MANAGED_VARIABLES
from queueworker_operator.api.types import QueueWorker
from tests.operator.resources import body
from tests.operator.rule_cases import CASES, MALFORMED

EXAMPLES = sorted(Path("examples").glob("queueworker*.yaml"))


def nodes(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [found for child in node for found in nodes(child)]
    if isinstance(node, dict):
        return [node, *(found for child in node.values() for found in nodes(child))]
    return []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_keeps_the_schema_and_the_rules(path: Path) -> None:
    example = yaml.safe_load(path.read_text())
    jsonschema.validate(example, crd.schema())
    parsed = parse(example)
    assert isinstance(parsed, QueueWorker), parsed
    assert (parsed.metadata.name, parsed.spec.queue.name) == ("stats-usage", "stats-usage")
    assert parsed.spec.broker.type == ("NATS" if path.stem.endswith("-nats") else "Redis")


def test_each_resource_on_the_page_is_valid() -> None:
    texts = re.findall(r"```yaml\n(.*?)```", Path("docs/resource.md").read_text(), re.DOTALL)
    assert len(texts) == 2, "the shortest one, and one on NATS"
    for shown in map(yaml.safe_load, texts):
        jsonschema.validate(shown, crd.schema())
        assert isinstance(parse(shown), QueueWorker)


@pytest.mark.parametrize(
    "resource", [body(), *(case.accepted for case in CASES)], ids=lambda r: r["metadata"]["name"]
)
def test_the_schema_takes_what_the_models_take(resource: dict[str, Any]) -> None:
    jsonschema.validate(resource, crd.schema())


def test_the_schema_refuses_what_the_models_refuse_by_type() -> None:
    taken = [
        path
        for path, resource in MALFORMED
        if jsonschema.Draft202012Validator(crd.schema()).is_valid(resource) and not twice(resource)
    ]
    assert taken == []


def twice(resource: dict[str, Any]) -> bool:
    """Two containers of one name: a rule of list maps, which JSON Schema does not know."""
    template = resource["spec"].get("template") or {}
    return len(template.get("spec", {}).get("containers", [])) == 2


def test_the_schema_is_structural_and_bounded() -> None:
    for node in nodes(crd.schema()):
        assert not {"$ref", "$defs", "anyOf", "additionalProperties"} & set(node)
        if node.get("type") == "array" and "items" in node:
            assert "maxItems" in node, node
        if node.get("type") == "string" and "description" in node:
            assert {"maxLength", "enum", "format"} & set(node), node


def test_a_terminal_is_wide_enough_for_the_columns() -> None:
    columns = crd.definition()["spec"]["versions"][0]["additionalPrinterColumns"]
    assert len([column for column in columns if not column.get("priority")]) <= 9


def listed(section: str) -> set[str]:
    """The words in the first column of a section's table."""
    text = Path("docs/reasons.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("Conditions", ConditionType),
        ("Condition reasons", ConditionReason),
        ("Event reasons", EventReason),
        ("Stages", Stage),
    ],
)
def test_the_page_of_reasons_has_each_word_and_no_other(section: str, words: type[StrEnum]) -> None:
    assert listed(section) == {word.value for word in words}


def test_every_reason_is_given_somewhere() -> None:
    """A reason that nothing gives would be a promise that nobody keeps."""
    source = "".join(path.read_text() for path in Path("operator/queueworker_operator/plan").glob("*.py"))
    by_verdict = set(re.findall(r'^    [A-Z_]+ = "(\w+)"', source, re.MULTILINE))
    for enum in (ConditionReason, EventReason):
        unused = {m for m in enum if f"{enum.__name__}.{m.name}" not in source and m.value not in by_verdict}
        assert not unused


def test_the_page_of_the_resource_names_each_managed_variable() -> None:
    text = Path("docs/resource.md").read_text()
    assert set(re.findall(r"`(QUEUEWORKER_[A-Z_]+)`", text)) == MANAGED_VARIABLES
