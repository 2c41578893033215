"""The rules of the resource, as local mode applies them. tests/cluster shows the same to an API server."""

from __future__ import annotations

import re
from typing import Any

import pytest

from queueworker_operator.api.parse import NotAQueueWorkerError, parse, parse_change
from queueworker_operator.api.rules import RULES, TRANSITIONS
from queueworker_operator.api.types import InvalidQueueWorker, QueueWorker, QueueWorkerStatus
from queueworker_operator.run.local_file import with_values
from tests.operator.resources import body, worker
from tests.operator.rule_cases import CASES, CHANGES, MALFORMED, Case, Change, asked, gated, in_steps

BY_ID = {rule.id: rule for rule in RULES}
TRANSITION_BY_ID = {rule.id: rule for rule in TRANSITIONS}


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(BY_ID)
    assert {change.rule for change in CHANGES} == set(TRANSITION_BY_ID)


def test_no_rule_names_a_field_by_a_reserved_word() -> None:
    """An API server refuses the whole CRD for one, with words about its cost."""
    reserved = (
        "as break const continue else false for function if import in let loop namespace null package return"
    )
    texts = [*(rule.cel for rule in RULES), *(rule.cel for rule in TRANSITIONS)]
    fields = {name for text in texts for name in re.findall(r"(?:self|oldSelf)((?:[.]\w+)+)", text)}
    used = {word for path in fields for word in path.split(".")}
    assert "prefetch" in used
    assert not used & {*reserved.split(), "true", "var", "void", "while"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule(case: Case) -> None:
    assert isinstance(parse(case.accepted), QueueWorker)
    refused = parse(case.refused)
    assert isinstance(refused, InvalidQueueWorker)
    rule = BY_ID[case.rule]
    entry = "" if case.entry is None else f"[{case.entry}]"
    assert [(p.path, p.message) for p in refused.problems] == [(rule.blames + entry, rule.message)]


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@prometheus:9090", "me:secret@prometheus", "http://me:secret@p/api/v1", "secret" * 400],
)
def test_no_refusal_of_a_prometheus_shows_its_password(url: str) -> None:
    refused = parse(asked(url))
    assert isinstance(refused, InvalidQueueWorker)
    shown = with_values(refused, asked(url))
    assert shown.problems
    assert "secret" not in "; ".join(map(str, shown.problems))


@pytest.mark.parametrize("credentials", ["s3cret", {"token": "s3cret"}, {"login": {"name": ["s3cret"]}}])
def test_no_refusal_of_credentials_shows_what_was_written_in_their_place(credentials: Any) -> None:
    for resource in (
        asked("http://p", credentials=credentials),
        body(spec__broker={"nats": {"url": "nats://n", "credentials": credentials}}),
    ):
        refused = parse(resource)
        assert isinstance(refused, InvalidQueueWorker)
        assert "s3cret" not in "; ".join(map(str, with_values(refused, resource).problems))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.rule)
def test_change(change: Change) -> None:
    before = parse(change.before)
    assert isinstance(before, QueueWorker)
    assert isinstance(parse_change(before, change.accepted), QueueWorker)
    refused = parse_change(before, change.refused)
    assert isinstance(refused, InvalidQueueWorker)
    assert [p.message for p in refused.problems] == [TRANSITION_BY_ID[change.rule].message]


@pytest.mark.parametrize(("path", "resource"), MALFORMED, ids=[path for path, _ in MALFORMED])
def test_malformed(path: str, resource: dict[str, Any]) -> None:
    refused = parse(resource)
    assert isinstance(refused, InvalidQueueWorker)
    assert [p.path for p in refused.problems] == [path]


def _template(worker: dict[str, Any] | None = None, pod: Any = None, labels: Any = None) -> dict[str, Any]:
    container = {"name": "worker", "image": "demo:v1", **(worker or {})}
    spec = {"containers": [container], **(pod or {})}
    return body(spec__template={"metadata": {"labels": labels}, "spec": spec})


@pytest.mark.parametrize(
    ("resource", "part"),
    [
        (_template({"env": "A=b"}), "spec.containers[0].env must be a list"),
        (_template({"env": ["A=b"]}), "spec.containers[0].env[0] is 'A=b'"),
        (_template({"env": [{"name": {"A": "b"}}]}), "spec.containers[0].env[0] is {'name'"),
        (_template({"ports": [8080]}), "spec.containers[0].ports[0] is 8080"),
        (_template(pod={"initContainers": ["wait"]}), "spec.initContainers[0] is 'wait'"),
        (_template(labels=["team=billing"]), "metadata.labels must be a mapping"),
    ],
    ids=["env", "env-entry", "env-name", "ports", "initContainers", "labels"],
)
def test_a_template_that_the_schema_cannot_see_into_is_refused_by_name(
    resource: dict[str, Any], part: str
) -> None:
    refused = parse(resource)
    assert isinstance(refused, InvalidQueueWorker)
    (problem,) = refused.problems
    assert problem.path == "spec.template"
    assert part in problem.message


