"""From a pod template to a command and an environment."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from queueworker_operator.act.launch import Launch, Place, TemplateRefusedError, launch_of
from queueworker_operator.api.parse import parse
from queueworker_operator.api.revisions import revision_of
from queueworker_operator.api.types import QueueWorker
from tests.local.running import resource

PLACE = Place("work-1", "somewhere", 4711)
SECRETS = {"s": {"key": "hidden"}}


def launch(container: dict[str, Any], base: dict[str, str] | None = None, **spec: Any) -> Launch:
    body = resource(**spec)
    body["spec"]["template"]["spec"]["containers"] = [
        {"name": "sidecar", "image": "other", "args": ["no"]},
        {"name": "worker", "image": "none", **container},
    ]
    parsed = parse(body)
    assert isinstance(parsed, QueueWorker)
    return launch_of(revision_of("work", parsed.spec), "redis://there:1", SECRETS, PLACE, base or {})


def test_without_a_command_it_is_the_runtime() -> None:
    assert launch({"args": ["run", "a:b"]}).argv == (
        *(sys.executable, "-m", "worker_runtime.cli.main"),
        *("run", "a:b"),
    )


def test_a_command_of_its_own_and_references_to_variables() -> None:
    env = [{"name": "A", "value": "one"}, {"name": "B", "value": "$(A) $(NOT) $$(A)"}]
    found = launch({"command": ["sh", "-c"], "args": ["$(B) in $(QUEUEWORKER_QUEUE)"], "env": env})
    assert found.env["B"] == "one $(NOT) $(A)"
    assert found.argv == ("sh", "-c", "one $(NOT) $(A) in work")


def test_what_the_operator_sets() -> None:
    found = launch({"args": ["x"]}, coroutines=3, prefetch=7, shutdownSeconds=9)
    assert found.env["QUEUEWORKER_BROKER_URL"] == "redis://there:1"
    assert found.env["QUEUEWORKER_NAMESPACE"] == "utopia-queue"
    assert found.env["QUEUEWORKER_QUEUE"] == "work"
    assert found.env["QUEUEWORKER_COROUTINES"] == "3"
    assert found.env["QUEUEWORKER_PREFETCH"] == "7"
    assert found.env["QUEUEWORKER_SHUTDOWN_SECONDS"] == "9"
    assert found.env["QUEUEWORKER_ADMIN_PORT"] == "4711"
    assert found.env["QUEUEWORKER_REVISION"].endswith("-p7")
    assert found.grace == 9 + 15


def test_what_is_inherited_and_what_wins() -> None:
    base = {
        "HOME": "/h",
        "QUEUEWORKER_EXPIRY_SECONDS": "1",
        "MINE": "outer",
        "QUEUEWORKER_LOG_FORMAT": "json",
    }
    found = launch({"args": ["x"], "env": [{"name": "MINE", "value": "inner"}]}, base)
    assert (found.env["HOME"], found.env["MINE"]) == ("/h", "inner")
    assert "QUEUEWORKER_EXPIRY_SECONDS" not in found.env, (
        "a setting of the shell says nothing of the resource"
    )
    assert found.env["QUEUEWORKER_LOG_FORMAT"] == "text"


def test_values_from_elsewhere() -> None:
    env = [
        {"name": "HIDDEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "no", "optional": True}}},
        {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HERE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    found = launch({"args": ["x"], "env": env})
    assert (found.env["HIDDEN"], found.env["ME"], found.env["HERE"]) == ("hidden", "work-1", "somewhere")
    assert "MAYBE" not in found.env


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({}, ["container worker", "neither command nor args"]),
        ({"args": "run"}, ["args must be a list", "'run'"]),
        ({"args": ["x"], "envFrom": [{"secretRef": {"name": "s"}}]}, ["envFrom", "list the variables"]),
        ({"args": ["x"], "env": [{"value": "1"}]}, ["needs a name"]),
        ({"args": ["x"], "env": [{"name": "A", "value": 1}]}, ["env A", "must be a string", "quotes"]),
        (
            {"args": ["x"], "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "t", "key": "k"}}}]},
            ["env A", "Secret t", "not in the file"],
        ),
        (
            {"args": ["x"], "env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}}]},
            ["env A", "resourceFieldRef", "plain value"],
        ),
    ],
)
def test_what_a_process_cannot_have(container: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(TemplateRefusedError) as refused:
        launch(container)
    assert [word for word in words if word not in str(refused.value)] == []
