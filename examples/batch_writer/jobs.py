"""Usage events go into SQLite in batches, and each is committed after its batch is on disk.

queueworker run examples.batch_writer.jobs:app
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from examples.batch_writer.buffer import BatchWriter
from worker_runtime import App, Commit, Retry

app = App.from_env()


@dataclass
class Usage:
    """One usage event; what else its producer writes is not stored."""

    id: str
    project: str
    metric: str
    value: int


class SqliteRows:
    """The durable store. Rows are keyed by the event's id, so that a second write changes nothing;
    `batches` has the size of every batch, duplicates counted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as database, database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE IF NOT EXISTS usage (id TEXT PRIMARY KEY, project, metric, value)")
            database.execute("CREATE TABLE IF NOT EXISTS batches (rows)")

    def write(self, rows: Sequence[Usage]) -> None:
        """One transaction; durable when it returns."""
        with closing(self._connect()) as database, database:
            database.executemany(
                "INSERT OR IGNORE INTO usage VALUES (?, ?, ?, ?)",
                [(row.id, row.project, row.metric, row.value) for row in rows],
            )
            database.execute("INSERT INTO batches VALUES (?)", (len(rows),))

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=30)
        database.execute("PRAGMA synchronous=FULL")
        return database


@app.on_worker_start
def open_store() -> None:
    rows = SqliteRows(Path(os.environ.get("USAGE_DATABASE", "usage.db")))
    app.resources["writer"] = BatchWriter(
        rows.write,
        most_rows=int(os.environ.get("USAGE_BATCH_ROWS", "500")),
        longest_wait=float(os.environ.get("USAGE_BATCH_SECONDS", "0.2")),
    )


@app.job("usage-rows", coroutines=1, prefetch=1000, commit_timeout=60, retry=Retry(max_attempts=10))
async def usage_rows(usage: Usage, commit: Commit, writer: BatchWriter[Usage]) -> None:
    writer.add(usage, commit)
