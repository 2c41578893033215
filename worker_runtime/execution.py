"""One message through hooks and handler. Whatever user code does, the answer is done, failed, or later."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from worker_runtime.brokers.base import Delivery
from worker_runtime.deferred import Commit, Deferrals
from worker_runtime.hooks import Hook, HookKind
from worker_runtime.job import Job
from worker_runtime.logs import current_delivery
from worker_runtime.message import Context, Message

#: A reason is kept with every rejected message, so it must not grow with what the user prints.
LONGEST_REASON = 500
#: Of what is wrong with a payload, so many places are told.
MOST_FINDINGS = 5

log = logging.getLogger("queueworker.handler")


def describe(error: BaseException) -> str:
    """Type and message of an exception on one capped line that every encoding can hold. Never raises."""
    try:
        # A text may be megabytes long; no more than this can be left of it.
        text = " ".join(str(error)[: 10 * LONGEST_REASON].split())
    except BaseException:  # an exception whose own text raises
        text = "(its text could not be read)"
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    reason = readable(reason[: LONGEST_REASON + 1])
    return reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 1] + "…"


def misfit(error: Exception) -> str:
    """Like `describe`; of pydantic's findings the places and what is wrong there, without the values."""
    if not isinstance(error, ValidationError):
        return describe(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'all of it'}: {one['msg']}" for one in found[:MOST_FINDINGS]]
    if len(found) > MOST_FINDINGS:
        told.append(f"and {len(found) - MOST_FINDINGS} more")
    return describe(ValueError("; ".join(told))).removeprefix("ValueError: ")


def readable(text: str) -> str:
    """The same text with everything escaped that cannot be shown, lone surrogates among it."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message is not done."""

    reason: str
    error: BaseException
    #: False when the payload is not what the handler takes.
    fits: bool = True
    #: True when the handler was cancelled because another worker has its message: there is nothing to settle.
    superseded: bool = False


class Execution:
    """Bound to one job in one process. Raises RegistrationError when a resource is missing."""

    def __init__(
        self,
        job: Job,
        hooks: Sequence[Hook],
        resources: Mapping[str, Any],
        pool: ThreadPoolExecutor | None,
        deferrals: Deferrals,
    ) -> None:
        #: Set before the worker cancels its own handlers; any other cancellation comes from user code.
        self.abandoned = False
        self._job = job
        self._resources = resources
        self._pool = pool
        self._deferrals = deferrals
        self._with_commit = job.binding.needs_commit
        self._prepare, self._call = job.binding.resolve(resources)
        self._init = [hook for hook in hooks if hook.kind is HookKind.INIT]
        self._shutdown = [hook for hook in hooks if hook.kind is HookKind.SHUTDOWN]
        self._error = [hook for hook in hooks if hook.kind is HookKind.ERROR]
        per_message = {HookKind.INIT, HookKind.SHUTDOWN, HookKind.ERROR, HookKind.SUCCESS}
        self._with_context = job.binding.needs_context or any(hook.kind in per_message for hook in hooks)
        self._plain = job.is_async and not self._init and not self._shutdown

    def context(self, delivery: Delivery) -> Context | None:
        """A context, when a handler or hook of this job can see it."""
        if not self._with_context:
            return None
        commit = self._deferrals.new(delivery) if self._with_commit else None
        return Context(Message.of(delivery), self._resources, commit=commit)

    async def run(self, delivery: Delivery, context: Context | None) -> Failure | Commit | None:
        """None when the message is done, a Commit when it will be later, else why it is rejected."""
        try:
            try:
                arguments = self._prepare(delivery, context)
            except Exception as error:
                reason = f"the payload does not fit {self._job.binding.payload_type}: {misfit(error)}"
                log.error("%s", reason, extra={"queue": delivery.queue})
                await self.tell(error, context)
                return Failure(reason[:LONGEST_REASON], error, fits=False)
            if self._plain:
                result = await self._call(*arguments)
            else:
                result = await self._run_with_hooks(delivery, context, arguments)
            if result is not None or self._with_commit:
                return self._deferral(result, delivery, context)
            return None
        except BaseException as error:
            # Also SystemExit, KeyboardInterrupt and CancelledError: user code may raise them, and the
            # worker goes on with the next message. A coroutine that is given up may not go on.
            if isinstance(error, GeneratorExit) and self.abandoned:
                raise
            if isinstance(error, asyncio.CancelledError):
                if self.abandoned:
                    raise
                _stay_alive()
                if delivery.superseded and self._job.cancel_superseded:
                    log.warning(
                        "handler cancelled: another worker has its message", extra={"queue": delivery.queue}
                    )
                    return Failure("superseded", error, superseded=True)
            reason = describe(error)
            log.error("handler failed: %s", reason, exc_info=error, extra={"queue": delivery.queue})
            await self.tell(error, context)
            return Failure(reason, error)

    def _deferral(self, result: Any, delivery: Delivery, context: Context | None) -> Commit | None:
        """What decides a message whose handler has returned; None when its return is the end."""
        if context is not None and context.commit is not None:
            return context.commit
        if not isinstance(result, Future) and not inspect.isawaitable(result):
            return None
        commit = self._deferrals.new(delivery)
        commit.follow(result)
        return commit

    async def _run_with_hooks(
        self, delivery: Delivery, context: Context | None, arguments: tuple[Any, ...]
    ) -> Any:
        for hook in self._init:
            await hook.run(self._resources, context)
        if self._job.is_async:
            result = await self._call(*arguments)
        else:
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._pool, _in_thread, self._call, arguments, delivery)
            if inspect.iscoroutine(result):  # an async function behind a plain wrapper
                result = await result
        for hook in self._shutdown:
            await hook.run(self._resources, context)
        return result

    async def tell(self, error: BaseException, context: Context | None) -> None:
        """Run the error hooks."""
        for hook in self._error:
            await self.run_aside(hook, context, error)

    async def run_aside(
        self, hook: Hook, context: Context | None, error: BaseException | None = None
    ) -> None:
        """Run a hook whose failure changes nothing for its message; it is only told."""
        try:
            await hook.run(self._resources, context, error)
        except BaseException as failure:
            if isinstance(failure, GeneratorExit) and self.abandoned:
                raise
            if isinstance(failure, asyncio.CancelledError):
                if self.abandoned:
                    raise
                _stay_alive()
            log.error(
                "%s hook %s failed: %s", hook.kind.value, hook.name, describe(failure), exc_info=failure
            )


def _stay_alive() -> None:
    """Take back what user code did to the handler's task: it serves the next message too."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _in_thread(call: Callable[..., Any], arguments: tuple[Any, ...], delivery: Delivery) -> Any:
    current_delivery.set(delivery)
    try:
        return call(*arguments)
    except (StopIteration, GeneratorExit) as error:
        # No future can carry these two to the coroutine that awaits it: it would wait for ever, or be closed.
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
