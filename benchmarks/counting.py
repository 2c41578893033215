"""Which requests a worker sends, as a Redis server sees them: in a run of its own, as watching costs time."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.contenders import Contender
from benchmarks.running import GLANCE, Run
from benchmarks.site import Site
from benchmarks.watchdog import Limits
from benchmarks.workload import Workload
from worker_runtime.brokers.redis import scripts


@dataclass(frozen=True)
class Requests:
    """Calls by name: of a script its own, else the command's."""

    calls: dict[str, int]
    messages: int

    @property
    def batch(self) -> float:
        """Messages that one claim takes over on average."""
        return self.messages / max(1, self.calls.get("claim", 0))


def count_requests(contender: Contender, workload: Workload, site: Site, limits: Limits) -> Requests:
    """Everything that the clients of one run of ours sent after publishing. Raises StuckError."""
    with tempfile.TemporaryDirectory(prefix="queueworker-bench-") as folder:
        run = Run(contender, workload, site, Path(folder), limits)
        run.publish()
        # A worker that is told to stop settles what it has done.
        with _watched(site.url) as calls, run.worker() as worker:
            while (started := run.records.starts().count) < workload.messages:
                run.watch.alive(worker, "the worker")
                run.watch.look("consuming", started)
                time.sleep(GLANCE)
        return Requests(dict(calls.most_common()), workload.messages)


@contextlib.contextmanager
def _watched(url: str) -> Iterator[Counter[str]]:
    """Counts what others than scripts and this harness send, until the context ends."""
    names = {script.sha: script.name for script in scripts.ALL}
    calls: Counter[str] = Counter()
    with redis.Redis.from_url(url) as client, redis.Redis.from_url(url) as ender:
        with client.monitor() as monitor:
            end = f"end of {id(calls)}"

            def listen() -> None:
                while True:
                    seen: dict[str, Any] = monitor.next_command()
                    if seen["command"] == f"ECHO {end}":
                        return
                    if seen["client_type"] != "lua":
                        name, _, rest = seen["command"].partition(" ")
                        calls[names.get(rest[:40], name.lower())] += 1

            thread = threading.Thread(target=listen, daemon=True)
            thread.start()
            try:
                yield calls
            finally:
                ender.echo(end)
                thread.join(60)
