"""Read a QueueWorker of a `queueworker up` and write one field of its spec: the file is the spec there."""

from __future__ import annotations

import difflib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from queueworker_operator.cli.seen import NotSeenError, local_state, of_state
from queueworker_operator.cli.spec_in_cluster import WrittenBetweenError
from queueworker_operator.cli.spec_text import CannotEditError, by_hand, edited
from queueworker_operator.cli.wishes import Edit, Subject
from queueworker_operator.run.local_file import Document, digest, parse_text, read_raw, read_text


class SpecInFile:
    """The document of one QueueWorker. `place` is the file, or the state directory of its `up`."""

    def __init__(self, place: Path, name: str) -> None:
        self._place, self._name = place, name
        #: What was parsed last: the file is looked at several times, and seldom differs.
        self._last: tuple[str, Document | None] | None = None

    async def read(self) -> Subject:
        """Raises NotSeenError, BadFileError."""
        up_json, state = local_state(self._place)
        (seen,) = of_state(up_json, state, self._name)
        file = Path(state["file"])
        text = read_text(file)
        document = self._parsed(file, text)
        if document is None:
            raise NotSeenError(
                f"{file} has no QueueWorker {self._name} any more, and its workers leave: put the document "
                "back"
            )
        in_force = state.get("file_digest") == digest(text)
        current = in_force and seen.status.observed_generation == seen.generation
        return Subject(seen, document.body, current)

    async def write(self, subject: Subject, edit: Edit, *, dry_run: bool) -> dict[str, Any]:
        """Replace the file as a whole, if the document says what it said when `subject` was read. Returns the
        file and the difference. Raises WrittenBetweenError, CannotEditError, BadFileError."""
        return self._write(subject, edit, dry_run)

    def notices(self, subject: Subject, edit: Edit) -> list[str]:
        return []

    def _parsed(self, file: Path, text: str) -> Document | None:
        """Raises BadFileError."""
        if self._last is None or self._last[0] != text:
            self._last = (text, parse_text(file, text).resources.get(self._name))
        return self._last[1]

    def _write(self, subject: Subject, edit: Edit, dry_run: bool) -> dict[str, Any]:
        up_json, state = local_state(self._place)
        file = Path(state["file"])
        with _alone(up_json.parent):
            raw = read_raw(file)
            text = raw.decode("utf-8")
            document = self._parsed(file, text)
            if document is None or document.body != subject.body:
                raise WrittenBetweenError(f"{file} is edited by somebody else")
            new = edited(text, self._name, edit)
            if not dry_run:
                _replace(file, raw, new.encode("utf-8"), edit)
        lines = difflib.unified_diff(
            text.splitlines(), new.splitlines(), str(file), str(file), n=1, lineterm=""
        )
        return {"file": str(file), "diff": list(lines)}


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One plugin after the other."""
    lock = os.open(directory / "edit.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(file: Path, before: bytes, after: bytes, edit: Edit) -> None:
    """In one step, so that a kill leaves the old file or the new one. Mode, owner and extended attributes
    stay, and a symbolic link still leads to it. Raises WrittenBetweenError, CannotEditError."""
    file = file.resolve(strict=True)
    new = ""
    try:
        handle, new = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with os.fdopen(handle, "wb") as out:
            out.write(after)
            out.flush()
            was, is_ = file.stat(), os.fstat(out.fileno())
            if (was.st_uid, was.st_gid) != (is_.st_uid, is_.st_gid):
                os.fchown(out.fileno(), was.st_uid, was.st_gid)
            shutil.copystat(file, new)
            os.utime(new)
            os.fsync(out.fileno())
        if file.read_bytes() != before:
            raise WrittenBetweenError(f"{file} is edited by somebody else")
        Path(new).replace(file)
        _kept(file.parent)
    except OSError as error:
        raise CannotEditError(f"{file} cannot be replaced ({error}): {by_hand(edit)}") from None
    finally:
        if new:
            with suppress(FileNotFoundError):
                Path(new).unlink()


def _kept(directory: Path) -> None:
    """The new name outlives a crash of the machine."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
