"""The step `analysis`: when it measures, what it makes of the gates, and that nothing else leads on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any

import pytest

from queueworker_operator.api.gates import GateType, Verdict
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import QueueWorkerStatus
from queueworker_operator.observe.samples import window_of
from queueworker_operator.plan.facts import Unknown
from queueworker_operator.plan.queue_facts import Books, NoBooks, Restarts, Row
from queueworker_operator.plan.samples import NOT_SAMPLED, Pair, Sample, Samples
from tests.operator.canary_story import ONE, Story, arm, canary
from tests.operator.resources import OLD, V1, V2, image_revision, on, seen, wants

MEASURE: dict[str, Any] = {"analysis": {"durationSeconds": 60}}
KILL: dict[str, Any] = {"analysis": {"durationSeconds": 60, "forceFailure": True}}
#: 100 messages a second for each worker of the stable revision, and as many of the canary.
GOOD, SLOW, REJECTS, IDLE = (100, 0), (20, 0), (50, 50), (0, 0)


class Measured(Story):
    """A canary whose queue always has work. `pace` is what a worker of it commits and rejects a second."""

    def __init__(self, *steps: dict[str, Any], stable: Any = V1, **more: Any) -> None:
        self.steps, self.more = (ONE, *steps), more
        status = on("old" if stable is OLD else "v1")
        super().__init__(self.spec(status), seen(stable, 4))
        self.stable = stable
        self.pace = GOOD
        self.rows: dict[str, Row] = {}
        self.legacy = 0
        self.lost = 0
        self.window: datetime | None = None
        self.first: dict[str, Sample] = {}
        #: Seconds of CPU and in the handler for a message of the canary; one of the stable revision has 1 ms.
        self.cpu, self.takes = 0.001, 0.001
        self.cpu_so_far = 0.0
        self.mute = False
        self.without_books = False
        self.away = False

    def spec(self, status: QueueWorkerStatus, *steps: dict[str, Any], **more: Any) -> Any:
        rollout = {"strategy": "Canary", "steps": list(steps or self.steps), **self.more.get("rollout", {})}
        given = {k: v for k, v in self.more.items() if k != "rollout"}
        return wants("demo:v2", 4, status, spec__rollout=rollout, **(given | more))

    def asked(self, action: str, id_: str = "1") -> None:
        self.wants(self.spec(self.status, spec__request={"id": id_, "action": action}))

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        for name, one in self.revisions.items():
            committed, rejected = (100, 0) if name == self.stable.name else self.pace
            n = round(seconds * one.available)
            if self.stable is OLD and name == OLD.name:
                self.legacy += n * committed
                continue
            if name != self.stable.name:
                self.cpu_so_far += n * (committed + rejected) * self.cpu
            row = self.rows.get(name, Row())
            self.rows[name] = Row(
                claimed=row.claimed + n * (committed + rejected),
                committed=row.committed + n * committed,
                rejected=row.rejected + n * rejected,
            )
        rows = dict(self.rows)
        if self.lost and V2.name in rows:
            row = rows[V2.name]
            rows[V2.name] = Row(row.claimed + self.lost, row.committed, row.rejected)
        self.books = Books(
            server="redis:6379",
            rows=rows,
            owned={},
            committed=self.legacy + sum(row.committed for row in rows.values()),
            failed=sum(row.rejected for row in rows.values()),
            backlog_since=self.watched_since,
        )
        if self.without_books:
            self.books = NoBooks()

    def sample(self, name: str, settled: int) -> Sample:
        cpu = settled * 0.001 if name == self.stable.name else self.cpu_so_far
        takes = 0.001 if name == self.stable.name else self.takes
        buckets = tuple((bound, settled if bound >= takes else 0) for bound in (0.001, 0.01, 0.1, 1.0))
        return Sample(self.now, 0.0, cpu, settled, buckets, ((1.0, settled),))

    def look(self, reading: Any = None) -> list[str]:
        now = {name: self.sample(name, row.committed + row.rejected) for name, row in self.rows.items()}
        if self.window != window_of(self.status):
            self.window, self.first = window_of(self.status), now
        self.samples = NOT_SAMPLED
        if self.window is not None:
            both = {name: (Pair(one, now[name]),) for name, one in self.first.items()}
            self.samples = Samples(self.window, both)
            if self.mute:
                self.samples = Unknown("no worker answers", self.now)
        return super().look(Unknown("nobody could look", self.now) if self.away else reading)

    def verdicts(self) -> dict[str, Verdict]:
        return {one.type.value: one.verdict for one in self.status.gates}

    def gates(self) -> tuple[str, str]:
        found = self.status.condition("GatesPassed")
        assert found is not None
        return found.status, found.reason

    def measured(self, seconds: float = 75, pass_every: float = 5) -> None:
        """From the beginning of the step to its end."""
        self.until(Stage.ANALYZING)
        for _ in range(int(seconds // pass_every)):
            self.wait(pass_every - 2)
            self.look()


def test_what_passes_goes_on_and_is_promoted() -> None:
    story = Measured(arm(4), MEASURE, arm(100), MEASURE)
    story.measured(60)
    assert (story.stage, story.step, story.gates()) == (Stage.ANALYZING, "3/5", ("Unknown", "Analyzing"))
    story.until(Stage.ANALYZING, "5/5")
    assert story.gates() == ("Unknown", "Analyzing"), "of the second arm nothing is known"
    assert story.verdicts() == dict.fromkeys(GateType, "Passed")
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()
    assert story.gates() == ("True", "AllPassed")
    assert story.events.count("GatePassed") == 8
    assert [(one.step, one.arm) for one in story.status.gates[::4]] == [("3/5", 4), ("5/5", 100)]
    assert story.status.rollout is not None
    assert story.status.rollout.analysis is None


@pytest.mark.parametrize(
    ("is_", "gate"),
    [
        ({"pace": SLOW}, "QueueProgress"),
        ({"pace": REJECTS}, "UsageAccounting"),
        ({"pace": IDLE}, "QueueProgress"),
        ({"cpu": 0.002}, "CPUEfficiency"),
        ({"takes": 0.1}, "Latency"),
    ],
)
def test_what_fails_is_taken_back_by_the_guarded_way(is_: dict[str, Any], gate: str) -> None:
    story = Measured(MEASURE)
    for what, value in is_.items():
        setattr(story, what, value)
    story.until(Stage.ANALYZING)
    story.wait(100)
    story.look()  # the warm-up is over
    story.look()  # and workers are asked
    story.wait(60)
    assert story.look() == ["fence v2", "v1 to 4"]
    assert story.stage in (Stage.STOP_RECEIVING, Stage.DRAIN_OUTSTANDING)
    assert story.verdicts()[gate] is Verdict.FAILED
    story.until(Stage.IDLE)
    assert story.numbers() == {V1.name: 4}
    assert story.said() == ("False", "RolloutAborted")
    assert story.gates() == ("False", "GateFailed")
    ready = story.status.condition("Ready")
    assert ready is not None
    assert f"{gate} Failed" in ready.message
    assert story.events.count("GateFailed") >= 1

    story.pace, story.cpu, story.takes = GOOD, 0.001, 0.001
    story.asked("Retry")
    assert story.look() == ["unfence v2", "create v2 at 1"]
    assert story.status.gates == (), "what was found then says nothing of now"
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_what_cannot_be_judged_waits_for_a_person() -> None:
    story = Measured({"analysis": {"durationSeconds": 60}}, rollout={"gates": [few("QueueProgress")]})
    story.measured(80)
    assert (story.stage, story.said()) == (Stage.ANALYZING, ("False", "GateInconclusive"))
    assert story.gates() == ("Unknown", "GateInconclusive")
    assert story.status.condition("Stalled") is None
    told = story.status.gates
    story.wait(100_000)
    assert story.look() == []
    assert story.status.gates == told, "it is said once"
    assert story.events.count("GateInconclusive") == 1

    story.asked("Retry")
    story.look()
    assert story.gates() == ("Unknown", "Analyzing")
    story.measured(80)
    assert story.said() == ("False", "GateInconclusive")

    story.asked("SkipStep", "2")
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable(), "a person decided"


def few(type_: str, **more: Any) -> dict[str, Any]:
    """Limits of a gate that are never reached."""
    return {"type": type_, "minSamples": 1_000_000, **more}


def test_on_failure_pause_and_on_inconclusive_abort() -> None:
    story = Measured(MEASURE, rollout={"onFailure": "Pause"})
    story.pace = SLOW
    story.measured(80)
    assert (story.stage, story.said()) == (Stage.ANALYZING, ("False", "GateFailed"))
    assert V2.name in story.numbers(), "it serves on"
    story.asked("Abort")
    story.until(Stage.IDLE)
    assert story.numbers() == {V1.name: 4}

    unsure = {"gates": [few("UsageAccounting")], "onInconclusive": "Abort"}
    story = Measured(MEASURE, rollout=unsure)
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.said() == ("False", "RolloutAborted")


def test_a_failure_limit_measures_again() -> None:
    story = Measured(MEASURE, rollout={"gates": [{"type": "QueueProgress", "failureLimit": 1}]})
    story.pace = SLOW
    story.measured(80)
    assert story.stage is Stage.ANALYZING
    assert story.status.gates == ()
    story.pace = GOOD
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_only_some_gates_and_waivers() -> None:
    only = {"analysis": {"durationSeconds": 60, "gates": ["UsageAccounting"]}}
    story = Measured(only)
    story.pace = SLOW
    story.measured(80)
    assert story.verdicts() == {"UsageAccounting": "Passed"}
    waiver = {"gates": [{"type": "QueueProgress", "waiver": "load comes in bursts"}]}
    story = Measured(MEASURE, rollout=waiver)
    story.pace = SLOW
    story.measured(80)
    assert story.verdicts() == dict.fromkeys(GateType, "Passed") | {"QueueProgress": "Waived"}
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_a_forced_failure_kills_one_worker_before_it_is_measured() -> None:
    story = Measured(KILL)
    story.until(Stage.ANALYZING)
    for _ in range(20):
        story.look()
    assert story.killed == [V2.name]
    assert story.events.count("WorkerKilled") == 1
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.killed == [V2.name]


def test_what_the_killed_worker_took_with_it_counts() -> None:
    story = Measured(KILL)
    story.until(Stage.ANALYZING)
    story.look()
    assert story.killed
    story.lost = 1
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.verdicts()["UsageAccounting"] is Verdict.FAILED
    assert story.status.stable == V1.as_stable()


def test_the_stable_revision_itself_is_not_killed() -> None:
    stable = image_revision("demo:v1", spec__prefetch=4)
    status = on("v1").model_copy(update={"stable": stable.as_stable()})
    story = Story(canary(status, ONE, arm(4), KILL, arm(100), KILL, image="demo:v1"), seen(stable, 4))
    story.until(Stage.ANALYZING, "3/5")
    for _ in range(10):
        story.look()
    assert story.killed == []


def test_a_canary_that_dies_is_measured_on_when_it_is_back() -> None:
    story = Measured(MEASURE)
    story.measured(30)
    story.broken.add(V2.name)
    story.sized(V2.name, 1)
    story.look()
    assert story.stage is Stage.CANARY_SCALING
    rollout = story.status.rollout
    assert rollout is not None
    assert rollout.analysis is not None
    began = rollout.analysis.began_at
    story.broken.clear()
    story.sized(V2.name, 1)
    story.until(Stage.ANALYZING)
    assert story.status.rollout is not None
    assert story.status.rollout.analysis is not None
    assert story.status.rollout.analysis.began_at == began


def test_a_window_that_nobody_watched_is_measured_again_and_the_accounts_are_kept() -> None:
    story = Measured(MEASURE)
    story.measured(40)
    story.watched_since = story.now
    story.lost = 1
    story.measured(50)
    assert story.stage is Stage.ANALYZING, "since nobody knows whether work waited"
    story.measured(30)
    story.until(Stage.IDLE)
    assert story.verdicts() == dict.fromkeys(GateType, "Passed") | {"UsageAccounting": "Failed"}


def test_what_is_never_watched_long_enough_is_inconclusive() -> None:
    story = Measured(MEASURE)
    story.until(Stage.ANALYZING)
    for _ in range(60):
        story.wait(28)
        story.watched_since = story.now
        story.look()
    assert story.said() == ("False", "GateInconclusive")
    assert story.status.stable == V1.as_stable()


def test_each_analysis_has_a_window_of_its_own() -> None:
    story = Measured(MEASURE, MEASURE)
    story.measured(70)
    assert (story.stage, story.step) == (Stage.ANALYZING, "3/3")
    story.measured(50)
    assert (story.stage, story.step) == (Stage.ANALYZING, "3/3")
    story.until(Stage.PROMOTING)
    assert len(story.status.gates) == 8


def test_other_limits_begin_it_anew() -> None:
    story = Measured(MEASURE)
    story.measured(50)
    story.more = {"rollout": {"gates": [{"type": "QueueProgress", "minPercentOfStable": 95}]}}
    story.wants(story.spec(story.status))
    story.measured(50)
    assert story.stage is Stage.ANALYZING
    story.measured(40)
    story.until(Stage.IDLE)


def test_without_books_only_a_waiver_leads_on() -> None:
    story = Story(canary(on("v1"), ONE, MEASURE), seen(V1, 4))
    story.until(Stage.ANALYZING)
    story.wait(30)
    story.look()
    assert story.said() == ("False", "GateInconclusive")
    waived = [{"type": type_.value, "waiver": "there is nothing to read"} for type_ in GateType]
    rollout = {"strategy": "Canary", "steps": [ONE, MEASURE], "gates": waived}
    story.wants(wants("demo:v2", 4, story.status, spec__rollout=rollout))
    story.look()
    story.wait(30)
    story.look()
    assert story.stage is Stage.ANALYZING, "its time is waited for all the same"
    story.wait(40)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()
    gates = story.status.condition("GatesPassed")
    assert gates is not None
    assert (gates.status, gates.reason) == ("True", "Waived")


def test_workers_that_cannot_be_asked_are_asked_again_and_then_waited_for() -> None:
    story = Measured(MEASURE)
    story.measured(60)
    story.mute = True
    story.wait(10)
    for _ in range(4):
        story.look()
        assert story.stage is Stage.ANALYZING
        assert story.status.gates == ()
    story.look()
    assert story.said() == ("False", "GateInconclusive")
    assert story.verdicts()["Latency"] is Verdict.ERROR
    story.mute = False
    story.asked("Retry")
    story.measured(80)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_a_window_without_books_is_judged_by_what_workers_say() -> None:
    """As on JetStream: the two gates that read the broker's books are waived."""
    waived = [
        {"type": name, "waiver": "JetStream has no books"} for name in ("QueueProgress", "UsageAccounting")
    ]
    for takes, verdict in ((0.001, Verdict.PASSED), (0.1, Verdict.FAILED)):
        story = Measured(MEASURE, rollout={"gates": waived})
        story.takes, story.without_books = takes, True
        story.measured(80)
        assert story.verdicts()["Latency"] is verdict


