"""An event loop on its own thread, for what a blocking handler must not be able to stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from worker_runtime.keeping import keep_going

Result = TypeVar("Result")


class Background:
    """Start it, hand it coroutines, stop it last."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine there. The future belongs to the calling thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def keep(
        self, make: Callable[[], Awaitable[None]], name: str, give_up: Callable[[str], None]
    ) -> Future[None]:
        """Run a loop there for as long as the process lives; see `keep_going`."""
        return self.submit(keep_going(make, name, give_up))

    async def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine there and await its result here."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def stop(self, timeout: float = 5.0) -> None:
        """Cancel what still runs there and end the thread. `timeout` in seconds."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            rest = asyncio.all_tasks(self.loop)
            for task in rest:
                task.cancel()
            if rest:
                self.loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        finally:
            self.loop.close()