def test_what_a_template_engine_leaves_empty_is_taken() -> None:
    assert isinstance(parse(_template({"env": None, "ports": None}, {"initContainers": None})), QueueWorker)


@pytest.mark.parametrize(
    ("resource", "told"),
    [
        (
            body(spec__rollout={"strategy": "Canary", "steps": "none"}),
            "spec.rollout.steps: must be a list (read 'none')",
        ),
        (body(spec__queue="mails"), "spec.queue: must be a mapping (read 'mails')"),
        (body(spec__replicas="2"), "spec.replicas: must be a whole number (read '2')"),
        (body(spec__coroutines=0), "spec.coroutines: must be at least 1 (read 0)"),
        (
            body(spec__rollout={"strategy": "BlueGreen"}),
            "spec.rollout.strategy: must be 'Rolling', 'Canary' or 'Manual' (read 'BlueGreen')",
        ),
        (
            in_steps({"analysis": {"durationSeconds": 60, "gates": ["Latency", "Latency"]}}),
            "spec.rollout.steps[1].analysis.gates: Latency is named more than once: name each gate once",
        ),
        (
            gated({"type": "Latency", "waiver": "slow"}),
            "spec.rollout.gates[0].waiver: must have at least 10 characters (read 'slow')",
        ),
    ],
    ids=["list", "mapping", "number", "bound", "choice", "a gate twice", "a short waiver"],
)
def test_what_is_wrong_is_told_in_words_of_yaml_with_its_place(resource: dict[str, Any], told: str) -> None:
    refused = parse(resource)
    assert isinstance(refused, InvalidQueueWorker)
    assert [str(problem) for problem in refused.problems] == [told]


def test_each_entry_that_breaks_a_rule_is_named() -> None:
    refused = parse(in_steps({}, {"pause": {}}, {"pause": {}, "setPrefetch": 100}))
    assert isinstance(refused, InvalidQueueWorker)
    assert [p.path for p in refused.problems] == ["spec.rollout.steps[1]", "spec.rollout.steps[3]"]


def test_an_unknown_field_is_named() -> None:
    refused = parse(body(spec__replica=2))
    assert isinstance(refused, InvalidQueueWorker)
    (problem,) = refused.problems
    assert str(problem) == "spec.replica: is not a field of this version: remove it, or check its spelling"


def test_all_problems_are_told_at_once() -> None:
    refused = parse(body("A" * 40, spec__prefetch=1))
    assert isinstance(refused, InvalidQueueWorker)
    assert {p.path for p in refused.problems} == {"metadata.name", "spec.prefetch"}


@pytest.mark.parametrize(
    ("resource", "part"),
    [
        ({}, "read None and None"),
        (body(kind="Deployment"), "'Deployment'"),
        (body(apiVersion="queueworker.dev/v9"), "'queueworker.dev/v9'"),
        (body(metadata__name=None), "metadata.name: is required"),
    ],
    ids=["empty", "another kind", "another version", "no name"],
)
def test_what_is_not_a_queueworker_is_an_error(resource: dict[str, Any], part: str) -> None:
    with pytest.raises(NotAQueueWorkerError, match=part):
        parse(resource)


def test_defaults() -> None:
    minimal = worker(
        spec__replicas=None, spec__coroutines=None, spec__prefetch=None, spec__broker__redis__topology=None
    )
    spec = minimal.spec
    assert (spec.replicas, spec.coroutines, spec.effective_prefetch) == (1, 1, 1)
    assert (spec.shutdown_seconds, spec.progress_deadline_seconds, spec.strategy) == (30, 600, "Rolling")
    redis = spec.broker.redis
    assert redis is not None
    assert (redis.topology, redis.key_namespace) == ("Standalone", "utopia-queue")


def test_a_status_that_cannot_be_read_counts_as_absent() -> None:
    assert worker(status={"conditions": "none"}).status == QueueWorkerStatus()


def test_a_status_of_a_newer_operator_is_read() -> None:
    assert worker(status={"replicas": 2, "fromTheFuture": {"a": 1}}).status == QueueWorkerStatus(replicas=2)
