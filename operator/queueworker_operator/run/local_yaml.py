"""What a text of YAML or JSON says, if it says one thing only and is of a size that can be worked with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _Loader  # ten times as fast
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

#: Bytes of a file. An API server takes objects of 1.5 MiB, as JSON; nobody writes more than this by hand.
LARGEST = 1 << 20
#: Values of a document with each alias counted as often as it is used: a short text may stand for billions.
MOST_VALUES = 1_000_000

_MERGE = "tag:yaml.org,2002:merge"


class UnusableTextError(Exception):
    """The text cannot be used. Says where, what is wrong, and the way out."""


class _Merging(_Loader):
    """Replaces merge keys by what they stand for."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """PyYAML leaves what was overridden in front of what overrides it, and passes on the former when this
        mapping is itself merged into another one."""
        super().flatten_mapping(node)
        own = {(key.tag, str(key.value)): (key, value) for key, value in node.value}
        node.value = list(own.values())


def documents(text: str) -> list[Any]:
    """What each document says. Raises UnusableTextError, also for a key that a mapping has twice: readers of
    YAML do not agree on which of them counts."""
    try:
        return list(_constructed(text))
    except yaml.YAMLError as error:
        raise UnusableTextError(f"cannot be read as YAML: {_one_line(error)}. Correct it and save.") from None
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        # PyYAML on a value that is none of its type: 2026-13-45, !!bool maybe.
        raise UnusableTextError(
            f"cannot be read as YAML: a value is not of the type that it looks like ({error}): put quotes "
            "around it"
        ) from None


def nodes(text: str) -> Iterator[yaml.Node]:
    """The tree of each document of a text that `documents` can read, with places in this text."""
    # libyaml does not count a byte order mark; the places count from behind it in both.
    yield from yaml.compose_all(text.removeprefix("\ufeff"), Loader=_Loader)


def _constructed(text: str) -> Iterator[Any]:
    loader = _Merging(text.removeprefix("\ufeff"))
    try:
        while loader.check_node():
            if (node := loader.get_node()) is not None:
                _check(node)
                yield loader.construct_document(node)
    finally:
        loader.dispose()


def _check(root: yaml.Node) -> None:
    """Before merge keys are replaced by what they stand for. Raises UnusableTextError."""
    sizes: dict[int, int] = {}
    above: set[int] = set()
    todo = [root]
    while todo:
        node = todo[-1]
        inner = list(_inner(node))
        if id(node) in sizes:
            todo.pop()
        elif id(node) in above:
            todo.pop()
            above.remove(id(node))
            sizes[id(node)] = size = 1 + sum(sizes[id(one)] for one in inner)
            if size > MOST_VALUES:
                raise UnusableTextError(
                    f"{_place(node)}: with its aliases this stands for more than {MOST_VALUES} values: "
                    "write it without them"
                )
        else:
            _check_keys(node)
            above.add(id(node))
            if loop := next((one for one in inner if id(one) in above), None):
                raise UnusableTextError(f"{_place(loop)}: an alias of this is inside of it: take it out")
            todo += inner


def _inner(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _check_keys(node: yaml.Node) -> None:
    first: dict[tuple[str, str], yaml.Node] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        before = first.setdefault((key.tag, key.value), key)
        if before is not key:
            raise UnusableTextError(
                f"{_place(key)}: the key {key.value!r:.80} is there already, in line "
                f"{before.start_mark.line + 1}: keep one of them"
            )


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())
