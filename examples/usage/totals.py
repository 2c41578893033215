"""The durable store of the example, on a Redis or in a SQLite file: one row an event, so that a second
delivery changes nothing, and beside it how often each event was handled and by which version.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from redis.asyncio import Redis

EVENTS = "usage:events"
#: How often each event was handled. At-least-once delivery may run a job twice; this makes it visible.
HANDLED = "usage:handled"
#: How many events each version of the worker handled.
BY_VERSION = "usage:by-version"
#: The same for each revision, as the broker's books name it.
BY_REVISION = "usage:by-revision"

_FILE = "sqlite://"
_TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, row TEXT NOT NULL, handled INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS versions (version TEXT PRIMARY KEY, handled INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS revisions (revision TEXT PRIMARY KEY, handled INTEGER NOT NULL);
"""
_STORE = """
INSERT INTO events VALUES (?, ?, 1)
ON CONFLICT (id) DO UPDATE SET row = excluded.row, handled = handled + 1
"""
_COUNT = "INSERT INTO versions VALUES (?, 1) ON CONFLICT (version) DO UPDATE SET handled = handled + 1"
_COUNT_REVISION = (
    "INSERT INTO revisions VALUES (?, 1) ON CONFLICT (revision) DO UPDATE SET handled = handled + 1"
)


@dataclass(frozen=True, slots=True)
class Stored:
    """Everything: how often each event was handled, its row, and the counts of versions and revisions."""

    handled: dict[str, int]
    rows: dict[str, str]
    by_version: dict[str, int]
    by_revision: dict[str, int]


class Totals(Protocol):
    async def store(self, event: str, row: str, version: str, revision: str) -> None:
        """All writes or none: a worker that is killed anywhere in here leaves totals that are right."""

    async def read(self) -> Stored: ...

    async def close(self) -> None: ...


def open_totals(url: str) -> Totals:
    """`redis://...`, or `sqlite:///absolute/path` for a file that all workers of one machine share."""
    return FileTotals(url.removeprefix(_FILE)) if url.startswith(_FILE) else RedisTotals(url)


def default_totals(broker_url: str) -> str:
    """On the broker if it is one Redis, else a file in the directory for temporary ones."""
    on_broker = broker_url.startswith(("redis://", "rediss://", "unix://"))
    return broker_url if on_broker else f"{_FILE}{Path(tempfile.gettempdir(), 'usage-totals.db')}"


class RedisTotals:
    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url, decode_responses=True)

    async def store(self, event: str, row: str, version: str, revision: str) -> None:
        async with self._redis.pipeline(transaction=True) as write:
            write.hset(EVENTS, event, row)
            write.hincrby(HANDLED, event, 1)
            write.hincrby(BY_VERSION, version, 1)
            write.hincrby(BY_REVISION, revision, 1)
            await write.execute()

    async def read(self) -> Stored:
        handled, rows, versions, revisions = [
            {str(key): str(value) for key, value in (await self._redis.hgetall(name)).items()}
            for name in (HANDLED, EVENTS, BY_VERSION, BY_REVISION)
        ]
        return Stored(
            {event: int(count) for event, count in handled.items()},
            rows,
            {version: int(count) for version, count in versions.items()},
            {revision: int(count) for revision, count in revisions.items()},
        )

    async def close(self) -> None:
        await self._redis.aclose()


class FileTotals:
    def __init__(self, path: str) -> None:
        self._file = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        self._file.executescript(_TABLES)
        self._turn = asyncio.Lock()

    async def store(self, event: str, row: str, version: str, revision: str) -> None:
        def write() -> None:
            self._file.execute("BEGIN IMMEDIATE")
            with self._file:  # commits, or rolls back
                self._file.execute(_STORE, (event, row))
                self._file.execute(_COUNT, (version,))
                self._file.execute(_COUNT_REVISION, (revision,))

        async with self._turn:
            await asyncio.to_thread(write)

    async def read(self) -> Stored:
        events = self._file.execute("SELECT id, row, handled FROM events").fetchall()
        versions = self._file.execute("SELECT version, handled FROM versions").fetchall()
        revisions = self._file.execute("SELECT revision, handled FROM revisions").fetchall()
        return Stored(
            {event: handled for event, _, handled in events},
            {event: row for event, row, _ in events},
            dict(versions),
            dict(revisions),
        )

    async def close(self) -> None:
        self._file.close()
