"""SIGINT and SIGTERM end a run, but not its removal of what it made."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interruptions:
    """The first signal raises KeyboardInterrupt. From then on, and during a removal, one is only answered.

    `timeout` and make send a second signal at once, people press Ctrl-C twice: that must not stop the
    removal which the first one began.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._removing = 0
        self._came = False
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    @contextmanager
    def removed_at_the_end(self, remove: Callable[[], None]) -> Iterator[None]:
        """Call `remove` when the block ends, however; nests. For the main thread."""
        if not self._inside:
            self._came = False
            for number in _NUMBERS:
                self._before[number] = signal.getsignal(number)
                # A shell's background job has SIGINT ignored: it belongs to another job then.
                if self._before[number] is not signal.SIG_IGN:
                    signal.signal(number, self._answer)
        self._inside += 1
        try:
            yield
        finally:
            self._removing += 1
            try:
                remove()
            finally:
                self._removing -= 1
                self._inside -= 1
                if not self._inside:
                    for number, handler in self._before.items():
                        signal.signal(number, handler)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._came or self._removing:
            text = f"{name}: still removing what this run made; SIGKILL ends it at once and leaves that\n"
            # Past Python's own buffer, which may be in use where the signal came; it would raise.
            with suppress(OSError):
                os.write(2, text.encode())
            return
        self._came = True
        raise KeyboardInterrupt(name)


#: A process has one handler for each signal.
INTERRUPTIONS = Interruptions()
