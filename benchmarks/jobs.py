"""The app that is measured: a job for each kind of handler, through everything that real jobs go through."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from benchmarks.payloads import IO_SECONDS, burn, sent_of
from benchmarks.recorder import recorder
from worker_runtime import App, Message

app = App.from_env()
started = recorder()


@app.job("null")
async def null(payload: dict[str, Any]) -> None:
    started(sent_of(payload))


@app.job("io")
async def io(payload: dict[str, Any]) -> None:
    started(sent_of(payload))
    await asyncio.sleep(IO_SECONDS)


@app.job("cpu")
async def cpu(payload: dict[str, Any]) -> None:
    started(sent_of(payload))
    burn()


@app.job("mixed")
async def mixed(payload: dict[str, Any]) -> None:
    """Nine messages of ten are light, the tenth computes and waits."""
    sent = sent_of(payload)
    started(sent)
    if sent % 10 == 0:
        burn()
        await asyncio.sleep(IO_SECONDS)


if os.environ.get("BENCH_HOOKS"):

    @app.on_init
    def before(message: Message) -> None: ...

    @app.on_shutdown
    def after(message: Message) -> None: ...

    @app.on_success
    def confirmed(message: Message) -> None: ...
