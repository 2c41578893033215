"""What is measured on NATS JetStream. The workloads are those on Redis where the bars name the same."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.scenarios import HEADLINE, Scenario

NATS_SCENARIOS = (
    Scenario(
        "headline",
        "One process, one coroutine, prefetch 100, null handler, 100-byte payloads",
        (HEADLINE,),
        with_peers=True,
    ),
    Scenario(
        "fleet",
        "A fleet of 2 processes, both idle when the backlog appears",
        (replace(HEADLINE, processes=2, messages=150_000),),
    ),
    Scenario(
        "sparse",
        "A sparse queue, 50 messages a second",
        (replace(HEADLINE, rate=50.0, messages=500),),
        with_peers=True,
    ),
    Scenario(
        "settle",
        "100 acknowledgements confirmed one by one, sent together",
        (replace(HEADLINE, messages=20_000),),
        program="settling",
    ),
    Scenario("publish", "publish_many in batches of 1,000", (HEADLINE,), program="publishing"),
)
