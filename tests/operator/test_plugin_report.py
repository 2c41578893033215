"""The page of `kubectl queueworker report`: whole without network or script, whatever the status says."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from queueworker_operator.api.gates import GateStatus
from queueworker_operator.api.reasons import Stage
from queueworker_operator.api.types import Condition, QueueWorkerStatus, RevisionStatus, Role, RolloutStatus
from queueworker_operator.cli.page import Event, page
from queueworker_operator.cli.seen import Member, Seen
from tests.operator.resources import START, V1, V2, stable_status

HOSTILE = '<script src="https://bad.example/x.js">alert(1)</script>&"\''


def seen(status: QueueWorkerStatus, **changes: Any) -> Seen:
    whole = {"members": {}, "look_for_it": "Look.", **changes}
    return Seen("shop", "mails", 3, "mails", False, status, **whole)


def read(text: str) -> ElementTree.Element:
    """It is XML as well, so that each < and & has to be in its place."""
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def words(tree: ElementTree.Element) -> str:
    return " ".join("".join(tree.itertext()).split())


def gate(type_: str, step: str, verdict: str, **more: Any) -> GateStatus:
    named = {"target": V2.name, "revision": V2.name, "arm": 8, "attempt": 1, "step": step, "type": type_}
    rest = {"verdict": verdict, "message": HOSTILE, "samples": 500, "at": START}
    return GateStatus.model_validate({**named, **rest, **more})


def test_an_empty_status_makes_a_page() -> None:
    tree = read(page(seen(QueueWorkerStatus()), {}, [], START))
    assert [head.text for head in tree.iter("h2")] == ["Change", "Revisions", "Gates", "Conditions", "Events"]
    assert "Stage Idle" in words(tree)
    assert "waiting (NotObserved)" in words(tree)
    assert not list(tree.iter("svg"))


def test_what_the_status_says_is_shown_and_nothing_of_it_is_markup() -> None:
    hurt = {"reason": "Broken", "message": HOSTILE, "lastTransitionTime": START, "observedGeneration": 3}
    condition = Condition.model_validate({"type": "Ready", "status": "False", **hurt})
    row = RevisionStatus(
        name=V2.name,
        version=V2.version,
        deployment=V2.deployment,
        role=Role.CANARY,
        replicas=2,
        ready_replicas=1,
        prefetch=8,
    )
    status = stable_status(
        V1,
        observed_generation=3,
        conditions=(condition,),
        revisions=(row,),
        rollout=RolloutStatus(target=V2.name, stage=Stage.ANALYZING, step="2/3", attempt=1, evidence=HOSTILE),
        handled_request="a",
        request_ignored=HOSTILE,
    )
    spec = {
        "rollout": {
            "steps": [{"setCanaryScale": {"replicas": 1}}, {"analysis": {"gates": [HOSTILE]}}, {"pause": {}}]
        },
        "request": {"id": "a", "action": "Abort"},
    }
    one = seen(status, members={V2.name: (Member(HOSTILE, "ready"),)})
    text = page(
        one, spec, [Event(START, "Warning", "Reason", HOSTILE), Event(None, "Normal", "B", "b")], START
    )
    tree = read(text)
    assert not list(tree.iter("script"))
    assert "<script" not in text
    assert not {"src", "href"} & {name for node in tree.iter() for name in node.attrib}
    # Evidence, the request, the step, the worker, the condition, the event, and the answer at the top.
    assert words(tree).count(HOSTILE) == 7
    assert [(step.attrib["class"], words(step).split()[0]) for step in tree.iter("li")] == [
        ("done", "setCanaryScale"),
        ("now", "analysis"),
        ("", "pause"),
    ]
    assert "1/2" in words(tree)


def test_each_gate_has_a_plot_with_a_bar_for_each_arm() -> None:
    gates = (
        gate("QueueProgress", "2/9", "Passed", percent=104, limit=90),
        gate("QueueProgress", "4/9", "Failed", percent=52, limit=90),
        gate("UsageAccounting", "2/9", "Passed"),
        gate("UsageAccounting", "4/9", "Waived", samples=0),
    )
    tree = read(page(seen(stable_status(V1, gates=gates)), {}, [], START))
    progress, accounts = tree.iter("svg")
    assert words(progress).startswith("QueueProgress: percent of the stable revision")
    first, second = (float(bar.attrib["width"]) for bar in progress.iter("rect"))
    assert abs(first / second - 2) < 0.01, "the bars are as long as what they show"
    assert [bar.attrib["class"] for bar in progress.iter("rect")] == ["good", "bad"]
    assert len(list(progress.iter("line"))) == 2, "a limit each"
    assert "step 4/9, prefetch 8: 52 % Failed, limit 90 %" in words(progress)
    assert [float(bar.attrib["width"]) > 0 for bar in accounts.iter("rect")] == [True, False]
    assert "500 Passed" in words(accounts)


def test_events_that_cannot_be_read_are_told() -> None:
    tree = read(page(seen(QueueWorkerStatus()), {}, "The events cannot be read: 403 <b>", START))
    assert "The events cannot be read: 403 <b>" in words(tree)
