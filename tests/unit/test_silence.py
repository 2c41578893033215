"""When a broker that says nothing counts as one that does not answer."""

from __future__ import annotations

from worker_runtime.silence import PATIENCE, Silence


def looks(silence: Silence, *passed: float) -> list[str]:
    found = []
    for one in passed:
        silence.look(one)
        found.append(silence.text)
    return found


def test_only_one_and_the_same_question_that_stays_open_for_too_long_counts() -> None:
    silence = Silence(block=2.0)
    assert looks(silence, *[1.0] * 20) == [""] * 20, "nothing is asked"
    for began in range(1, 20):
        silence.receive = float(began)
        assert looks(silence, 3.0, 3.0) == ["", ""], "each of these is answered"
    silence.receive = 100.0
    assert looks(silence, 1.0, 2.0 + PATIENCE, 0.5) == ["", "", "the broker has not answered for 6 s"]
    silence.receive = 0.0
    assert looks(silence, 0.5) == [""]


def test_a_settlement_does_not_wait_for_work() -> None:
    silence = Silence(block=60.0)
    silence.receive = silence.settle = 1.0
    assert looks(silence, 1.0, PATIENCE, 0.5) == ["", "", "the broker has not answered for 4 s"]
