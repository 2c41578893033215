"""The first act: one thousand jobs through a change of version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from examples.demo.picture import NAMESPACE, QUEUE, Progressing, is_ready
from examples.demo.up import ROOT, DemoFailed
from worker_runtime.brokers.base import BrokerError
from worker_runtime.brokers.connect import broker_from_url

RESOURCE = ROOT / "examples" / "queueworker.yaml"
#: By the word for --broker.
RESOURCES = {"redis": RESOURCE, "nats": ROOT / "examples" / "queueworker-nats.yaml"}
EVENT_FILE = ROOT / "examples" / "usage" / "events.jsonl"
#: Slow enough that the change of version is seen, fast enough for a demo of half a minute.
BATCH, PAUSE, PAUSE_AFTER_CHANGE = 10, 0.08, 0.16
#: Jobs that are kept until the change is through, so that the new version has work on a slow machine too.
KEPT = 100

#: Brings out the text of a resource.
Apply = Callable[[str], Awaitable[None]]
#: Waits for something with that name for so many seconds, until it is so. Raises what the demo fails with.
Until = Callable[[str, float, Callable[[], bool]], Awaitable[None]]


def newer(text: str) -> str:
    """The resource with the next version of its workers."""
    changed = text.replace("value: v1", "value: v2")
    assert changed != text, "the resource has no `value: v1` to change"
    return changed


async def change_of_version(
    progress: Progressing,
    url: str,
    events: Sequence[bytes],
    text: str,
    apply: Apply,
    until: Until,
    patience: float,
) -> None:
    """Publish `events`, bring out a newer version of `text` half way, and wait until it serves alone and all
    is settled. `patience` is in seconds, for each wait."""
    old = progress.status["stable"]["revision"]
    progress.stage = f"{old} consumes"
    change, changed = asyncio.Event(), asyncio.Event()
    publishing = asyncio.create_task(_publish(progress, url, events, change, changed))
    try:
        await _half_way(publishing, change)
        await apply(newer(text))
        progress.stage = "version changed: both consume"

        def rolled() -> bool:
            status = progress.status
            return status.get("stable", {}).get("revision") not in (None, old) and is_ready(status)

        await until("the end of the change of version", patience, rolled)
        progress.stage = f"{progress.status['stable']['revision']} consumes"
        changed.set()
        await publishing
        await until("the last settlement", patience, lambda: progress.settled >= len(events))
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)


async def _publish(
    progress: Progressing, url: str, events: Sequence[bytes], change: asyncio.Event, changed: asyncio.Event
) -> None:
    """Publish in small batches; say when half is out, and keep the last until the version has `changed`."""
    publisher = broker_from_url(url, NAMESPACE).publisher()
    try:
        for start in range(0, len(events), BATCH):
            if start >= len(events) - KEPT:
                await changed.wait()
            progress.published += len(await publisher.publish_many(QUEUE, events[start : start + BATCH]))
            if progress.published >= len(events) // 2:
                change.set()
            await asyncio.sleep(PAUSE_AFTER_CHANGE if change.is_set() else PAUSE)
    except BrokerError as error:
        raise DemoFailed(f"after {progress.published} jobs, publishing failed: {error}") from error
    finally:
        await publisher.close()


async def _half_way(publishing: asyncio.Task[None], change: asyncio.Event) -> None:
    """Wait until half is published. Raises what ended the publishing before."""
    waiting = asyncio.ensure_future(change.wait())
    await asyncio.wait({publishing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not change.is_set():
        publishing.result()
