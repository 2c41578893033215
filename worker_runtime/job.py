"""One registered job: a queue, its handler and its limits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from worker_runtime.binding import Binding, RegistrationError, bind, name_of
from worker_runtime.brokers.base import MAX_TAKEOVERS
from worker_runtime.retry import Retry

#: Seconds that a deferred commit may take, where a job says nothing else.
COMMIT_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    queue: str
    #: Module and qualified name of the handler, for logs.
    name: str
    binding: Binding
    #: False: the handler runs in a thread.
    is_async: bool
    #: Handlers that run at once, per process.
    coroutines: int
    #: Waiting, running and unconfirmed deliveries together, per process.
    prefetch: int
    #: Hooks of these groups run for this job, besides those for every job.
    groups: tuple[str, ...]
    #: What becomes of failed messages; None sends them to the failed list.
    retry: Retry | None = None
    #: A message that lost its owner this often is a dead letter; 0 is no limit.
    max_takeovers: int = MAX_TAKEOVERS
    #: Seconds from the return of a handler within which its deferred commit must be decided.
    commit_timeout: float = COMMIT_TIMEOUT
    #: Cancel a handler whose message another worker has taken over.
    cancel_superseded: bool = False

    @property
    def max_tries(self) -> int:
        """Deliveries that a message survives on a broker that counts retries and lost owners together: as
        many as the policy tries and `max_takeovers` more. 0 is no limit."""
        if not self.max_takeovers:
            return 0
        return self.max_takeovers + (self.retry.max_attempts if self.retry is not None else 0)

    def with_limits(self, coroutines: int | None, prefetch: int | None) -> Job:
        """The same job with other limits. A prefetch that was not given follows the coroutines only where
        it would be below them and the code did not ask for more. Raises RegistrationError."""
        workers = self.coroutines if coroutines is None else coroutines
        if prefetch is None:
            prefetch = workers if self.prefetch == self.coroutines else self.prefetch
        check_limits(self.queue, workers, prefetch)
        return replace(self, coroutines=workers, prefetch=prefetch)


def check_limits(queue: str, coroutines: int, prefetch: int) -> None:
    """Refuse limits that cannot work. Raises RegistrationError."""
    if coroutines < 1:
        raise RegistrationError(f"job {queue!r}: coroutines is {coroutines}, it must be 1 or more.")
    if prefetch < coroutines:
        raise RegistrationError(
            f"job {queue!r}: prefetch is {prefetch} and coroutines {coroutines}. Prefetch counts waiting, "
            "running and unconfirmed deliveries together, so it must be at least the coroutines: raise "
            "prefetch, lower coroutines, or leave prefetch out."
        )


def make_job(
    queue: str,
    handler: Callable[..., Any],
    coroutines: int,
    prefetch: int | None,
    groups: Iterable[str],
    localns: Mapping[str, Any],
    *,
    retry: Retry | None = None,
    max_takeovers: int = MAX_TAKEOVERS,
    commit_timeout: float = COMMIT_TIMEOUT,
    cancel_superseded: bool = False,
) -> Job:
    """Check and bind a handler. Opens no connection. Raises RegistrationError."""
    if not queue or any(c.isspace() for c in queue):
        raise RegistrationError(f"job {queue!r}: a queue's name must be one word without spaces.")
    bound = coroutines if prefetch is None else prefetch
    check_limits(queue, coroutines, bound)
    if max_takeovers < 0:
        raise RegistrationError(
            f"job {queue!r}: max_takeovers is {max_takeovers}, it must be 1 or more, or 0 for no limit."
        )
    if not 0 < commit_timeout < 1e9:
        raise RegistrationError(
            f"job {queue!r}: commit_timeout is {commit_timeout}, it must be a number of seconds above 0."
        )
    if retry is not None and not isinstance(retry, Retry):
        raise RegistrationError(f"job {queue!r}: retry is {retry!r}, it must be a Retry(...) or None.")
    if not callable(handler):
        raise RegistrationError(f"job {queue!r}: {handler!r} is not a function.")
    call = getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
    if cancel_superseded and not is_async:
        raise RegistrationError(
            f"job {queue!r}: cancel_superseded is set, but {name_of(handler)} is a plain function, and "
            "a thread cannot be cancelled. Read message.superseded in it, or make it async."
        )
    chosen = (groups,) if isinstance(groups, str) else tuple(groups)
    return Job(
        queue,
        name_of(handler),
        bind(handler, localns),
        is_async,
        coroutines,
        bound,
        chosen,
        retry,
        max_takeovers,
        commit_timeout,
        cancel_superseded,
    )
