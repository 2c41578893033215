"""What the handlers did, in an append-only file outside the broker. Each entry is one `write` within a page,
so a SIGKILL leaves whole lines, and nothing that was written is lost with the process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

#: Every entry is that many bytes long, or a multiple. A kill may cut a write where a page of the file ends,
#: and the next entry would be lost with it: so no entry reaches over the end of one.
_ENTRY = 64


class Record:
    """The writing end. Several processes may share one file, and be killed at any time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def started(self, number: int, worker: str) -> None:
        """Before anything of the handler has happened."""
        self._write(f"S {number} {worker}")

    def finished(self, number: int, worker: str) -> None:
        """The handler is through; the settlement has not been asked for."""
        self._write(f"F {number} {worker}")

    def settled(self, number: int, worker: str, outcome: str) -> None:
        """What the broker said of the settlement."""
        self._write(f"O {number} {worker} {outcome}")

    def _write(self, text: str) -> None:
        entry = text.encode()
        os.write(self._file, entry + b" " * (-(len(entry) + 1) % _ENTRY) + b"\n")


@dataclass(slots=True)
class Account:
    """The file, read whole. Numbers are those of messages."""

    starts: Counter[int] = field(default_factory=Counter)
    finishes: Counter[int] = field(default_factory=Counter)
    commits: Counter[int] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    #: number -> the last line about it, for those that no handler has finished.
    last: dict[int, str] = field(default_factory=dict)
    #: worker -> messages that it started and whose settlement it never heard of.
    in_hand: Counter[str] = field(default_factory=Counter)
    #: Lines that are no entries: somebody else wrote into the file, or the disk was full.
    unreadable: int = 0


def read_account(lines: Iterable[str]) -> Account:
    """Never raises for what is in the lines."""
    account = Account()
    for line in lines:
        words = line.split()
        if len(words) < 3 or not words[1].isdigit() or (words[0] == "O") != (len(words) == 4):
            account.unreadable += 1
            continue
        kind, number, worker = words[0], int(words[1]), words[2]
        if number not in account.finishes:
            account.last[number] = line.strip()
        if kind == "S":
            account.starts[number] += 1
            account.in_hand[worker] += 1
        elif kind == "F":
            account.finishes[number] += 1
            account.last.pop(number, None)
        elif kind == "O":
            account.outcomes[words[3]] += 1
            if not words[3].startswith("release"):
                account.in_hand[worker] -= 1
            if words[3] == "committed":
                account.commits[number] += 1
        else:
            account.unreadable += 1
    return account
