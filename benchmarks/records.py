"""Reads while a run goes on what its workers write down (see `recorder`)."""

from __future__ import annotations

import array
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recorder import COUNT, FIRST, HEADER, LAST, SAMPLES, WORD


@dataclass(frozen=True)
class Starts:
    """Handler starts of all processes together; times in monotonic nanoseconds, 0 when there was none."""

    count: int
    first: int
    last: int


class Records:
    """The records in one folder. Files appear while it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def starts(self) -> Starts:
        headers = [words for words in map(_header, self._folder.glob("*.rec")) if words[COUNT]]
        if not headers:
            return Starts(0, 0, 0)
        return Starts(
            sum(words[COUNT] for words in headers),
            min(words[FIRST] for words in headers),
            max(words[LAST] for words in headers),
        )

    def ages(self) -> list[float]:
        """Seconds from publishing to handler start, in order, of those that were written down."""
        found: list[float] = []
        for path in self._folder.glob("*.rec"):
            words = array.array("q")
            data = path.read_bytes()
            words.frombytes(data[: len(data) // WORD * WORD])
            if len(words) > HEADER:
                found.extend(age / 1e9 for age in words[HEADER : HEADER + words[SAMPLES]])
        return found


def _header(path: Path) -> array.array[int]:
    words = array.array("q")
    with path.open("rb") as file:
        data = file.read(HEADER * WORD)
    words.frombytes(data.ljust(HEADER * WORD, b"\0"))
    return words
