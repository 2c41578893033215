"""Where local workers find what they sign in to their broker with: files in the state directory."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

from queueworker_operator.observe.access import write_files
from queueworker_operator.run.local_broker import Located
from worker_runtime.brokers.nats.address import with_credentials


class Credentials:
    """They lie there as long as `queueworker up` runs, readable by its user only."""

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "credentials"

    def kept(self, name: str, located: Located) -> Located:
        """The same broker of the resource `name`, with its files on disk and named by the URL. Those of
        another URL stay: workers of an older revision sign in with them."""
        if not located.files:
            return located
        place = self._root / f"{name}-{hashlib.sha256(located.url.encode()).hexdigest()[:12]}"
        for directory in (self._root, place):
            directory.mkdir(mode=0o700, exist_ok=True)
        wanted = {file for file, _ in located.files}
        for left in place.iterdir():
            if left.name not in wanted:
                left.unlink()
        write_files(place, located.files)
        return replace(located, url=with_credentials(located.url, str(place)), files=())

    def remove(self) -> None:
        """No worker is left that needs them."""
        shutil.rmtree(self._root, ignore_errors=True)
