"""One line per step with the seconds it took; a spinner only on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

HEARTBEAT_SECONDS = 60.0


class Progress:
    """Says what happens, on standard error, so that standard output stays usable by scripts."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._started = time.monotonic()
        self._depth = 0

    def say(self, text: str) -> None:
        """Print one line, with the seconds since the command began."""
        elapsed = time.monotonic() - self._started
        self._console.print(f"[{elapsed:6.1f}s] {text}", markup=False)

    @contextmanager
    def step(self, text: str, usually: str = "") -> Iterator[None]:
        """Announce `text`, run the body, say how long it took. `usually` is the expected time, if long."""
        begun = time.monotonic()
        hint = f" (about {usually})" if usually else ""
        stop = threading.Event()
        beat = threading.Thread(target=self._beat, args=(text, begun, stop), daemon=True)
        self.say(f"{text}{hint} ...")
        beat.start()
        try:
            if self._console.is_terminal and self._depth == 0:
                self._depth += 1
                try:
                    with self._console.status(text):
                        yield
                finally:
                    self._depth -= 1
            else:
                yield
        except BaseException:
            self.say(f"{text}: failed after {time.monotonic() - begun:.1f} s")
            raise
        else:
            self.say(f"{text}: done in {time.monotonic() - begun:.1f} s")
        finally:
            stop.set()
            beat.join()

    def _beat(self, text: str, begun: float, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            self.say(f"{text}: still running after {time.monotonic() - begun:.0f} s")


def plain() -> Progress:
    """A progress without spinner, for tests and logs."""
    return Progress(Console(file=sys.stderr, force_terminal=False, highlight=False, soft_wrap=True))
