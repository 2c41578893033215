"""Two QueueWorkers with the same spec on one queue: what one of them does must not stop the other."""

from __future__ import annotations

from dataclasses import replace

from queueworker_operator.api.types import QueueWorker
from queueworker_operator.observe.neighbours import Neighbours
from queueworker_operator.plan.facts import RevisionFacts
from queueworker_operator.plan.planner import plan
from queueworker_operator.plan.queue_facts import LiveWorkers
from tests.operator.plan_words import steps
from tests.operator.resources import START, V1, V2, body, facts, on, queue, seen, wants

#: v2 serves; v1 served before and is wanted again.
BACK = wants("demo:v1", 2, on("v2").model_copy(update={"previous": V1.name}))
TO_NONE = wants("demo:v1", 0, on("v1"))
BOTH = (seen(V2, 2, created=1), seen(V1, 2, created=2))


def decided(resource: QueueWorker, *revisions: RevisionFacts, shared: str, live: dict[str, int]) -> list[str]:
    listed = {name: LiveWorkers(number, number) for name, number in live.items()}
    known = facts(resource, *revisions, reading=queue(resource, *revisions, live=listed))
    return steps(plan(resource, replace(known, shared=frozenset({shared})), START))


def test_a_shared_revision_is_left_without_a_fence() -> None:
    assert decided(BACK, *BOTH, shared=V2.name, live={V2.name: 4, V1.name: 2}) == ["v2 to 0"]
    assert decided(TO_NONE, seen(V1, 2), shared=V1.name, live={V1.name: 3}) == ["v1 to 0"]


def test_where_nobody_of_the_other_lives_the_fence_is_set() -> None:
    assert decided(BACK, *BOTH, shared=V2.name, live={V2.name: 2, V1.name: 2}) == [
        "fence v2",
        "v2 to 1",
    ]
    assert decided(TO_NONE, seen(V1, 2), shared=V1.name, live={V1.name: 2}) == ["fence v1"]


def neighbour(name: str, url: str = "redis://redis.infra:6379/0", **more: object) -> dict[str, object]:
    return body(
        name,
        spec__broker={"redis": {"url": url}},
        status={"revisions": [{"name": V1.name, "replicas": 1}, {"name": V2.name, "replicas": 0}]},
        **more,
    )


def test_neighbours_are_the_others_on_the_same_queue() -> None:
    def beside(*listed: dict[str, object]) -> frozenset[str]:
        known = Neighbours()
        for one in listed:
            known.add(one)
        return known.revisions_beside(neighbour("me"))

    assert beside(neighbour("me")) == frozenset()
    assert beside(neighbour("other")) == {V1.name}
    assert beside(neighbour("other", metadata__namespace="elsewhere")) == {V1.name}
    assert beside(neighbour("other", spec__queue={"name": "another"})) == frozenset()
    assert beside(neighbour("other", "redis://redis.other:6379/0")) == frozenset()
    assert beside(neighbour("other", "redis://[")) == frozenset()
    assert beside(neighbour("other", metadata__deletionTimestamp="2026-01-01T00:00:00Z")) == frozenset()


def test_a_name_without_a_dot_means_something_else_in_another_namespace() -> None:
    known = Neighbours()
    known.add(neighbour("other", "redis://redis:6379/0", metadata__namespace="elsewhere"))
    assert known.revisions_beside(neighbour("me", "redis://redis:6379/0")) == frozenset()
    known.add(neighbour("other", "redis://redis:6379/0"))
    assert known.revisions_beside(neighbour("me", "redis://redis:6379/0")) == {V1.name}


def test_a_neighbour_is_known_by_the_last_look_at_it() -> None:
    known, me = Neighbours(), neighbour("me")
    known.add({**neighbour("other"), "status": {}})
    assert known.revisions_beside(me) == frozenset(), "it has no workers yet"
    known.add(neighbour("other"))
    assert known.revisions_beside(me) == {V1.name}
    known.add(neighbour("other", metadata__deletionTimestamp="2026-01-01T00:00:00Z"))
    assert known.revisions_beside(me) == frozenset()