def test_beside_legacy_workers_what_they_do_is_the_rest() -> None:
    story = Measured(MEASURE, stable=OLD)
    story.measured(80)
    assert story.verdicts() == {
        "QueueProgress": "Passed",
        "CPUEfficiency": "Inconclusive",
        "Latency": "Inconclusive",
        "UsageAccounting": "Passed",
    }
    story = Measured(MEASURE, stable=OLD)
    story.pace = SLOW
    story.measured(80)
    assert story.verdicts()["QueueProgress"] is Verdict.FAILED


#: What may be the case during a pass of an analysis.
WORLDS = ("good", "slow", "astray", "unread", "mute")


def sequences() -> Iterable[tuple[str, ...]]:
    return product(WORLDS, repeat=3)


def test_nothing_but_a_window_in_which_every_gate_passed_is_promoted() -> None:
    """S2: every sequence of three things that may be the case, each for a third of the window, and what
    follows when the last one stays for as long as anybody waits."""
    promoted = set()
    for worlds in sequences():
        story = Measured(MEASURE)
        story.until(Stage.ANALYZING)
        for world in (*worlds, *[worlds[-1]] * 4):
            live_in(story, world)
        status = story.status
        took_over = status.stable != V1.as_stable() or status.promoted is not None
        passed = bool(status.gates) and {one.verdict for one in status.gates} == {Verdict.PASSED}
        assert took_over == passed, worlds
        if took_over:
            promoted.add(worlds)
            assert "astray" not in worlds, "the accounts are kept from the beginning"
            assert "good" in worlds
    assert ("good", "good", "good") in promoted
    assert ("unread", "unread", "good") in promoted, "the broker came back"
    assert len(promoted) < len(list(sequences())) / 5


