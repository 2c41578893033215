"""Waiting that a stop ends early."""

from __future__ import annotations

import asyncio


async def pause(seconds: float, until: asyncio.Event) -> None:
    """Wait that many seconds, or return at once when `until` is set."""
    try:
        async with asyncio.timeout(seconds):
            await until.wait()
    except TimeoutError:
        pass
