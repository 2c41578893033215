"""The second act: a canary over four arms, its promotion, and a rollback, under load all the time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator

from rich.console import Console

from examples.demo.change import EVENT_FILE, Apply, Until, newer
from examples.demo.picture import LOOK, NAMESPACE, QUEUE, Progressing, is_ready
from examples.demo.up import ROOT, DemoFailed
from worker_runtime.brokers.base import BrokerError
from worker_runtime.brokers.connect import broker_from_url

CANARY_RESOURCE = ROOT / "examples" / "queueworker-canary.yaml"
#: Work that waits, so that every worker has as much as it can take: a canary that is idle proves nothing.
BACKLOG, BATCH = 500, 100


async def canary_and_rollback(
    progress: Progressing, url: str, text: str, apply: Apply, until: Until, console: Console, patience: float
) -> list[bytes]:
    """Bring out a newer version of `text` in steps, and go back once it serves. All that was published, and
    is settled. `patience` is in seconds, for each wait. Raises DemoFailed where a gate does not pass."""
    published: list[bytes] = []
    stop = asyncio.Event()
    feeding = asyncio.create_task(_feed(progress, url, published, stop))
    old = progress.status["stable"]["revision"]
    try:
        await until("the first commits", patience, lambda: progress.settled > 0 or feeding.done())
        await apply(newer(text))
        shown: set[str] = set()

        def promoted() -> bool:
            _tell_gates(progress, shown, console)
            stable = progress.status.get("stable", {}).get("revision")
            return feeding.done() or (stable not in (None, old) and is_ready(progress.status))

        await until("the promotion", 3 * patience, promoted)
        leaving = progress.status["stable"]["revision"]
        console.print(f"[green]{leaving} is promoted.[/] Now back to {old}, while work keeps coming.")
        await apply(text)
        registry = -1

        def back() -> bool:
            nonlocal registry
            registry = _tell_registry(progress, leaving, registry, console)
            stable = progress.status.get("stable", {}).get("revision")
            return feeding.done() or (stable == old and is_ready(progress.status))

        await until("the end of the rollback", 2 * patience, back)
        stop.set()
        await feeding
        await until("the last settlement", patience, lambda: progress.settled >= progress.published)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    return published


def _tell_gates(progress: Progressing, shown: set[str], console: Console) -> None:
    """Each verdict once."""
    for row in progress.status.get("gates", []):
        key = f"{row['step']} {row['type']} {row['verdict']}"
        if key not in shown:
            shown.add(key)
            colour = "green" if row["verdict"] == "Passed" else "yellow"
            console.print(
                f"prefetch {row['arm']:3}: {row['type']} [{colour}]{row['verdict']}[/]. {row['message']}"
            )
            if row["verdict"] != "Passed":
                raise DemoFailed(f"the gate {row['type']} stopped the canary: {row['message']}")


def _tell_registry(progress: Progressing, leaving: str, before: int, console: Console) -> int:
    """What the leaving revision still owns, whenever that changes."""
    if progress.reading is None or leaving not in progress.reading.fences:
        return before
    owned = sum(progress.reading.owned_by.get(leaving, {}).values())
    if owned != before:
        console.print(f"{leaving} is fenced and owns {owned}")
    return owned


async def _feed(progress: Progressing, url: str, published: list[bytes], stop: asyncio.Event) -> None:
    """Publish whenever less than the backlog waits."""
    publisher = broker_from_url(url, NAMESPACE).publisher()
    events, seen = _endless(), progress.reading
    try:
        while not stop.is_set():
            if progress.reading is not None and progress.reading is not seen:
                seen = progress.reading
                missing = BACKLOG - seen.ready
                if missing > 0:
                    batch = list(itertools.islice(events, max(missing, BATCH)))
                    published += batch
                    progress.published += len(await publisher.publish_many(QUEUE, batch))
            await asyncio.sleep(LOOK / 5)
    except BrokerError as error:
        raise DemoFailed(f"after {progress.published} jobs, publishing failed: {error}") from error
    finally:
        await publisher.close()


def _endless() -> Iterator[bytes]:
    """The events of the file again and again, each with an id of its own."""
    rows = [json.loads(row) for row in EVENT_FILE.read_text().splitlines()]
    for turn in itertools.count():
        for row in rows:
            yield json.dumps({**row, "id": f"{row['id']}-{turn}"}, separators=(",", ":")).encode()
