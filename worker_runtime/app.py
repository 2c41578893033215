"""The public face: an App registers jobs and hooks, and publishes messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from worker_runtime.binding import RegistrationError
from worker_runtime.brokers.base import MAX_TAKEOVERS, Broker, Publisher, Timing
from worker_runtime.brokers.connect import broker_from_url
from worker_runtime.brokers.nats.address import with_credentials
from worker_runtime.hooks import Hook, HookKind, make_hook
from worker_runtime.job import COMMIT_TIMEOUT, Job, make_job
from worker_runtime.outbox import Outbox, encode_payload
from worker_runtime.retry import Retry
from worker_runtime.settings import Settings, SettingsError, settings_from

Function = TypeVar("Function", bound=Callable[..., Any])


def timing_from(settings: Settings, base: Timing = Timing()) -> Timing:  # noqa: B008 - frozen
    """The durations that follow from the settings. A reservation may live half as long as a delivery."""
    return replace(
        base,
        expiry=settings.expiry_seconds,
        reservation=settings.expiry_seconds / 2,
        block=settings.block_seconds,
        job_ttl=settings.job_ttl_seconds,
    )


class App:
    """Jobs, hooks and resources of one program, and the way to publish. Creating one opens no connection."""

    def __init__(
        self,
        broker: str = "redis://127.0.0.1:6379/0",
        namespace: str = "utopia-queue",
        timing: Timing = Timing(),  # noqa: B008 - frozen
    ) -> None:
        self.broker_url = broker
        self.namespace = namespace
        self.timing = timing
        #: Handlers and hooks get these by parameter name. Fill it at import or in a worker start hook.
        self.resources: dict[str, Any] = {}
        self.jobs: dict[str, Job] = {}
        self.hooks: list[Hook] = []
        self._publisher: Publisher | None = None
        self._outbox: Outbox | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> App:
        """Read broker, namespace and durations from QUEUEWORKER_* variables. Raises SettingsError."""
        settings = settings_from(environ)
        return cls(settings.broker_url, settings.namespace, timing_from(settings))

    # -- registration ------------------------------------------------------------------------------

    def job(
        self,
        queue: str,
        *,
        coroutines: int = 1,
        prefetch: int | None = None,
        groups: Iterable[str] = (),
        retry: Retry | None = None,
        max_takeovers: int = MAX_TAKEOVERS,
        commit_timeout: float = COMMIT_TIMEOUT,
        cancel_superseded: bool = False,
    ) -> Callable[[Function], Function]:
        """Register the decorated function as the handler of a queue. `prefetch` defaults to `coroutines`.
        Without `retry` a failed message goes to the failed list. A message that lost its owner
        `max_takeovers` times is a dead letter (0: never). A handler that takes a `Commit` or returns a
        future has `commit_timeout` seconds to decide. With `cancel_superseded` an async handler is cancelled
        when this worker learns that another one has taken its message over; else it can only see it in
        `Message.superseded`. Raises RegistrationError."""
        localns = sys._getframe(1).f_locals

        def register(handler: Function) -> Function:
            if queue in self.jobs:
                raise RegistrationError(
                    f"job {queue!r} is registered twice: by {self.jobs[queue].name} and now by "
                    f"{handler.__module__}.{handler.__qualname__}. One queue has one handler."
                )
            self.jobs[queue] = make_job(
                queue,
                handler,
                coroutines,
                prefetch,
                groups,
                localns,
                retry=retry,
                max_takeovers=max_takeovers,
                commit_timeout=commit_timeout,
                cancel_superseded=cancel_superseded,
            )
            return handler

        return register

    @overload
    def on_init(self, function: Function) -> Function: ...
    @overload
    def on_init(self, *, groups: Iterable[str] = ...) -> Callable[[Function], Function]: ...
    def on_init(self, function: Any = None, *, groups: Iterable[str] = ()) -> Any:
        """Run before each handler of these groups (default: of every job)."""
        return self._hook(HookKind.INIT, function, groups)

    @overload
    def on_shutdown(self, function: Function) -> Function: ...
    @overload
    def on_shutdown(self, *, groups: Iterable[str] = ...) -> Callable[[Function], Function]: ...
    def on_shutdown(self, function: Any = None, *, groups: Iterable[str] = ()) -> Any:
        """Run after each handler that returned, before the commit."""
        return self._hook(HookKind.SHUTDOWN, function, groups)

    @overload
    def on_success(self, function: Function) -> Function: ...
    @overload
    def on_success(self, *, groups: Iterable[str] = ...) -> Callable[[Function], Function]: ...
    def on_success(self, function: Any = None, *, groups: Iterable[str] = ()) -> Any:
        """Run after the broker has confirmed the commit of a message."""
        return self._hook(HookKind.SUCCESS, function, groups)

    @overload
    def on_error(self, function: Function) -> Function: ...
    @overload
    def on_error(self, *, groups: Iterable[str] = ...) -> Callable[[Function], Function]: ...
    def on_error(self, function: Any = None, *, groups: Iterable[str] = ()) -> Any:
        """Run after a handler raised; a parameter annotated with an exception type gets the exception."""
        return self._hook(HookKind.ERROR, function, groups)

    @overload
    def on_worker_start(self, function: Function) -> Function: ...
    @overload
    def on_worker_start(self, *, groups: Iterable[str] = ...) -> Callable[[Function], Function]: ...
    def on_worker_start(self, function: Any = None, *, groups: Iterable[str] = ()) -> Any:
        """Run once in each worker process before its first message."""
        return self._hook(HookKind.WORKER_START, function, groups)

    @overload
    def on_worker_stop(self, function: Function) -> Function: ...
    @overload
    def on_worker_stop(self, *, groups: Iterable[str] = ...) -> Callable[[Function], Function]: ...
    def on_worker_stop(self, function: Any = None, *, groups: Iterable[str] = ()) -> Any:
        """Run once in each worker process after its last settlement."""
        return self._hook(HookKind.WORKER_STOP, function, groups)

    def _hook(self, kind: HookKind, function: Any, groups: Iterable[str]) -> Any:
        localns = sys._getframe(2).f_locals

        def register(hook: Function) -> Function:
            self.hooks.append(make_hook(kind, hook, groups, localns))
            return hook

        return register if function is None else register(function)

    # -- what the worker process asks --------------------------------------------------------------

    def apply(self, settings: Settings, given: Iterable[str]) -> None:
        """Let explicitly given settings win over what the code says. `given` are field names of Settings."""
        explicit = set(given)
        if "broker_url" in explicit:
            self.broker_url = settings.broker_url
        elif "nats_credentials" in explicit:
            self.broker_url = with_credentials(self.broker_url, settings.nats_credentials)
        if "namespace" in explicit:
            self.namespace = settings.namespace
        timing = self.timing
        if "expiry_seconds" in explicit:
            timing = replace(timing, expiry=settings.expiry_seconds, reservation=settings.expiry_seconds / 2)
        if "block_seconds" in explicit:
            timing = replace(timing, block=settings.block_seconds)
        if "job_ttl_seconds" in explicit:
            timing = replace(timing, job_ttl=settings.job_ttl_seconds)
        self.timing = timing

    def selected_jobs(self, settings: Settings) -> list[Job]:
        """The jobs that a worker with these settings runs, with their limits. Raises SettingsError."""
        if not self.jobs:
            raise SettingsError("The app has no job. Register one with @app.job('queue-name').")
        chosen = list(self.jobs.values())
        if settings.queue:
            if settings.queue not in self.jobs:
                raise SettingsError(
                    f"QUEUEWORKER_QUEUE={settings.queue!r} names no job of the app; it has "
                    f"{', '.join(sorted(self.jobs))}."
                )
            chosen = [self.jobs[settings.queue]]
        if settings.max_takeovers is not None:
            chosen = [replace(job, max_takeovers=settings.max_takeovers) for job in chosen]
        if settings.commit_timeout_seconds is not None:
            chosen = [replace(job, commit_timeout=settings.commit_timeout_seconds) for job in chosen]
        if settings.coroutines is None and settings.prefetch is None:
            return chosen
        if len(chosen) > 1:
            raise SettingsError(
                "QUEUEWORKER_COROUTINES or QUEUEWORKER_PREFETCH is set, but the app has the jobs "
                f"{', '.join(sorted(self.jobs))}. Name one with QUEUEWORKER_QUEUE (--queue)."
            )
        try:
            return [chosen[0].with_limits(settings.coroutines, settings.prefetch)]
        except RegistrationError as error:
            raise SettingsError(str(error)) from None

    def make_broker(self) -> Broker:
        """The broker that the app's URL names. Opens no connection. Raises BrokerError."""
        return broker_from_url(self.broker_url, self.namespace, self.timing)

    # -- publishing --------------------------------------------------------------------------------

    async def publish(self, queue: str, payload: Any) -> str:
        """Publish one message and return its pid when the broker has confirmed it. `bytes` are taken as
        JSON already. Raises PayloadRefusedError, BrokerUnavailableError (then it may or may not have been
        published) or BrokerRefusedError."""
        return (await self.publish_many(queue, [payload]))[0]

    async def publish_many(self, queue: str, payloads: Iterable[Any]) -> Sequence[str]:
        """Publish in order and return the pids in the same order, when the broker has confirmed all."""
        encoded = [encode_payload(payload) for payload in payloads]
        return await self._connected().publish_many(queue, encoded)

    async def enqueue(self, queue: str, payload: Any) -> None:
        """Hand one message over to a background sender. Returns at once, or waits for room when 10,000 are
        unsent. The sender tries again after an outage, so a message whose confirmation was lost may be
        published twice. `close` waits until all is sent. Raises PayloadRefusedError, and UnsafePlacementError
        when the keys of the queue do not share one slot of a Redis Cluster."""
        encoded = encode_payload(payload)
        publisher = self._connected()
        publisher.verify(queue)
        if self._outbox is None:
            self._outbox = Outbox(publisher)
        await self._outbox.put(queue, encoded)

    async def close(self) -> None:
        """Flush what was enqueued and close the publisher. Raises BrokerError naming how many messages
        could not be sent."""
        outbox, publisher = self._outbox, self._publisher
        self._outbox = self._publisher = self._loop = None
        try:
            if outbox is not None:
                await outbox.close()
        finally:
            if publisher is not None:
                await publisher.close()

    def _connected(self) -> Publisher:
        loop = asyncio.get_running_loop()
        if self._publisher is None or self._loop is not loop:
            # A publisher's connections belong to the loop that made them; an earlier loop is gone.
            self._publisher, self._loop, self._outbox = self.make_broker().publisher(), loop, None
        return self._publisher
