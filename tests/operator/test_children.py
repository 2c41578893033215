"""The Deployment that a revision becomes, and what Deployments and pods say in turn."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import Any

import pytest

from queueworker_operator.act.children import render
from queueworker_operator.act.status import status_patch
from queueworker_operator.api.parse import parse
from queueworker_operator.api.revisions import Revision, broker_place, revision_of
from queueworker_operator.api.types import Metadata, QueueWorker
from queueworker_operator.observe.children import ADMIN_PORT, child_of
from queueworker_operator.observe.pods import failure_of, is_alive, is_ready
from queueworker_operator.plan.facts import Restarts
from tests.operator.resources import START

Body = dict[str, Any]


def _resource(container: Body | None = None, *, broker: Body | None = None, **template: Any) -> QueueWorker:
    spec = {
        "queue": {"name": "mails"},
        "broker": broker or {"redis": {"secretRef": {"name": "redis", "key": "uri"}}},
        "coroutines": 2,
        "prefetch": 9,
        "template": {
            "spec": {
                "containers": [
                    {"name": "sidecar", "image": "proxy:1"},
                    {"name": "worker", "image": "mails:1", **(container or {})},
                ],
                **template,
            }
        },
    }
    body = {
        "apiVersion": "queueworker.dev/v1alpha1",
        "kind": "QueueWorker",
        "metadata": {"name": "mails", "namespace": "shop", "uid": "u-1"},
        "spec": spec,
    }
    resource = parse(body)
    assert isinstance(resource, QueueWorker), resource
    return resource


def _rendered(resource: QueueWorker, epoch: int = 3) -> Body:
    return render(resource.metadata, _revision(resource), 2, epoch)


def _revision(resource: QueueWorker) -> Revision:
    return revision_of("mails", resource.spec)


def _worker(deployment: Body) -> Body:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    found: Body = next(c for c in containers if c["name"] == "worker")
    return found


def test_the_worker_gets_its_variables_and_keeps_its_own() -> None:
    given = {"env": [{"name": "MINE", "value": "x"}]}
    deployment = _rendered(_resource(given))
    variables = {e["name"]: e.get("value", e.get("valueFrom")) for e in _worker(deployment)["env"]}
    revision = _revision(_resource(given))
    assert variables == {
        "MINE": "x",
        "QUEUEWORKER_BROKER_URL": {"secretKeyRef": {"name": "redis", "key": "uri"}},
        "QUEUEWORKER_NAMESPACE": "utopia-queue",
        "QUEUEWORKER_QUEUE": "mails",
        "QUEUEWORKER_COROUTINES": "2",
        "QUEUEWORKER_PREFETCH": "9",
        "QUEUEWORKER_REVISION": revision.name,
        "QUEUEWORKER_SHUTDOWN_SECONDS": "30",
        "QUEUEWORKER_ADMIN_PORT": str(ADMIN_PORT),
    }
    sidecar = deployment["spec"]["template"]["spec"]["containers"][0]
    assert "env" not in sidecar
    assert "readinessProbe" not in sidecar


def test_credentials_for_nats_are_files_of_the_worker_alone() -> None:
    nats = {
        "secretRef": {"name": "mails-nats", "key": "uri"},
        "credentials": {"login": {"name": "login"}},
        "tls": {"ca": {"name": "tls", "key": "root.pem"}, "certificate": {"name": "tls"}},
    }
    given = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    resource = _resource(given, broker={"nats": nats}, volumes=[{"name": "data", "emptyDir": {}}])
    deployment = _rendered(resource)
    variables = {e["name"]: e.get("value", e.get("valueFrom")) for e in _worker(deployment)["env"]}
    assert variables["QUEUEWORKER_BROKER_URL"] == {"secretKeyRef": {"name": "mails-nats", "key": "uri"}}
    assert variables["QUEUEWORKER_NAMESPACE"] == "utopia-queue"
    path = variables["QUEUEWORKER_NATS_CREDENTIALS"]
    own, ours = _worker(deployment)["volumeMounts"]
    assert own == {"name": "data", "mountPath": "/data"}
    assert (ours["mountPath"], ours["readOnly"]) == (path, True)
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"] == [
        {"name": "data", "emptyDir": {}},
        {
            "name": ours["name"],
            "projected": {
                "sources": [
                    {
                        "secret": {
                            "name": "login",
                            "items": [
                                {"key": "username", "path": "username"},
                                {"key": "password", "path": "password"},
                            ],
                        }
                    },
                    {
                        "secret": {
                            "name": "tls",
                            "items": [
                                {"key": "root.pem", "path": "ca.crt"},
                                {"key": "tls.crt", "path": "tls.crt"},
                                {"key": "tls.key", "path": "tls.key"},
                            ],
                        }
                    },
                ]
            },
        },
    ]
    assert "volumeMounts" not in pod["containers"][0], "the sidecar"
    bare = _rendered(_resource(broker={"nats": {"url": "nats://nats:4222"}}))
    assert "volumes" not in bare["spec"]["template"]["spec"]


def test_defaults_are_set_only_where_the_template_says_nothing() -> None:
    bare = _rendered(_resource())
    assert bare["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 45
    assert bare["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    assert _worker(bare)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert _worker(bare)["readinessProbe"]["httpGet"]["path"] == "/readyz"

    own = {
        "securityContext": {"runAsUser": 0},
        "readinessProbe": {"exec": {"command": ["true"]}},
        "livenessProbe": {"exec": {"command": ["true"]}},
    }
    given = _rendered(_resource(own, terminationGracePeriodSeconds=100, securityContext={"fsGroup": 7}))
    assert given["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 100
    assert given["spec"]["template"]["spec"]["securityContext"] == {"fsGroup": 7}
    assert {key: _worker(given)[key] for key in own} == own


def test_the_pod_template_does_not_depend_on_epoch_or_number() -> None:
    resource = _resource()
    one = render(resource.metadata, _revision(resource), 1, 1)
    two = render(resource.metadata, _revision(resource), 7, 9)
    assert one["spec"]["template"] == two["spec"]["template"]
    assert one["metadata"]["name"] == two["metadata"]["name"]


def test_the_users_template_is_not_changed() -> None:
    resource = _resource()
    before = copy.deepcopy(resource.spec.template)
    _rendered(resource)
    assert resource.spec.template == before


def _live(resource: QueueWorker, **changes: Any) -> Body:
    deployment = _rendered(resource)
    deployment["metadata"] |= {
        "uid": "d-1",
        "generation": 2,
        "resourceVersion": "10",
        "creationTimestamp": "2026-11-01T00:00:00Z",
    }
    deployment["status"] = {"observedGeneration": 2, "replicas": 2}
    for path, value in changes.items():
        part, _, key = path.partition("__")
        deployment[part][key] = value
    return deployment


def _pod(deployment: Body, name: str, **status: Any) -> Body:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    made = {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": made, "status": {"phase": "Running", **status}}


READY = [{"type": "Ready", "status": "True"}]


def test_stopping_pods_are_alive_and_not_ready() -> None:
    resource = _resource()
    live = _live(resource, status__replicas=1)
    stopping = _pod(live, "b", conditions=READY)
    stopping["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    ended = _pod(live, "c", phase="Succeeded")
    child = child_of(
        live,
        resource.metadata,
        _revision(resource),
        [_pod(live, "a", conditions=READY), stopping, ended],
        START,
    )
    assert child is not None
    assert (child.facts.alive, child.facts.ready, child.facts.available) == (2, 1, 1)
    assert child.facts.coroutines == 2
    assert child.facts.caught_up


def test_a_pod_is_available_when_it_was_ready_for_as_long_as_is_asked() -> None:
    resource = _resource()
    live = _live(resource)
    since = [{**READY[0], "lastTransitionTime": f"2025-12-31T23:59:{second}Z"} for second in (50, 58)]
    pods = [_pod(live, name, conditions=[one]) for name, one in zip("ab", since, strict=True)]
    for seconds, available in ((0, 2), (5, 1), (10, 1), (11, 0)):
        child = child_of(
            live, resource.metadata, _revision(resource), pods, START, timedelta(seconds=seconds)
        )
        assert child is not None
        assert (child.facts.ready, child.facts.available) == (2, available), seconds


def test_containers_that_were_started_again_are_told_by_the_last_end() -> None:
    def container(name: str, count: int, ended: str, code: int) -> Body:
        end = {"terminated": {"exitCode": code, "finishedAt": ended}} if count else {}
        return {"name": name, "image": "mails:1", "ready": True, "restartCount": count, "lastState": end}

    resource = _resource()
    live = _live(resource)
    pods = [
        _pod(live, "a", containerStatuses=[container("worker", 2, "2026-01-01T00:00:05Z", 1)]),
        _pod(live, "b", containerStatuses=[container("worker", 1, "2026-01-01T00:00:09Z", 137)]),
        _pod(live, "c", containerStatuses=[container("worker", 0, "", 0)]),
        _pod(
            live, "d", phase="Failed", containerStatuses=[container("worker", 7, "2026-01-01T00:01:00Z", 1)]
        ),
    ]
    child = child_of(live, resource.metadata, _revision(resource), pods, START)
    assert child is not None
    assert child.facts.restarts == Restarts(
        3,
        datetime.fromisoformat("2026-01-01T00:00:09Z"),
        "pod b: container worker ended with exit code 137: read `kubectl logs b -c worker --previous`.",
        (("a/worker", 2), ("b/worker", 1)),
    )
    nobody = child_of(live, resource.metadata, _revision(resource), pods[2:], START)
    assert nobody is not None
    assert nobody.facts.restarts is None


def test_the_youngest_worker_is_the_one_whose_container_started_last() -> None:
    resource = _resource()
    live = _live(resource)
    states: list[Body] = [{"running": {"startedAt": "2026-01-01T00:05:00Z"}}, {"waiting": {}}]
    again = [{"name": "worker", "image": "mails:1", "state": state} for state in states]
    pods = [_pod(live, "a"), _pod(live, "b", containerStatuses=again), _pod(live, "c", phase="Failed")]
    pods[2]["metadata"]["creationTimestamp"] = "2026-01-01T00:09:00Z"
    for some, expected in ((pods[:1], "2026-01-01T00:00:00+00:00"), (pods, "2026-01-01T00:05:00+00:00")):
        child = child_of(live, resource.metadata, _revision(resource), some, START)
        assert child is not None
        assert child.facts.started_at == datetime.fromisoformat(expected)
    nobody = child_of(live, resource.metadata, _revision(resource), pods[2:], START)
    assert nobody is not None
    assert nobody.facts.started_at is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"status__observedGeneration": 1}, {"caught_up": False}),
        ({"metadata__ownerReferences": []}, {"owned": False, "conflict": ""}),
    ],
)
def test_what_a_deployment_says_of_itself(change: Body, expected: Body) -> None:
    resource = _resource()
    child = child_of(_live(resource, **change), resource.metadata, _revision(resource), [], START)
    assert child is not None
    assert {key: getattr(child.facts, key) for key in expected} == expected


@pytest.mark.parametrize(
    "broker",
    [
        {"redis": {"url": "redis://redis:6379/0"}},
        {"redis": {"secretRef": {"name": "redis", "key": "url"}}},
        {"nats": {"url": "nats://nats:4222"}},
    ],
)
def test_a_deployment_says_from_which_broker_it_consumes(broker: Body) -> None:
    resource = _resource(broker=broker)
    child = child_of(_live(resource), resource.metadata, None, [], START)
    assert child is not None
    assert child.facts.broker == broker_place(resource.spec.broker)
    elsewhere = _resource(broker={"redis": {"url": "redis://elsewhere:6379/0"}})
    assert child.facts.broker != broker_place(elsewhere.spec.broker)


def test_a_child_of_somebody_else_names_its_owner() -> None:
    resource = _resource()
    owner = [{"kind": "Rollout", "name": "other", "uid": "x", "controller": True}]
    child = child_of(
        _live(resource, metadata__ownerReferences=owner), resource.metadata, _revision(resource), [], START
    )
    assert child is not None
    assert "Rollout other" in child.facts.conflict


def test_the_child_of_a_deleted_namesake_is_not_adopted() -> None:
    resource = _resource()
    renewed = Metadata(name="mails", namespace="shop", uid="u-2")
    child = child_of(_live(resource), renewed, _revision(resource), [], START)
    assert child is not None
    assert "deleted" in child.facts.conflict


def test_a_pod_that_should_have_been_gone_is_told_apart_from_one_that_has_time_to_stop() -> None:
    resource = _resource()
    live = _live(resource)
    pods = [_pod(live, name) for name in ("a", "b", "c")]
    pods[0]["metadata"]["deletionTimestamp"] = "2025-12-31T23:59:00Z"
    pods[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:10Z"
    child = child_of(live, resource.metadata, _revision(resource), pods, START)
    assert child is not None
    assert (child.facts.alive, child.facts.overdue) == (3, 1)


def test_an_autoscaler_is_known_by_what_it_wrote_and_a_person_is_none() -> None:
    def scaled_by(manager: str, subresource: str = "scale", field: str = "f:replicas") -> str:
        entry = {"manager": manager, "subresource": subresource, "fieldsV1": {"f:spec": {field: {}}}}
        resource = _resource()
        live = _live(resource, metadata__managedFields=[{"manager": "somebody"}, entry])
        child = child_of(live, resource.metadata, _revision(resource), [], START)
        assert child is not None
        return child.facts.scaled_by

    assert scaled_by("kube-controller-manager") == "a HorizontalPodAutoscaler"
    assert scaled_by("keda") == "KEDA"
    assert scaled_by("kubectl") == ""
    assert scaled_by("kube-controller-manager", "status") == ""
    assert scaled_by("kube-controller-manager", field="f:paused") == ""


def _waiting(reason: str, message: str = "", **more: Any) -> list[Body]:
    state = {"waiting": {"reason": reason, "message": message}}
    return [{"name": "worker", "image": "mails:1", "ready": False, "state": state, **more}]


def test_both_words_for_a_missing_image_say_the_same() -> None:
    live = _live(_resource())
    error = 'failed to pull and unpack image "mails:1": not found'
    first = failure_of([_pod(live, "a", containerStatuses=_waiting("ErrImagePull", error))])
    then = f'Back-off pulling image "mails:1": ErrImagePull: {error}'
    second = failure_of([_pod(live, "a", containerStatuses=_waiting("ImagePullBackOff", then))])
    assert first == second
    assert first is not None
    assert "mails:1" in first.message
    assert "not found" in first.message


def test_a_crash_says_the_same_while_it_waits_and_while_it_runs_again() -> None:
    live = _live(_resource())
    last = {"lastState": {"terminated": {"exitCode": 2, "reason": "Error"}}}
    waits = failure_of([_pod(live, "a", containerStatuses=_waiting("CrashLoopBackOff", "x", **last))])
    running = [{"name": "worker", "image": "i", "ready": False, "state": {"running": {}}, **last}]
    runs = failure_of([_pod(live, "a", containerStatuses=running)])
    assert waits == runs
    assert waits is not None
    assert "exit code 2" in waits.message
    assert failure_of([_pod(live, "a", containerStatuses=running, conditions=READY)]) is None


def test_a_pod_whose_node_is_lost_counts_as_alive() -> None:
    live = _live(_resource())
    lost = _pod(live, "a", conditions=[{"type": "Ready", "status": "Unknown"}])
    lost["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    assert is_alive(lost)
    assert not is_ready(lost)


def test_a_creation_failure_does_not_change_with_the_name_that_each_try_makes_up() -> None:
    resource = _resource()
    name = _revision(resource).deployment

    def seen(suffix: str) -> str:
        condition = {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": f'pods "{name}-77f-{suffix}" is forbidden: exceeded quota: pods',
        }
        live = _live(resource, status__conditions=[condition])
        child = child_of(live, resource.metadata, _revision(resource), [], START)
        assert child is not None
        assert child.facts.failure is not None
        return child.facts.failure.message

    assert seen("abcde") == seen("fghij")
    assert "exceeded quota" in seen("abcde")


def test_a_status_patch_takes_away_what_vanished() -> None:
    before = {"a": 1, "rollout": {"stage": "Promoting", "startedAt": "x"}, "gone": [1], "same": [1, 2]}
    after = {"a": 2, "rollout": {"stage": "Idle"}, "same": [1, 2], "new": []}
    assert status_patch(before, after) == {
        "a": 2,
        "rollout": {"stage": "Idle", "startedAt": None},
        "gone": None,
        "new": [],
    }
    assert status_patch(after, after) == {}
