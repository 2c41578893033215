"""Write events.jsonl: one day of usage events of a small hosting company, the same at every run.

python -m examples.usage.make_events
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

EVENTS = Path(__file__).with_name("events.jsonl")
PROJECTS = (
    "atlas",
    "birdwatch",
    "cargo-desk",
    "daylight",
    "evergreen",
    "ferry-times",
    "grain-market",
    "harbour",
)
#: metric -> (unit, smallest and largest value of one event)
METRICS = {
    "network.requests": ("count", 1, 400),
    "network.inbound": ("bytes", 200, 2_000_000),
    "network.outbound": ("bytes", 500, 9_000_000),
    "functions.executions": ("count", 1, 60),
    "functions.compute": ("mb_seconds", 64, 40_000),
    "storage.files": ("count", -3, 12),
    "messages.sent": ("count", 1, 25),
}
DAY = datetime(2026, 11, 1, tzinfo=UTC)


def events(count: int = 1_000, seed: int = 7) -> list[dict[str, object]]:
    """`count` events in order of time; busy projects come up more often than quiet ones."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(PROJECTS))]
    moments = sorted(rng.uniform(0, 86_400) for _ in range(count))
    rows: list[dict[str, object]] = []
    for number, moment in enumerate(moments):
        metric = rng.choice(tuple(METRICS))
        unit, low, high = METRICS[metric]
        rows.append(
            {
                "id": f"evt_{rng.getrandbits(64):016x}{number:04d}",
                "project": rng.choices(PROJECTS, weights)[0],
                "metric": metric,
                "unit": unit,
                "value": rng.randint(low, high),
                "at": (DAY + timedelta(seconds=round(moment, 3))).isoformat(),
                "region": rng.choice(("fra", "nyc", "sgp")),
            }
        )
    return rows


def main() -> None:
    EVENTS.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in events()))
    print(f"{EVENTS.name}: {len(events())} events")


if __name__ == "__main__":
    main()
