"""What one list of everything may be used for, and for how long."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from queueworker_operator.act.children import render
from queueworker_operator.api.names import LABEL_PREFETCH, LABEL_VERSION, LABEL_WORKER
from queueworker_operator.apiserver import ApiError, ApiServer
from queueworker_operator.observe.cluster import made_of
from queueworker_operator.observe.shelf import Shelf, Shelved
from queueworker_operator.plan.facts import FRESH
from tests.operator.api_stand_in import served
from tests.operator.resources import START, body, target_of, worker

Body = dict[str, Any]
MANAGED = [{"manager": "somebody", "fieldsV1": {"f:spec": {}}}]


class Lists:
    """A server with some objects, which it gives out in pages of two."""

    def __init__(self) -> None:
        self.of: dict[str, list[Body]] = {"queueworkers": [], "deployments": [], "pods": []}
        self.asked: list[str] = []
        self.refuses = ""
        self.meanwhile: Callable[[], None] = lambda: None
        for name in ("a", "b", "c"):
            resource = worker(metadata__name=name, metadata__uid=f"uid-{name}")
            revision = target_of(resource)
            rendered = copy.deepcopy(dict(render(resource.metadata, revision, 2, 1)))
            rendered["metadata"] |= {
                "uid": f"uid-d-{name}",
                "resourceVersion": "5",
                "generation": 1,
                "namespace": "workers",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": MANAGED,
            }
            rendered["status"] = {"observedGeneration": 1, "replicas": 1}
            labels = {LABEL_WORKER: name, LABEL_VERSION: revision.version, LABEL_PREFETCH: "100"}
            pod = {
                "metadata": {
                    "name": f"{name}-1",
                    "namespace": "workers",
                    "labels": labels,
                    "uid": f"uid-p-{name}",
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                    "resourceVersion": "6",
                },
                "spec": {"containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }
            status = {"rollout": {"stage": "Idle"}}
            given = body(metadata__name=name, metadata__uid=f"uid-{name}", status=status)
            given["metadata"] |= {"resourceVersion": "4", "managedFields": MANAGED}
            self.of["queueworkers"].append(given)
            self.of["deployments"].append(rendered)
            self.of["pods"].append(pod)

    async def answer(self, request: web.Request) -> web.Response:
        kind = request.path.rpartition("/")[2]
        self.asked.append(kind)
        self.meanwhile()
        if kind == self.refuses:
            return web.json_response({"reason": "Forbidden", "message": "not you"}, status=403)
        start = int(request.query.get("continue", "0"))
        page, rest = self.of[kind][start : start + 2], start + 2 < len(self.of[kind])
        metadata = {"resourceVersion": "9"} | ({"continue": str(start + 2)} if rest else {})
        return web.json_response({"items": page, "metadata": metadata})


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def lists() -> Lists:
    return Lists()


@pytest.fixture
async def api(lists: Lists, tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with served(lists.answer, tmp_path) as client:
        yield client


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shelf(api: ApiServer, clock: Clock) -> Shelf:
    return Shelf(api, ("workers",), clock)


def found(shelf: Shelf, name: str) -> Shelved:
    there = shelf.find("workers", name)
    assert there is not None
    return there[0]


async def test_three_lists_serve_everybody(shelf: Shelf, lists: Lists) -> None:
    assert {name for _, name in await shelf.fill()} == {"a", "b", "c"}
    assert len(lists.asked) == 6, "three collections of two pages"
    for name in ("a", "b", "c"):
        one = found(shelf, name)
        assert one.calm() is not None
        made, children, unattached = one.children(made_of, START)
        assert unattached == 0
        (child,) = children.values()
        assert set(made) == {child.facts.deployment}
        assert (child.facts.desired, child.facts.ready, child.facts.alive) == (2, 1, 1)
        assert child.facts.owned
    assert len(lists.asked) == 6


async def test_it_is_of_the_moment_before_the_list_and_of_no_use_when_it_is_old(
    shelf: Shelf, clock: Clock
) -> None:
    await shelf.fill()
    there = shelf.find("workers", "a")
    assert there is not None
    assert there[1] == START
    clock.now += FRESH - timedelta(seconds=1.1)
    assert shelf.find("workers", "a") is not None
    clock.now += timedelta(seconds=0.2)
    assert shelf.find("workers", "a") is None
    await shelf.fill()
    assert shelf.find("workers", "a") is not None


async def test_what_was_reported_since_is_not_judged_by_it(shelf: Shelf, clock: Clock) -> None:
    await shelf.fill()
    clock.now += timedelta(seconds=1)
    shelf.report("workers", "a")
    assert shelf.find("workers", "a") is None
    assert shelf.find("workers", "b") is not None
    clock.now += timedelta(seconds=1)
    await shelf.fill()
    assert shelf.find("workers", "a") is not None


async def test_a_report_while_the_list_is_read_counts_as_newer(shelf: Shelf, lists: Lists) -> None:
    lists.meanwhile = lambda: shelf.report("workers", "b")
    await shelf.fill()
    assert shelf.find("workers", "a") is not None
    assert shelf.find("workers", "b") is None


async def test_what_stayed_the_same_is_kept_and_what_changed_is_read_anew(shelf: Shelf, lists: Lists) -> None:
    await shelf.fill()
    before = {name: found(shelf, name) for name in ("a", "b", "c")}
    lists.of["pods"][1]["status"]["conditions"][0]["status"] = "False"
    lists.of["pods"][1]["metadata"]["resourceVersion"] = "7"
    await shelf.fill()
    assert found(shelf, "a") is before["a"]
    assert found(shelf, "b") is not before["b"]
    assert found(shelf, "b").calm() is not None
    (child,) = found(shelf, "b").children(made_of, START)[1].values()
    assert child.facts.ready == 0


async def test_what_an_autoscaler_wrote_is_kept_of_a_list(shelf: Shelf, lists: Lists) -> None:
    entry = {
        "manager": "kube-controller-manager",
        "subresource": "scale",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
    }
    lists.of["deployments"][1]["metadata"]["managedFields"] = [*MANAGED, entry]
    await shelf.fill()
    told = {}
    for name in ("a", "b"):
        one = found(shelf, name)
        assert one.calm() is not None
        (child,) = one.children(made_of, START)[1].values()
        told[name] = child.facts.scaled_by
    assert told == {"a": "", "b": "a HorizontalPodAutoscaler"}


@pytest.mark.parametrize(
    "changed",
    [
        {"status": {"rollout": {"stage": "CanaryScaling"}}},
        {"status": None},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
    ids=["on its way", "new", "deleted"],
)
async def test_whoever_is_on_the_way_is_looked_at(shelf: Shelf, lists: Lists, changed: Body) -> None:
    resource = lists.of["queueworkers"][0]
    resource["metadata"] |= changed.pop("metadata", {})
    resource |= changed
    await shelf.fill()
    assert found(shelf, "a").calm() is None
    assert found(shelf, "b").calm() is not None


async def test_a_list_that_is_refused_leaves_the_one_before(shelf: Shelf, lists: Lists) -> None:
    await shelf.fill()
    before = found(shelf, "a")
    lists.refuses = "pods"
    with pytest.raises(ApiError, match="not you"):
        await shelf.fill()
    assert found(shelf, "a") is before


async def test_a_list_is_only_old_where_it_was_the_last_word_on_something_at_rest(
    shelf: Shelf, lists: Lists, clock: Clock
) -> None:
    lists.of["queueworkers"][2]["status"] = {"rollout": {"stage": "CanaryScaling"}}
    await shelf.fill()
    clock.now += FRESH
    shelf.report("workers", "b")
    assert [shelf.is_old("workers", name) for name in ("a", "b", "c", "d")] == [True, False, False, False]
