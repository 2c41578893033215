"""Read what a worker writes, line by line, until nobody holds the other end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Longer lines are cut into pieces of this many bytes.
_LONGEST_LINE = 64 * 1024


async def copy_output(pipe: int, show: Callable[[str], None], log: Path | None) -> str:
    """Show each line, append it to the log, and return the last one that was not empty. Closes the pipe."""
    kept = None
    if log:
        with suppress(OSError):  # a full or read-only disk must not stop the worker
            kept = log.open("ab", buffering=0)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    last, rest = "", b""

    def take(raw: bytes) -> None:
        nonlocal last
        text = raw.decode(errors="replace").rstrip()
        if text:
            last = text
            show(text)

    try:
        while chunk := await reader.read(_LONGEST_LINE):
            if kept:
                with suppress(OSError):
                    kept.write(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for raw in lines:
                take(raw)
            if len(rest) > _LONGEST_LINE:
                take(rest)
                rest = b""
        take(rest)
    finally:
        transport.close()
        if kept:
            with suppress(OSError):
                kept.close()
    return last.strip()
