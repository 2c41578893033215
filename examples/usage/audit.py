"""The Job of the gate UsageAccounting: do the totals have all that the canary of a change has confirmed?

python -m examples.usage.audit

The canary works on meanwhile. So what it confirmed is read first, and then what it stored: it stores before
it confirms, and what it does between the two looks can only add to the second one.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from examples.usage.totals import default_totals, open_totals
from worker_runtime.brokers.connect import broker_from_url


async def audit(url: str, namespace: str, queue: str, revision: str) -> dict[str, int]:
    """What the gate asks for. Rows are keyed by the event's id, so nothing is counted twice."""
    inspector = broker_from_url(url, namespace).inspector()
    totals = open_totals(os.environ.get("USAGE_TOTALS_URL") or default_totals(url))
    try:
        row = (await inspector.read(queue)).ledger.get(revision)
        stored = (await totals.read()).by_revision.get(revision, 0)
    finally:
        await inspector.close()
        await totals.close()
    expected = row.committed if row else 0
    counted = min(expected, stored)
    return {"expected": expected, "counted": counted, "lost": expected - counted, "duplicates": 0}


def main() -> None:
    names = ("BROKER_URL", "NAMESPACE", "QUEUE", "AUDIT_CANARY")
    answer = json.dumps(asyncio.run(audit(*(os.environ[f"QUEUEWORKER_{name}"] for name in names))))
    print(answer)
    Path(os.environ["QUEUEWORKER_RESULT_FILE"]).write_text(answer)


if __name__ == "__main__":
    main()
