"""One field of a QueueWorker's spec, edited in the text of a YAML file.

Only the lines of the field change: comments, order, quotes and all other documents stay as they are. A
library that writes YAML anew keeps most of that but sets lines and indents in its own way. The new text is
read again, and used only when it says exactly what was meant.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from queueworker_operator.api.names import KIND
from queueworker_operator.cli.wishes import Edit
from queueworker_operator.run.local_yaml import UnusableTextError, documents, nodes

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
#: Of the byte order: stands before the text, and no place of a node counts it.
_MARK = "\ufeff"
_Key = tuple[yaml.Node, yaml.Node]
_Spec = tuple[yaml.Node, yaml.MappingNode]


class CannotEditError(Exception):
    """The text cannot be edited without changing something else. The text says what to write by hand."""


def edited(text: str, name: str, edit: Edit) -> str:
    """The text with that field of the QueueWorker `name` set or removed. Raises CannotEditError, and
    UnusableTextError for a text that says nothing clear."""
    if text.startswith(_MARK):
        return _MARK + edited(text.removeprefix(_MARK), name, edit)
    before = documents(text)
    number, spec = _spec_of(text, name, edit)
    children = spec[1].value
    there = next((pair for pair in children if pair[0].value == edit.field), None)
    if there is None:
        new = _inserted(text, spec, edit)
    elif edit.value is None:
        new = _removed(text, spec, there, edit)
    else:
        end = _end(there[1], there[0], edit, text)
        new = text[: there[0].start_mark.index] + _entry(edit, _quoted(text, there[0])) + text[end:]
    meant = [_alone(one) for one in before]
    if edit.value is None:
        meant[number]["spec"].pop(edit.field, None)
    else:
        meant[number]["spec"][edit.field] = edit.value
    try:
        same = documents(new) == meant
    except UnusableTextError:
        same = False
    if not same:
        raise _by_hand(edit)
    return new


def _alone(value: Any) -> Any:
    """A copy in which no two places are one object, as an anchor and its aliases are."""
    if isinstance(value, dict):
        return {key: _alone(one) for key, one in value.items()}
    return [_alone(one) for one in value] if isinstance(value, list) else value


def by_hand(edit: Edit) -> str:
    """What a person would write."""
    return f"remove {edit.path}" if edit.value is None else f"write under spec: {_entry(edit, False)}"


def _by_hand(edit: Edit) -> CannotEditError:
    return CannotEditError(
        f"{edit.path} cannot be edited without changing something else of the file (an alias or an unusual "
        f"layout is in the way): {by_hand(edit)}"
    )


def _spec_of(text: str, name: str, edit: Edit) -> tuple[int, _Spec]:
    """The number of the document, and its key `spec` with the value."""
    for number, document in enumerate(nodes(text)):
        if not isinstance(document, yaml.MappingNode):
            continue
        pairs = {key.value: (key, value) for key, value in document.value if isinstance(key, yaml.ScalarNode)}
        kind, metadata, spec = (pairs.get(key) for key in ("kind", "metadata", "spec"))
        if kind is None or kind[1].value != KIND or metadata is None or spec is None:
            continue
        named = {key.value: value.value for key, value in metadata[1].value}
        if named.get("name") != name:
            continue
        follows = spec[1].start_mark.index >= spec[0].end_mark.index
        if not follows or not isinstance(spec[1], yaml.MappingNode) or not spec[1].value:
            raise _by_hand(edit)
        return number, (spec[0], spec[1])
    raise CannotEditError(f"the file has no QueueWorker {name}")


def _inserted(text: str, spec: _Spec, edit: Edit) -> str:
    """As the first field, so that whoever opens the file sees it."""
    if edit.value is None:
        raise _by_hand(edit)
    key, value = spec
    first = value.value[0][0]
    if value.flow_style:
        # The new field is parted from the first one as that is from the brace, and takes this along when it
        # is taken out again.
        at = first.start_mark.index
        parts = text[text.index("{", value.start_mark.index) + 1 : at]
        parts = parts if "\n" in parts and not parts.strip() else " "
        return f"{text[:at]}{_entry(edit, _quoted(text, first))},{parts}{text[at:]}"
    at = text.find("\n", key.end_mark.index) + 1
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{text[:at]}{' ' * first.start_mark.column}{_entry(edit, False)}{newline}{text[at:]}"


def _removed(text: str, spec: _Spec, there: _Key, edit: Edit) -> str:
    start, end = there[0].start_mark.index, _end(there[1], there[0], edit, text)
    if spec[1].flow_style:
        after = re.match(r"\s*,\s*", text[end:])
        if after:
            return text[:start] + text[end + after.end() :]
        return re.sub(r",\s*$", "", text[:start]) + text[end:]
    begins = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    rest = text[end:line_end] if line_end >= 0 else text[end:]
    if text[begins:start].strip() or not re.fullmatch(r"\s*(#.*)?", rest):
        raise _by_hand(edit)
    return text[:begins] + (text[line_end + 1 :] if line_end >= 0 else "")


def _end(node: yaml.Node, key: yaml.Node, edit: Edit, text: str) -> int:
    """Where the last character of a value is. PyYAML has a block end where the next thing begins."""
    if node.start_mark.index < key.end_mark.index:
        raise _by_hand(edit)  # an alias
    end: int = node.end_mark.index
    if isinstance(node, yaml.ScalarNode):
        if node.style in ("|", ">"):
            return len(text[:end].rstrip())
        return end
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return end
    last = node.value[-1]
    if isinstance(node, yaml.MappingNode):
        return _end(last[1], last[0], edit, text)
    return _end(last, key, edit, text)


def _quoted(text: str, key: yaml.Node) -> bool:
    """Whether keys are written as in JSON."""
    return text[key.start_mark.index] == '"'


def _entry(edit: Edit, as_json: bool) -> str:
    if as_json:
        return f"{_string(edit.field)}: {_as_json(edit.value)}"
    return f"{edit.field}: {_flow(edit.value)}"


def _as_json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_string(key)}: {_as_json(one)}" for key, one in value.items()) + "}"
    return _string(value) if isinstance(value, str) else json.dumps(value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return _string(value)


def _string(value: str) -> str:
    """In quotes, as JSON and YAML both read it. Characters beyond four digits stay as they are: JSON has them
    as two, which YAML does not put together."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(one if one.isprintable() or ord(one) > 0xFFFF else f"\\u{ord(one):04x}" for one in text)
