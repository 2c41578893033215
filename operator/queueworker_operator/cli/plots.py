"""Bar charts of what gates read of each arm, as SVG that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: Pixels.
_WIDTH, _BAR, _GAP, _LEFT, _RIGHT, _TOP, _FOOT = 760, 22, 10, 190, 150, 28, 8


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    #: The value for people.
    shown: str
    #: The class of its colour.
    kind: str
    #: Where a line is drawn, in the unit of the value.
    limit: float | None = None
    #: The limit for people.
    limit_shown: str = ""


def bars(title: str, rows: Sequence[Bar]) -> str:
    """One chart with a bar for each row, all on one scale that begins at 0."""
    most = max((max(row.value, row.limit or 0.0) for row in rows), default=0.0) or 1.0
    height = _TOP + len(rows) * (_BAR + _GAP) + _FOOT
    room = _WIDTH - _LEFT - _RIGHT
    parts = [
        f'<svg role="img" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        f"<title>{escape(title)}</title>",
        f'<text x="0" y="16" class="head">{escape(title)}</text>',
    ]
    for number, row in enumerate(rows):
        y = _TOP + number * (_BAR + _GAP)
        length = round(room * max(0.0, row.value) / most, 1)
        middle = y + _BAR / 2 + 4
        told = f"{row.label}: {row.shown}" + (f", {row.limit_shown}" if row.limit_shown else "")
        parts += [
            f"<g><title>{escape(told)}</title>",
            f'<text x="{_LEFT - 8}" y="{middle:g}" class="label">{escape(row.label)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{length:g}" height="{_BAR}" class="{escape(row.kind)}"/>',
            f'<text x="{_LEFT + length + 6:g}" y="{middle:g}">{escape(row.shown)}</text>',
        ]
        if row.limit is not None:
            x = round(_LEFT + room * row.limit / most, 1)
            parts.append(f'<line x1="{x:g}" x2="{x:g}" y1="{y - 4}" y2="{y + _BAR + 4}" class="limit"/>')
        parts.append("</g>")
    return "".join([*parts, "</svg>"])
