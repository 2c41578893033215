"""The job of the throughput measurement: it does nothing, through everything a real job goes through."""

from __future__ import annotations

from typing import Any

from worker_runtime import App

app = App.from_env()


@app.job("null", prefetch=100)
async def null(payload: dict[str, Any]) -> None: ...
