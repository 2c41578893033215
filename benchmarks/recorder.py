"""What a measured worker writes down: how many handlers started, when the first and the last did, and how old
their messages were.

It runs inside our workers and inside those of the peers, so it needs nothing but the standard library. A
process writes one memory-mapped file, which the harness reads while it runs: 8-byte signed integers in the
machine's order. First the header (`COUNT`, `FIRST`, `LAST`, `SAMPLES`), then the age of a message at its
handler's start for one start out of `BENCH_EVERY`. Times are nanoseconds of the monotonic clock, which all
processes share.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns

COUNT, FIRST, LAST, SAMPLES, HEADER = range(5)
#: Ages that a process can write down; later ones are left out.
ROOM = 100_000
WORD = 8


def recorder(environ: Mapping[str, str] = os.environ) -> Callable[[int], None]:
    """`started(sent)`, to be called at each handler start; `sent` is when the message was published.

    One thread at a time may call it. Reads `BENCH_RECORDS` (a folder) and `BENCH_EVERY`.
    """
    path = Path(environ["BENCH_RECORDS"]) / f"{os.getpid()}.rec"
    every = int(environ.get("BENCH_EVERY", "64"))
    with path.open("w+b") as file:
        file.truncate((HEADER + ROOM) * WORD)
        words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    last_sample = ROOM * every
    count = 0

    def started(sent: int) -> None:
        nonlocal count
        now = monotonic_ns()
        if count % every == 0 and count < last_sample:
            if not count:
                words[FIRST] = now
            samples = count // every
            words[HEADER + samples] = now - sent
            words[SAMPLES] = samples + 1
        count += 1
        words[LAST] = now
        words[COUNT] = count

    return started
