"""Success hooks: each runs after the broker's confirmation of its own message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worker_runtime.brokers.base import Delivery
from worker_runtime.execution import Execution
from worker_runtime.hooks import Hook, HookKind
from worker_runtime.logs import current_delivery
from worker_runtime.message import Context, Message


class Confirmed:
    """Messages whose success hooks have not all run yet, in the order of their confirmation. `on_told` is
    called each time that one of them is through."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        execution: Execution,
        resources: Mapping[str, Any],
        on_told: Callable[[], None],
    ) -> None:
        #: Without any, nothing need be added.
        self.hooks = [hook for hook in hooks if hook.kind is HookKind.SUCCESS]
        self._execution, self._resources, self._on_told = execution, resources, on_told
        self._waiting: deque[tuple[Delivery, Context | None]] = deque()
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, delivery: Delivery, context: Context | None) -> None:
        """The broker has confirmed it. `context` is that of its handler, where it had one."""
        self._waiting.append((delivery, context))
        self._added.set()

    async def tell(self) -> None:
        """Run the hooks of one message after the other, without an end."""
        while True:
            if not self._waiting:
                self._added.clear()
                await self._added.wait()
                continue
            delivery, context = self._waiting[0]
            current_delivery.set(delivery)
            context = context or Context(Message.of(delivery), self._resources)
            for hook in self.hooks:
                await self._execution.run_aside(hook, context)
            self._waiting.popleft()
            self._on_told()
