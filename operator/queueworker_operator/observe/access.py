"""How a broker is reached: by its URL and by files, which exist only while they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from worker_runtime.brokers.nats.address import with_credentials


@dataclass(frozen=True, slots=True)
class Access:
    """Not to be shown: both parts may hold secrets."""

    url: str = field(repr=False)
    #: Name in the directory of credentials, and content.
    files: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Opened:
    """An access whose files are on disk."""

    url: str = field(repr=False)
    directory: str = ""

    def told(self, text: str) -> str:
        """A text without the directory, whose name is another one each time."""
        return (
            text.replace(f"{self.directory}/", "").replace(self.directory, "the Secrets")
            if self.directory
            else text
        )


@contextmanager
def opened(access: Access) -> Iterator[Opened]:
    """A URL for use inside the block. The files are readable by this user only, and gone after it."""
    if not access.files:
        yield Opened(access.url)
        return
    with TemporaryDirectory(prefix="queueworker-credentials-") as directory:
        write_files(Path(directory), access.files)
        yield Opened(with_credentials(access.url, directory), directory)


def write_files(directory: Path, files: tuple[tuple[str, bytes], ...]) -> None:
    """Each file in one step, so that whoever reads it meanwhile sees the old or the new one."""
    for name, content in files:
        new = directory / f".{name}.new"
        new.touch(mode=0o600)
        new.write_bytes(content)
        new.replace(directory / name)
