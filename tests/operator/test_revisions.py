"""Names of revisions. The golden values must not change: if they do, every worker everywhere rolls."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from queueworker_operator.api.revisions import broker_identity, revision_of, version_of
from queueworker_operator.api.template import termination_grace_seconds, worker_container
from tests.operator.resources import body, template, worker

RICH = template("registry.example/app@sha256:0", terminationGracePeriodSeconds=45)
RICH["metadata"] = {"annotations": {"grüße": "😀"}, "labels": {"b": "1", "a": "2"}}


@pytest.mark.parametrize(
    ("changes", "golden"),
    [
        ({}, "h1-f9ac2c81"),
        ({"spec__template": RICH, "spec__coroutines": 1, "spec__shutdownSeconds": 20}, "h1-ef6df32a"),
        ({"spec__broker__redis": {"secretRef": {"name": "usage-redis"}}}, "h1-991194e1"),
        (
            {"spec__broker__redis": {"url": "redis://c", "topology": "Cluster", "keyNamespace": "{q}"}},
            "h1-b0495f24",
        ),
    ],
)
def test_golden(changes: dict[str, Any], golden: str) -> None:
    assert version_of(worker(**changes).spec) == golden


def test_names() -> None:
    revision = revision_of("a" * 32, worker(spec__prefetch=1000).spec)
    digits = revision.version.removeprefix("h1-")
    assert len(digits) == 8
    assert revision.name == f"h1-{digits}-p1000"
    assert revision.deployment == f"{'a' * 32}-{digits}-p1000"
    assert len(revision.deployment) == 47


@pytest.mark.parametrize(
    "change",
    [
        {"spec__template": template("demo:v2")},
        {"spec__coroutines": 5},
        {"spec__shutdownSeconds": 31},
        {"spec__queue__name": "other"},
        {"spec__broker__redis__url": "redis://other"},
        {"spec__broker__redis": {"secretRef": {"name": "a"}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_goes_into_pods_makes_another_version(change: dict[str, Any]) -> None:
    assert version_of(worker(**change).spec) != version_of(worker().spec)


@pytest.mark.parametrize(
    "change",
    [
        {"spec__prefetch": 50},
        {"spec__replicas": 9},
        {"spec__progressDeadlineSeconds": 60},
        {"spec__rollout": {"strategy": "Manual"}},
        {"spec__broker__redis__topology": "Standalone"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_does_not_go_into_pods_keeps_the_version(change: dict[str, Any]) -> None:
    assert version_of(worker(**change).spec) == version_of(worker().spec)


def test_the_order_of_keys_means_nothing() -> None:
    turned = copy.deepcopy(body())
    container = turned["spec"]["template"]["spec"]["containers"][0]
    turned["spec"]["template"]["spec"]["containers"][0] = dict(reversed(container.items()))
    assert version_of(worker(spec__template=turned["spec"]["template"]).spec) == version_of(worker().spec)


def test_a_prefetch_alone_is_another_revision_of_the_same_version() -> None:
    one, other = (revision_of("a", worker(spec__prefetch=n).spec) for n in (8, 100))
    assert one.version == other.version
    assert one.name != other.name


def test_another_broker_has_another_identity() -> None:
    a, b = worker(), worker(spec__broker__redis__url="redis://other")
    assert broker_identity(a.spec.broker) != broker_identity(b.spec.broker)
    assert broker_identity(a.spec.broker) == broker_identity(worker(spec__replicas=7).spec.broker)


def test_the_workers_container_is_the_one_of_that_name_or_the_first() -> None:
    named = {"spec": {"containers": [{"name": "proxy"}, {"name": "worker"}]}}
    assert worker_container(named)["name"] == "worker"
    assert worker_container({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}})["name"] == "a"


def test_the_pod_outlives_the_workers_deadline() -> None:
    assert termination_grace_seconds(template("i"), 30) == 45
    assert termination_grace_seconds(template("i", terminationGracePeriodSeconds=90), 30) == 90
