"""What `kubectl queueworker why` makes of a status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from queueworker_operator.api.gates import GateStatus, GateType, Verdict
from queueworker_operator.api.reasons import ConditionReason as R, Stage
from queueworker_operator.api.types import Condition, QueueWorkerStatus, RevokedStatus, RolloutStatus
from queueworker_operator.cli.place import Place
from queueworker_operator.cli.seen import Seen
from queueworker_operator.cli.tree import tree
from queueworker_operator.cli.verdict import Answer, verdict, verdict_as_json, verdict_as_text
from tests.operator.resources import START, after

COMMAND = "kubectl queueworker {} mails -n shop"
SERVING = {"Ready": ("True", R.SERVING), "Available": ("True", R.MINIMUM_REPLICAS_AVAILABLE)}


def seen(conditions: Mapping[str, tuple[str, str]], *, generation: int = 3, observed: int | None = 3) -> Seen:
    listed = tuple(
        Condition.model_validate(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": f"{kind} says why.",
                "lastTransitionTime": START,
            }
        )
        for kind, (status, reason) in conditions.items()
    )
    status = QueueWorkerStatus(
        conditions=listed,
        observed_generation=observed,
        rollout=RolloutStatus(target="r2", stage=Stage.PROMOTING, started_at=START, progressed_at=after(60)),
    )
    return Seen("shop", "mails", generation, "mails", False, status, {}, "Look at the operator.")


@pytest.mark.parametrize(
    ("conditions", "answer", "code", "reason"),
    [
        (SERVING, Answer.SETTLED, 0, "Serving"),
        (
            {"Ready": ("False", R.PROGRESSING), "Reconciling": ("True", R.ROLLOUT_IN_PROGRESS)},
            Answer.MOVING,
            0,
            "RolloutInProgress",
        ),
        (
            {"Ready": ("False", R.PROGRESSING), "Reconciling": ("True", R.SCALING_STABLE)},
            Answer.MOVING,
            0,
            None,
        ),
        ({"Ready": ("False", R.DELETING), "Reconciling": ("True", R.DELETING)}, Answer.MOVING, 0, None),
        (
            {"Ready": ("False", R.PRIORITY_LEFT), "Reconciling": ("True", R.PRIORITY_LEFT)},
            Answer.WAITING,
            3,
            "PriorityLeft",
        ),
        (
            {"Ready": ("False", R.DEGRADED), "Reconciling": ("True", R.WORKERS_FAILING)},
            Answer.WAITING,
            3,
            None,
        ),
        ({"Ready": ("False", R.PROGRESSING), "Reconciling": ("True", R.RETIRING)}, Answer.MOVING, 0, None),
        (
            {"Ready": ("False", R.WORK_OUTSTANDING), "Reconciling": ("True", R.WORK_OUTSTANDING)},
            Answer.WAITING,
            3,
            "WorkOutstanding",
        ),
        ({"Ready": ("False", R.PAUSED)}, Answer.BLOCKED, 4, "Paused"),
        ({"Ready": ("False", R.ROLLOUT_ABORTED)}, Answer.BLOCKED, 4, "RolloutAborted"),
        ({"Ready": ("False", R.ROLLED_BACK)}, Answer.BLOCKED, 4, "RolledBack"),
        ({"Ready": ("False", R.PAUSE_STEP)}, Answer.BLOCKED, 4, "PauseStep"),
        ({"Ready": ("False", R.WAITING_FOR_PROMOTION)}, Answer.BLOCKED, 4, "WaitingForPromotion"),
        ({"Ready": ("False", R.HELD)}, Answer.BLOCKED, 4, "Held"),
        ({"Ready": ("False", R.VERSION_REVOKED)}, Answer.BLOCKED, 4, "VersionRevoked"),
        ({"Ready": ("False", R.NO_WORKERS_WANTED)}, Answer.BLOCKED, 4, "NoWorkersWanted"),
        (
            {"Ready": ("False", R.TIMED_PAUSE), "Reconciling": ("True", R.TIMED_PAUSE)},
            Answer.WAITING,
            3,
            "TimedPause",
        ),
        ({"Ready": ("False", R.TARGET_FENCED)}, Answer.BLOCKED, 4, "TargetFenced"),
        ({"Ready": ("False", R.PAUSED), "Reconciling": ("True", R.PAUSED)}, Answer.BLOCKED, 4, "Paused"),
        ({"Ready": ("False", R.DEGRADED)}, Answer.WAITING, 3, "Degraded"),
        ({}, Answer.WAITING, 3, "NotReported"),
        (
            {
                "Ready": ("False", R.INVALID_SPEC),
                "Reconciling": ("True", R.ROLLOUT_IN_PROGRESS),
                "Stalled": ("True", R.INVALID_SPEC),
            },
            Answer.BLOCKED,
            4,
            "InvalidSpec",
        ),
    ],
)
def test_the_most_serious_condition_answers(
    conditions: dict[str, tuple[str, str]], answer: Answer, code: int, reason: str | None
) -> None:
    found = verdict(seen(conditions))
    assert (found.answer, found.code) == (answer, code)
    assert reason is None or found.reason == reason


@pytest.mark.parametrize("observed", [None, 2])
def test_a_status_of_an_older_generation_is_not_believed(observed: int | None) -> None:
    found = verdict(seen(SERVING, observed=observed))
    assert (found.code, found.reason) == (3, "NotObserved")
    assert "generation 3" in found.message
    assert "Look at the operator." in found.message


def test_what_else_is_off_is_told_beside_the_answer() -> None:
    one = seen(
        SERVING | {"BrokerReachable": ("False", R.TIMEOUT), "PlacementValid": ("Unknown", R.NOT_PROBED)}
    )
    found = verdict(one)
    text = "\n".join(verdict_as_text(one, found, after(200), COMMAND))
    assert text.startswith("shop/mails: nothing to do (Serving)")
    assert "Promoting to r2 for 3 min, last got further 2 min ago" in text
    assert "BrokerReachable is False (Timeout): BrokerReachable says why." in text
    assert "PlacementValid is Unknown (NotProbed)" in text
    said: dict[str, Any] = verdict_as_json(one, found)
    assert (said["answer"], said["code"], said["stage"]) == ("settled", 0, "Promoting")
    assert [each["type"] for each in said["besides"]] == ["BrokerReachable", "PlacementValid"]


@pytest.mark.parametrize(
    ("reason", "message", "verbs"),
    [
        (R.PAUSED, "The change is paused: remove spec.paused.", ["resume"]),
        (R.HELD, "No change may begin (a request of sales): remove spec.hold.", ["release"]),
        (
            R.PAUSE_STEP,
            "This step is a pause without an end: request SkipStep or Promote to go on, or Abort.",
            ["skip", "promote", "abort"],
        ),
        (
            R.GATE_FAILED,
            "r2 did not pass: then request Retry or Abort. Request Retry to measure again, SkipStep or "
            "Promote to go on all the same, or Abort.",
            ["retry", "skip", "promote", "abort"],
        ),
        (R.ROLLOUT_ABORTED, "It was aborted by a request: change the spec, or request Retry.", ["retry"]),
        (R.DEGRADED, "It exits: correct the spec, or request Rollback to h1-77ab01c3-p100.", ["rollback"]),
        (R.SERVING, "r2 serves.", []),
    ],
)
def test_what_a_message_advises_is_told_as_a_command(reason: R, message: str, verbs: list[str]) -> None:
    one = seen({"Ready": ("True" if reason is R.SERVING else "False", reason)})
    (ready,) = one.status.conditions
    told = ready.model_copy(update={"message": message})
    one = replace(one, status=one.status.model_copy(update={"conditions": (told,)}))
    found = verdict(one)
    lines = verdict_as_text(one, found, after(200), COMMAND)
    commands = [line.strip() for line in lines if "kubectl" in line]
    to = " --to h1-77ab01c3-p100" if verbs == ["rollback"] else ""
    assert commands == [f"to do so: kubectl queueworker {verb}{to} mails -n shop" for verb in verbs]
    assert verdict_as_json(one, found)["verbs"] == [verb + to for verb in verbs]


def test_a_command_leads_to_the_same_place() -> None:
    there = Place(local=None, namespace="shop", context="two words", kubeconfig=None)
    assert (
        there.command("mails").format("skip")
        == "kubectl queueworker skip mails -n shop --context 'two words'"
    )
    here = Place(local=Path("a{b}.yaml"), namespace=None, context=None, kubeconfig=None)
    assert here.command("mails").format("skip") == "kubectl-queueworker skip mails --local 'a{b}.yaml'"


def test_each_field_of_the_json_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubectl.md").read_text()
    one = seen(SERVING)
    fields = verdict_as_json(one, verdict(one))
    assert [field for field in fields if f"`{field}`" not in page] == []


def test_a_gate_is_told_once() -> None:
    text = "5 settled, and minSamples is 50: measure for longer."
    gate = GateStatus(
        type=GateType.LATENCY,
        verdict=Verdict.INCONCLUSIVE,
        message=text,
        target="r2",
        revision="r2",
        arm=8,
        attempt=1,
        step="3/8",
        at=START,
    )
    passed = gate.model_copy(
        update={"type": GateType.QUEUE_PROGRESS, "verdict": Verdict.PASSED, "message": "102 %."}
    )
    one = seen({"Ready": ("False", R.GATE_INCONCLUSIVE), "GatesPassed": ("Unknown", R.GATE_INCONCLUSIVE)})
    ready, gates = one.status.conditions
    listed = (
        ready.model_copy(update={"message": f"r2 did not pass: Latency: {text} Request Retry or Abort."}),
        gates.model_copy(update={"message": f"Latency: {text}"}),
    )
    status = one.status.model_copy(update={"conditions": listed, "gates": (passed, gate)})
    one = replace(one, status=status)
    told = "\n".join(verdict_as_text(one, verdict(one), after(200), COMMAND))
    assert told.count("5 settled") == 1
    assert "gate QueueProgress of step 3/8: Passed, 102 %." in told
    assert "gate Latency of step 3/8: Inconclusive, see above" in told


def test_the_step_of_a_canary_is_told() -> None:
    at = RolloutStatus(target="r2", stage=Stage.PAUSED, started_at=START, step="3/8", attempt=2)
    one = seen({"Ready": ("False", R.PAUSE_STEP)})
    one = replace(one, status=one.status.model_copy(update={"rollout": at}))
    found = verdict(one)
    text = "\n".join(verdict_as_text(one, found, after(200), COMMAND))
    assert "Paused to r2, step 3/8 of attempt 2, for 3 min" in text
    said = verdict_as_json(one, found)
    assert (said["step"], said["attempt"]) == ("3/8", 2)
    long = at.model_copy(
        update={"stage": Stage.CANARY_SCALING, "target": "h1-a466bed4-p100", "step": "10/11"}
    )
    one = replace(one, status=one.status.model_copy(update={"rollout": long}), queue="stats-usage")
    console = Console(width=80, record=True, file=StringIO())
    console.print(tree(one))
    shown = console.export_text()
    assert "stage CanaryScaling to h1-a466bed4-p100, step 10/11, attempt 2" in shown
    assert "queue stats-usage\n" in shown


def test_a_revoked_word_that_nobody_knows_is_told_by_all_three() -> None:
    one = seen(SERVING)
    revoked = (RevokedStatus(version="h1-typo", known=False), RevokedStatus(version="h1-old", known=True))
    one = replace(one, status=one.status.model_copy(update={"revoked": revoked}))
    found = verdict(one)
    assert found.code == 0, "a warning, no obstacle"
    assert verdict_as_json(one, found)["revokedUnknown"] == ["h1-typo"]
    page = StringIO()
    Console(file=page, width=400).print(tree(one))
    for text in ("\n".join(verdict_as_text(one, found, after(200), COMMAND)), page.getvalue()):
        assert "h1-typo, which is no version known here" in text
        assert "h1-old" not in text


def test_a_broker_that_takes_no_writes_is_told_besides() -> None:
    found = verdict(seen({**SERVING, "BrokerReachable": ("True", R.WRITES_REFUSED)}))
    assert [one.type for one in found.besides] == ["BrokerReachable"]
    missing = {"Ready": ("False", R.PROGRESSING), "Reconciling": ("True", R.SCALING_STABLE)}
    assert verdict(seen({**missing, "BrokerReachable": ("True", R.WRITES_REFUSED)})).answer is Answer.WAITING
    assert not verdict(seen({**SERVING, "BrokerReachable": ("True", R.REACHABLE)})).besides
