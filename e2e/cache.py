"""The cache of slow results: keyed by recipe, written whole or not at all, one builder at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEY_LENGTH = 12
MARKER = ".complete.json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What determines a result. Two equal recipes have the same key, on every machine.

    `facts` are versions and flags; `files` are those whose content counts (name to bytes).
    """

    name: str
    facts: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()

    @property
    def key(self) -> str:
        """The name and the first hex digits of a SHA-256 over everything in the recipe."""
        return f"{self.name}-{self.digest}"

    @property
    def digest(self) -> str:
        """The hash part of the key alone, for image tags."""
        digest = hashlib.sha256()
        for part in (self.name, *(piece for fact in sorted(self.facts) for piece in fact)):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        for name, content in sorted(self.files):
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.hexdigest()[:KEY_LENGTH]


def files_of(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """Every regular file below `folder`, as a recipe counts it."""
    return tuple(
        (str(path.relative_to(folder)), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


@contextmanager
def exclusive(root: Path, name: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock `name` of the cache at `root`; it is freed when the process ends, however it ends.

    `waiting` is called once with a line of text when another process holds the lock.
    """
    locks = root / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / f"{name}.lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting(f"waiting for another process that works on {name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def lookup(root: Path, recipe: Recipe) -> Path | None:
    """The folder of a whole entry (its marker and each file, of its size, are there), or None."""
    folder = root / "entries" / recipe.key
    try:
        sizes = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(sizes, dict) or not sizes:
        return None
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return None
    return folder


def obtain(
    root: Path,
    recipe: Recipe,
    build: Callable[[Path], None],
    waiting: Callable[[str], None] | None = None,
) -> Path:
    """The folder with the recipe's result, built by `build(folder)` unless a whole entry is there.

    The build runs in a temporary folder that is renamed when it is complete; a broken entry is replaced.
    """
    found = lookup(root, recipe)
    if found is not None:
        return found
    with exclusive(root, recipe.name, waiting):
        found = lookup(root, recipe)
        if found is not None:
            return found
        entries = root / "entries"
        entries.mkdir(parents=True, exist_ok=True)
        final = entries / recipe.key
        partial = Path(tempfile.mkdtemp(prefix=f".{recipe.key}.", dir=entries))
        try:
            build(partial)
            sizes = {
                str(path.relative_to(partial)): path.stat().st_size
                for path in sorted(partial.rglob("*"))
                if path.is_file() and not path.is_symlink()
            }
            (partial / MARKER).write_text(json.dumps(sizes, indent=1, sort_keys=True))
            partial.chmod(0o755)
            shutil.rmtree(final, ignore_errors=True)
            partial.replace(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return final


def sweep(root: Path, name: str, keep: str) -> None:
    """Remove what killed builds of `name` left, and entries of older recipes. Call with the lock held."""
    entries = root / "entries"
    for path in [*entries.glob(f".{name}-*"), *entries.glob(f"{name}-*")]:
        suffix = path.name.lstrip(".").removeprefix(f"{name}-").split(".")[0]
        if len(suffix) == KEY_LENGTH and path.name != keep:
            shutil.rmtree(path, ignore_errors=True)
