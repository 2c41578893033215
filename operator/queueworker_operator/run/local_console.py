"""What `queueworker up` prints: one line per change, for people or as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import TextIO


class Console:
    """Lines on standard output. A reader that went away does not stop the workers."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None) -> None:
        self._json = as_json
        self._stream: TextIO | None = stream or sys.stdout

    def say(self, subject: str, text: str, **fields: str) -> None:
        """A change of state: of `up` itself, of a resource, of a worker."""
        self._write("state", subject, text, fields)

    def show(self, worker: str, text: str) -> None:
        """A line that a worker wrote."""
        self._write("output", worker, text, {})

    def _write(self, kind: str, subject: str, text: str, fields: dict[str, str]) -> None:
        if self._stream is None:
            return
        now = time.time()
        if self._json:
            line = json.dumps({"ts": round(now, 3), "kind": kind, "subject": subject, "text": text, **fields})
        elif kind == "output":
            line = f"{subject} | {text}"
        else:
            line = f"{time.strftime('%H:%M:%S', time.localtime(now))} {subject}: {text}"
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None
