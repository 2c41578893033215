"""An app that needs no store: any broker will do."""

from __future__ import annotations

from worker_runtime import App

app = App.from_env()


@app.job("work", coroutines=2, prefetch=4)
async def work(payload: dict[str, str]) -> None:
    assert payload["id"]
