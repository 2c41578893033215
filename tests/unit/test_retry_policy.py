"""A retry policy decides by counts, error types and a chance that the test holds."""

from __future__ import annotations

import pytest

from worker_runtime import App, RegistrationError, Retry
from worker_runtime.brokers.base import Action
from worker_runtime.retry import Verdict


def test_waits_grow_up_to_their_bound_and_jitter_takes_a_part_off() -> None:
    policy = Retry(max_attempts=10_000, backoff=2, factor=3, max_backoff=100, jitter=0.5)
    assert [policy.wait(n) for n in range(5)] == [2, 6, 18, 54, 100]
    assert policy.wait(9_000) == 100
    for chance, delay in ((0.0, 18.0), (0.5, 13.5), (1.0, 9.0)):
        verdict = policy.decide(2, OSError(), chance=lambda chance=chance: chance)  # type: ignore[misc]
        assert verdict == Verdict(Action.RETRY, delay)
    assert Retry(backoff=0).wait(3) == 0
    assert Retry(backoff=5, factor=1).wait(9_000) == 5


def test_the_last_try_is_the_end() -> None:
    policy = Retry(max_attempts=3)
    actions = [policy.decide(n, OSError()).action for n in range(5)]
    assert actions == [Action.RETRY, Action.RETRY, Action.DEAD, Action.DEAD, Action.DEAD]
    assert policy.decide(2, OSError()).why == "exhausted"
    assert Retry(max_attempts=1).decide(0, OSError()).action is Action.DEAD


def test_errors_choose_the_way() -> None:
    policy = Retry(retry_on=(OSError, ValueError), dead_on=(FileNotFoundError,))
    assert policy.decide(0, ConnectionError()).action is Action.RETRY
    assert policy.decide(0, FileNotFoundError()) == Verdict(Action.DEAD, why="dead-on")
    assert policy.decide(0, KeyError()) == Verdict(Action.REJECT)
    assert policy.decide(9, KeyError()) == Verdict(Action.REJECT)
    assert policy.decide(0, ValueError(), fits=False) == Verdict(Action.DEAD, why="payload")
    assert policy.decide(0, ExceptionGroup("", [KeyError(), OSError()])).action is Action.RETRY
    nested = ExceptionGroup("", [ValueError(), ExceptionGroup("", [FileNotFoundError()])])
    assert policy.decide(0, nested).why == "dead-on"
    assert Retry(dead_on=ValueError).decide(0, ValueError()).why == "dead-on"  # type: ignore[arg-type]
    assert Retry().decide(0, KeyboardInterrupt()).action is Action.RETRY


@pytest.mark.parametrize(
    "values",
    [
        {"max_attempts": 0},
        {"backoff": -1},
        {"backoff": float("nan")},
        {"factor": 0.5},
        {"max_backoff": float("inf")},
        {"jitter": 1.1},
        {"retry_on": ("OSError",)},
        {"dead_on": (int,)},
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused_by_name(values: dict[str, object]) -> None:
    with pytest.raises(RegistrationError, match=next(iter(values))):
        Retry(**values)  # type: ignore[arg-type]


def test_a_job_refuses_what_is_no_policy() -> None:
    for name, value in (("retry", 3), ("max_takeovers", -1), ("commit_timeout", 0)):
        with pytest.raises(RegistrationError, match=name):
            App().job("q", **{name: value})(lambda: None)  # type: ignore[arg-type]
