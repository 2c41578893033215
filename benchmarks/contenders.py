"""Who is measured: how each publishes and how its worker is started. Ours is the product, `queueworker run`
with its default settings and its metrics served; a peer runs with the settings that were fastest for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import environments
from benchmarks.workload import Workload
from worker_runtime.brokers.embedded import free_port

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "bench"


@dataclass(frozen=True)
class Contender:
    """`work` and `publish` are command lines; both see the BENCH_* variables of the run."""

    name: str
    #: The group whose best counts: `dramatiq`, `bullmq`, ...
    peer: str
    publish: Callable[[Workload], list[str]]
    work: Callable[[Workload], list[str]]
    #: Commands that its client sends; `INFO commandstats` counts those inside scripts as well.
    sends: tuple[str, ...]
    #: How many messages it is given for each that we get: slow peers need fewer for a run as long.
    share: float = 1.0
    env: dict[str, str] = field(default_factory=dict)
    #: Prepares what it runs in (minutes the first time). Raises environments.SetupError.
    prepare: Callable[[], None] = lambda: None

    @property
    def ours(self) -> bool:
        return self.peer == "queueworker"


def _python(*arguments: str) -> Callable[[Workload], list[str]]:
    return lambda _: [sys.executable, *arguments]


def queueworker(name: str = "queueworker", **env: str) -> Contender:
    def work(workload: Workload) -> list[str]:
        return [sys.executable, "-m", "worker_runtime.cli.main", "run", "benchmarks.jobs:app"]

    return Contender(
        name=name,
        peer="queueworker",
        publish=_python("-m", "benchmarks.publishing"),
        work=work,
        env=env,
        sends=("evalsha", "eval", "blmove"),
    )


def _peer(
    name: str,
    program: str,
    work: Callable[[Path, Workload], list[str]],
    share: float,
    sends: tuple[str, ...],
    **env: str,
) -> Contender:
    peer = name.split()[0]

    def python() -> Path:
        return environments.python_of(peer)

    return Contender(
        name=name,
        peer=peer,
        publish=lambda _: [str(python()), "-m", f"benchmarks.peers.{program}"],
        work=lambda workload: [str(python()), "-m", *work(python(), workload)],
        share=share,
        env=env,
        sends=sends,
        prepare=lambda: environments.prepare(peer),
    )


def _dramatiq(threads: int, prefetch: int) -> Contender:
    return _peer(
        f"dramatiq {threads} threads, prefetch {prefetch}",
        "dramatiq_peer",
        lambda _, w: [
            *("dramatiq", "benchmarks.peers.dramatiq_peer"),
            *("--processes", str(w.processes), "--threads", str(threads)),
        ],
        share=0.2,
        sends=("evalsha",),
        dramatiq_queue_prefetch=str(prefetch),
    )


def _taskiq(prefetch: int) -> Contender:
    return _peer(
        f"taskiq stream, 100 tasks, prefetch {prefetch}",
        "taskiq_peer",
        lambda _, w: [
            *("taskiq", "worker", "benchmarks.peers.taskiq_peer:broker"),
            *("--workers", str(w.processes), "--max-async-tasks", "100", "--max-prefetch", str(prefetch)),
            *("--log-level", "WARNING"),
        ],
        share=0.1,
        sends=("xreadgroup", "xack", "xautoclaim", "set", "multi", "exec", "script", "evalsha"),
    )


def _saq(concurrency: int) -> Contender:
    return _peer(
        f"saq concurrency {concurrency}, ttl -1, uvloop",
        "saq_peer",
        lambda _, w: ["saq", "benchmarks.peers.saq_peer.settings", "--workers", str(w.processes)],
        share=0.08,
        # A script of its maintenance calls GET, too: 100 times in a run.
        sends=("blmove", "get", "set", "publish", "lrem", "zrem", "del", "multi", "exec", "evalsha"),
        BENCH_CONCURRENCY=str(concurrency),
    )


def _bullmq(concurrency: int, remove: bool) -> Contender:

    def run(program: str) -> Callable[[Workload], list[str]]:
        return lambda _: [str(environments.node()), str(environments.folder_of("bullmq") / program)]

    return Contender(
        name=f"bullmq concurrency {concurrency}{', removeOnComplete' if remove else ''}",
        peer="bullmq",
        publish=run("producer.mjs"),
        work=run("worker.mjs"),
        share=0.5,
        env={"BENCH_CONCURRENCY": str(concurrency), "BENCH_REMOVE": "1" if remove else ""},
        sends=("evalsha", "bzpopmin"),
        prepare=lambda: environments.prepare("bullmq"),
    )


def all_peers() -> list[Contender]:
    """On Redis, each peer with the settings that are worth comparing."""
    return [
        _bullmq(100, remove=True),
        _bullmq(100, remove=False),
        _dramatiq(8, 100),
        _dramatiq(8, 1000),
        _dramatiq(4, 100),
        _taskiq(100),
        _saq(100),
    ]


def _taskiq_nats(batch: int) -> Contender:
    return _peer(
        f"taskiq-nats pull, batch {batch}, 100 tasks",
        "taskiq_nats_peer",
        lambda _, w: [
            *("taskiq", "worker", "benchmarks.peers.taskiq_nats_peer:broker"),
            *("--workers", str(w.processes), "--max-async-tasks", "100", "--max-prefetch", "100"),
            *("--log-level", "WARNING"),
        ],
        share=0.4 if batch > 1 else 0.15,
        sends=(),
        BENCH_BATCH=str(batch),
    )


def _faststream(how: str) -> Contender:
    """`how`: `pull` starts a handler for each message of a batch, `workers` has 100 tasks that take them."""
    return _peer(
        f"faststream {how}, batch 100, uvloop",
        "faststream_peer",
        lambda _, w: [
            *("faststream", "run", "benchmarks.peers.faststream_peer:app", "--log-level", "warning"),
            *(("--workers", str(w.processes)) if w.processes > 1 else ()),
        ],
        share=0.3 if how == "pull" else 0.15,
        sends=(),
        BENCH_HOW=how,
    )


def nats_peers() -> list[Contender]:
    """The same on NATS JetStream. None of them waits for the server to confirm an acknowledgement."""
    return [_taskiq_nats(100), _taskiq_nats(1), _faststream("pull"), _faststream("workers")]


def environment(contender: Contender, workload: Workload, url: str, records: Path) -> dict[str, str]:
    """Of producer and worker. Settings of the person's own shell do not reach them."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("QUEUEWORKER_", "BENCH_"))}
    return (
        env
        | {
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "",
            "QUEUEWORKER_BROKER_URL": url,
            "QUEUEWORKER_NAMESPACE": NAMESPACE,
            "QUEUEWORKER_QUEUE": workload.kind,
            "QUEUEWORKER_ADMIN_PORT": str(free_port()),
            "QUEUEWORKER_PROCESSES": str(workload.processes),
            "QUEUEWORKER_COROUTINES": str(workload.coroutines),
            "QUEUEWORKER_PREFETCH": str(workload.prefetch),
            "BENCH_URL": url,
            "BENCH_RECORDS": str(records),
            "BENCH_COUNT": str(workload.messages),
            "BENCH_SIZE": str(workload.size),
            "BENCH_RATE": str(workload.rate),
            "BENCH_EVERY": "1" if workload.rate else "64",
            "BENCH_HANDLER": workload.kind,
            "BENCH_HOOKS": "1" if workload.hooks else "",
        }
        | contender.env
    )