def live_in(story: Measured, world: str) -> None:
    """Half a minute."""
    story.pace = SLOW if world == "slow" else GOOD
    story.lost += world == "astray"
    story.mute = world == "mute"
    back, story.away = story.away, world == "unread"
    if back and not story.away:
        story.watched_since = story.now
    for _ in range(2):
        story.wait(13)
        story.look()


def falls(story: Measured, at: datetime) -> None:
    """A process of the canary ends and is started again: too quickly for anybody to see it not ready."""
    r = story.revisions[V2.name]
    number = r.restarts.number + 1 if r.restarts else 1
    story.revisions[V2.name] = replace(
        r, restarts=Restarts(number, at, "worker pod-a: a process of it ended.")
    )


def test_a_window_in_which_the_canary_fell_is_measured_again() -> None:
    story = Measured(MEASURE)
    story.measured(40)
    falls(story, story.now)
    for _ in range(8):
        story.wait(3)
        story.look()
    assert story.stage is Stage.ANALYZING, "80 s, but no 60 without a restart"
    assert not story.verdicts()
    ready = story.status.condition("Ready")
    assert ready is not None
    assert "60 s without a restart of it" in ready.message
    assert "pod-a" in ready.message
    story.measured(40)
    story.until(Stage.IDLE)
    assert story.status.stable == V2.as_stable()


def test_a_canary_that_falls_in_the_warm_up_is_told() -> None:
    story = Measured({"analysis": {"durationSeconds": 300}})
    story.until(Stage.ANALYZING)
    falls(story, story.now)
    story.look()
    rollout = story.status.rollout
    assert rollout is not None
    assert rollout.analysis is not None
    assert rollout.analysis.measured is None, "it is still warming up"
    ready = story.status.condition("Ready")
    assert ready is not None
    assert "restarted 1 time by now; worker pod-a" in ready.message


def test_a_canary_that_falls_in_every_window_is_inconclusive_in_the_end() -> None:
    story = Measured(MEASURE, spec__progressDeadlineSeconds=60)
    story.until(Stage.ANALYZING)
    for number in range(100):
        if number % 8 == 0:
            falls(story, story.now)
        story.wait(3)
        story.look()
        if story.gates()[0] == "False":
            break
    ready = story.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "GateInconclusive"
    assert "the canary fell again and again" in ready.message
    assert "pod-a" in ready.message
    assert story.status.promoted is None
