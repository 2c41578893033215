"""What belongs together in one figure: workloads that are run interleaved, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.contenders import Contender
from benchmarks.workload import Workload

#: The workload of the bars: one process, one coroutine, prefetch 100, null handler, 100-byte payloads.
HEADLINE = Workload()


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    workloads: tuple[Workload, ...]
    #: Peers run the first workload, too.
    with_peers: bool = False
    #: Instead of a worker, measure what this program of ours says: `benchmarks.publishing`, `.settling`.
    program: str = ""
    #: Count requests by name, on a server that is watched.
    count_only: bool = False
    #: Runs of each; 0 is as many as the command says.
    repeat: int = 0

    def entries(self, ours: Contender, peers: Sequence[Contender]) -> list[tuple[Contender, Workload]]:
        """Who runs what, in the order of one round."""
        found = [(ours, workload) for workload in self.workloads]
        if self.with_peers:
            first = self.workloads[0]
            if first.rate:  # takes as long for everybody, so one setting of each peer has to do
                chosen = {peer.peer: peer for peer in reversed(peers)}.values()
                found += [(peer, first) for peer in reversed(chosen)]
            else:
                found += [(peer, first.scaled(peer.share)) for peer in peers]
        return found


def _at(shape: tuple[int, int, int], kind: str, messages: int) -> Workload:
    processes, coroutines, prefetch = shape
    return Workload(processes, coroutines, prefetch, kind=kind, messages=messages)


SCENARIOS = (
    Scenario(
        "headline",
        "One process, one coroutine, prefetch 100, null handler, 100-byte payloads",
        (HEADLINE,),
        with_peers=True,
    ),
    Scenario(
        "hooks",
        "The same with an init, a shutdown and a success hook",
        (HEADLINE, replace(HEADLINE, hooks=True)),
    ),
    Scenario(
        "prefetch",
        "Prefetch with one coroutine",
        tuple(
            replace(HEADLINE, prefetch=prefetch, messages=messages)
            for prefetch, messages in ((1, 10_000), (8, 50_000), (32, 100_000), (100, 100_000))
        ),
    ),
    Scenario(
        "requests",
        "Requests by name, on a server that is watched",
        tuple(
            replace(HEADLINE, prefetch=prefetch, messages=messages)
            for prefetch, messages in ((1, 500), (8, 4_000), (32, 16_000), (100, 20_000))
        ),
        count_only=True,
        repeat=1,
    ),
    Scenario(
        "payload",
        "Payloads",
        tuple(
            replace(HEADLINE, size=size, messages=messages)
            for size, messages in ((100, 100_000), (1_000, 100_000), (100_000, 5_000))
        ),
    ),
    Scenario(
        "handlers",
        "Handlers that wait 2 ms (io), compute 0.1 ms (cpu), or do both for one message of ten (mixed)",
        (
            _at((1, 32, 100), "io", 20_000),
            _at((1, 100, 200), "io", 40_000),
            _at((2, 32, 100), "io", 40_000),
            _at((1, 1, 100), "cpu", 10_000),
            _at((2, 1, 100), "cpu", 20_000),
            _at((1, 32, 100), "mixed", 40_000),
            _at((2, 32, 100), "mixed", 60_000),
        ),
    ),
    Scenario(
        "fleet",
        "A fleet of 2 and of 8 processes, all of them idle when the backlog appears",
        (
            replace(HEADLINE, processes=2, messages=150_000),
            replace(HEADLINE, processes=8, messages=200_000),
            _at((8, 16, 100), "io", 100_000),
        ),
    ),
    Scenario(
        "persistence",
        "Persistence off and appendfsync everysec",
        (HEADLINE, replace(HEADLINE, appendonly=True)),
    ),
    Scenario(
        "history",
        "Entries that older workers left in the processing list",
        # A bar of a tenth needs longer runs than a ratio of five does.
        tuple(replace(HEADLINE, history=entries, messages=300_000) for entries in (0, 10_000, 100_000)),
    ),
    Scenario(
        "sparse",
        "A sparse queue, 50 messages a second, with 1, 10 and 100 idle worker processes",
        tuple(replace(HEADLINE, processes=workers, rate=50.0, messages=1_000) for workers in (1, 10, 100)),
        with_peers=True,
    ),
    Scenario("publish", "publish_many in batches of 1,000", (HEADLINE,), program="publishing"),
    Scenario("memory", "Memory over 1,000,000 messages", (replace(HEADLINE, messages=1_000_000),), repeat=1),
)


def quick(scenario: Scenario) -> Scenario:
    """A twentieth of the messages and one run: to see that everything works, not for figures."""
    return replace(
        scenario, workloads=tuple(workload.scaled(0.05) for workload in scenario.workloads), repeat=1
    )
