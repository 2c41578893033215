"""The transitions as loaded from `lua/`, and how one is called.

A call is EVALSHA; on NOSCRIPT (nothing ran) the same call is made once more with the source, which cannot
miss again however often somebody flushes the script cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One transition with its declared keys and its arguments."""

    script: Script
    keys: Sequence[str | bytes]
    args: Sequence[str | bytes | int]

    def by_sha(self) -> tuple[str | bytes | int, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_source(self) -> tuple[str | bytes | int, ...]:
        return ("EVAL", self.script.source, len(self.keys), *self.keys, *self.args)


def script_directory() -> Path:
    """In a wheel the scripts lie inside the package; in a checkout beside it."""
    package = Path(__file__).parents[2]
    for place in (package / "lua", package.parent / "lua"):
        if (place / "reserve.lua").is_file():
            return place
    raise FileNotFoundError(
        f"the Lua scripts are neither in {package / 'lua'} nor in {package.parent / 'lua'};"
        " the installation is incomplete, install queueworker again"
    )


def _load(name: str) -> Script:
    place = script_directory()
    source = (place / "prelude.lua").read_text("utf-8") + (place / f"{name}.lua").read_text("utf-8")
    return Script(name, source, hashlib.sha1(source.encode()).hexdigest())


RESERVE = _load("reserve")
CLAIM = _load("claim")
TAKE = _load("take")
SETTLE = _load("settle")
EXTEND = _load("extend")
RECOVER_RESERVATION = _load("recover_reservation")
RECOVER_DELIVERY = _load("recover_delivery")
UNSTAGE = _load("unstage")
PROMOTE_DELAYED = _load("promote_delayed")
SWEEP = _load("sweep")
BEAT = _load("beat")
READ = _load("read")

ALL: tuple[Script, ...] = (
    RESERVE,
    CLAIM,
    TAKE,
    SETTLE,
    EXTEND,
    RECOVER_RESERVATION,
    RECOVER_DELIVERY,
    UNSTAGE,
    PROMOTE_DELAYED,
    SWEEP,
    BEAT,
    READ,
)
