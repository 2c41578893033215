"""What becomes of a message whose handler failed, when its job has a retry policy."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from worker_runtime.binding import RegistrationError
from worker_runtime.brokers.base import Action

#: Exception types of a policy.
ErrorTypes = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    action: Action
    #: Seconds until the retry may be taken.
    delay: float = 0.0
    #: One stable word that is kept with the message.
    why: str = "handler"


@dataclass(frozen=True, slots=True)
class Retry:
    """A policy: `@app.job("mail", retry=Retry(max_attempts=8, backoff=2))`. Durations are in seconds.

    The first retry waits `backoff`, each later one `factor` times as long, never longer than `max_backoff`.
    Of every wait a random part of up to `jitter` is taken off, so that what failed together does not come
    back together. A message that failed `max_attempts` times, or with an error of `dead_on`, is a dead
    letter. An error that is not of `retry_on` sends it to the failed list, as without a policy. An exception
    group counts as each of its errors; `dead_on` wins. Raises RegistrationError for values that cannot work.
    """

    #: Tries in all, the first one included.
    max_attempts: int = 5
    backoff: float = 1.0
    factor: float = 2.0
    max_backoff: float = 600.0
    #: 0 (always the whole wait) to 1 (anything down to none).
    jitter: float = 0.5
    retry_on: ErrorTypes = (BaseException,)
    dead_on: ErrorTypes = ()

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise RegistrationError(f"Retry: max_attempts is {self.max_attempts}, it must be 1 or more.")
        for name, low, high in (
            ("backoff", 0.0, 1e9),
            ("factor", 1.0, 1e6),
            ("max_backoff", 0.0, 1e9),
            ("jitter", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise RegistrationError(f"Retry: {name} is {value}, it must be from {low:g} to {high:g}.")
        for name in ("retry_on", "dead_on"):
            given = getattr(self, name)
            types = given if isinstance(given, tuple) else (given,)
            if not all(isinstance(each, type) and issubclass(each, BaseException) for each in types):
                raise RegistrationError(f"Retry: {name} is {given!r}, it must hold exception types only.")
            object.__setattr__(self, name, types)

    def decide(
        self,
        tried_before: int,
        error: BaseException,
        *,
        fits: bool = True,
        chance: Callable[[], float] = random.random,
    ) -> Verdict:
        """`tried_before` does not count the try that failed now. `fits` is False when the payload could not
        be read as what the handler takes: trying again cannot help."""
        errors = _leaves(error)
        if any(isinstance(each, self.dead_on) for each in errors):
            return Verdict(Action.DEAD, why="dead-on")
        if not fits:
            return Verdict(Action.DEAD, why="payload")
        if not any(isinstance(each, self.retry_on) for each in errors):
            return Verdict(Action.REJECT)
        if tried_before + 1 >= self.max_attempts:
            return Verdict(Action.DEAD, why="exhausted")
        return Verdict(Action.RETRY, self.wait(tried_before) * (1 - self.jitter * chance()))

    def wait(self, tried_before: int) -> float:
        """Seconds before the next try, without jitter."""
        if self.backoff == 0:
            return 0.0
        # The power overflows long before the bound is out of reach.
        steps = min(tried_before, math.ceil(math.log(1e12, self.factor)) if self.factor > 1 else 0)
        return min(self.max_backoff, self.backoff * self.factor**steps)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [error, *(leaf for each in error.exceptions for leaf in _leaves(each))]
    return [error]
