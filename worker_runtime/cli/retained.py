"""Failed and dead messages with what is kept of them, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from worker_runtime.brokers.base import Maintenance, Retained
from worker_runtime.cli.columns import columns

#: Characters of a payload and of a reason on a line for people; programs get all of them.
_SHOWN, _SHOWN_WHY = 60, 160


async def read_retained(maintenance: Maintenance, queue: str, limit: int) -> dict[str, Sequence[Retained]]:
    """The newest `limit` of each of the two lists."""
    return {
        "failed": await maintenance.retained(queue, limit=limit, dead=False),
        "dead": await maintenance.retained(queue, limit=limit, dead=True),
    }


def retained_as_json(found: Mapping[str, Sequence[Retained]]) -> dict[str, list[dict[str, Any]]]:
    """Every field by its name. A payload is the text of its JSON, as it was published."""
    return {name: [{**asdict(each), "payload": _text(each)} for each in some] for name, some in found.items()}


def retained_lines(found: Mapping[str, Sequence[Retained]]) -> Iterator[str]:
    """One table for each list that holds something."""
    for name, some in found.items():
        if some:
            yield f"{name.capitalize()}, the newest first"
            yield from columns(
                ["pid", "attempts", "rejected", "record", "why", "payload"],
                [_row(each) for each in some],
                left=(0, 2, 3, 4, 5),
            )


def _row(each: Retained) -> list[str]:
    why = _line(": ".join(part for part in (each.why, each.reason) if part))
    payload = _line(_text(each) or "")
    return [
        _line(each.pid),
        "?" if each.attempts is None else f"{each.attempts:,}",
        "?" if each.at is None else f"{datetime.fromtimestamp(each.at, UTC):%Y-%m-%d %H:%M:%S}Z",
        _record(each),
        _shortened(why, _SHOWN_WHY) or "?",
        _shortened(payload, _SHOWN),
    ]


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _record(each: Retained) -> str:
    if not each.recorded:
        return "gone"
    if each.payload is None:
        return "no envelope"
    return "kept" if each.expires_in is None else f"{each.expires_in:,.0f} s left"


def _line(text: str) -> str:
    """What a stranger wrote must not steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def _text(each: Retained) -> str | None:
    return None if each.payload is None else each.payload.decode("utf-8", "backslashreplace")
