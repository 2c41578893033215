"""The status of a resource: the smallest merge patch that replaces what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queueworker_operator.apiserver import Body


def status_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Body:
    """A JSON merge patch (RFC 7386) that turns `before` into `after`: null for what vanishes, lists whole."""
    patch: Body = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            inner = status_patch(old, value)
            if inner:
                patch[key] = inner
        elif old != value or key not in before:
            patch[key] = value
    return patch
