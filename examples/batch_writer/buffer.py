"""A buffer that is flushed when it is full or old enough, and confirms its messages afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from worker_runtime import Commit

Row = TypeVar("Row")

log = logging.getLogger("batch_writer")


class BatchWriter(Generic[Row]):
    """`write` stores rows durably before it returns; it runs in a thread, one batch at a time. The rows of a
    batch that could not be written fail together."""

    def __init__(
        self, write: Callable[[Sequence[Row]], None], most_rows: int = 500, longest_wait: float = 0.2
    ) -> None:
        self._write = write
        self._most_rows = most_rows
        self._longest_wait = longest_wait
        self._rows: list[tuple[Row, Commit]] = []
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: set[asyncio.Task[None]] = set()

    def add(self, row: Row, commit: Commit) -> None:
        """Take a row; its message is decided when the row is written."""
        self._rows.append((row, commit))
        if len(self._rows) >= self._most_rows:
            self._start_flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._longest_wait, self._start_flush)

    def _start_flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = asyncio.ensure_future(self.flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def flush(self) -> None:
        """Write what is there now and decide its messages."""
        batch, self._rows = self._rows, []
        if not batch:
            return
        async with self._writing:
            try:
                await asyncio.to_thread(self._write, [row for row, _ in batch])
            except Exception as error:
                log.error("a batch of %d rows could not be written: %s", len(batch), error)
                for _, commit in batch:
                    commit.fail(error)
            else:
                for _, commit in batch:
                    commit.confirm()
