"""What `kubectl queueworker why` makes of a status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from queueworker_operator.api.reasons import ConditionReason as R, Stage
from queueworker_operator.api.types import Condition, QueueWorkerStatus, RolloutStatus
from queueworker_operator.cli.seen import Seen
from queueworker_operator.cli.tree import tree
from queueworker_operator.cli.verdict import Answer, verdict, verdict_as_json, verdict_as_text
from tests.operator.resources import START, after

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
    text = "\n".join(verdict_as_text(one, found, after(200)))
    assert text.startswith("shop/mails: nothing to do (Serving)")
    assert "Promoting to r2 for 3 min, last got further 2 min ago" in text
    assert "BrokerReachable is False (Timeout): BrokerReachable says why." in text
    assert "PlacementValid is Unknown (NotProbed)" in text
    said: dict[str, Any] = verdict_as_json(one, found)
    assert (said["answer"], said["code"], said["stage"]) == ("settled", 0, "Promoting")
    assert [each["type"] for each in said["besides"]] == ["BrokerReachable", "PlacementValid"]


def test_the_step_of_a_canary_is_told() -> None:
    at = RolloutStatus(target="r2", stage=Stage.PAUSED, started_at=START, step="3/8", attempt=2)
    one = seen({"Ready": ("False", R.PAUSE_STEP)})
    one = replace(one, status=one.status.model_copy(update={"rollout": at}))
    found = verdict(one)
    text = "\n".join(verdict_as_text(one, found, after(200)))
    assert "Paused to r2, step 3/8 of attempt 2, for 3 min" in text
    said = verdict_as_json(one, found)
    assert (said["step"], said["attempt"]) == ("3/8", 2)
    console = Console(width=110, record=True, file=StringIO())
    console.print(tree(one))
    assert "stage Paused to r2, step 3/8, attempt 2" in console.export_text()
