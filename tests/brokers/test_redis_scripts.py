"""Every transition touches the keys that it declares and no others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.brokers.site import Site
from tests.brokers.test_redis_claims import envelope, push
from tests.services import RedisCluster
from worker_runtime.brokers.redis import scripts, transitions
from worker_runtime.brokers.redis.scripts import Call
from worker_runtime.brokers.redis.transitions import Candidate
from worker_runtime.envelope import retry_envelope

Runner = Callable[[Call], object]


def _steps(site: Site) -> Iterator[tuple[Call, object]]:
    """One life of a queue that takes every transition through all of its writes, with what each answers."""
    keys, client = site.keys, site.client
    push(site, *(envelope(f"p{n}") for n in range(9)), b"junk")
    client.blmove(keys.ready, keys.staging, 1, "RIGHT", "LEFT")
    yield transitions.unstage(keys), 1
    client.blmove(keys.ready, keys.staging, 1, "RIGHT", "LEFT")
    taken = transitions.take(keys, envelope("p0"), "p0", "r w take", "r", 60)
    yield taken, [b"claimed"]
    yield taken, [b"claimed"]
    yield transitions.take(keys, envelope("p0"), "p0", "r w other", "r", 60), [b"left"]
    yield transitions.settle(keys, ["p0"], ["r w take"], "l", 0), b"l"
    yield transitions.reserve(keys, "gone", "r", 1, 0), None
    yield transitions.recover_reservation(keys, "gone"), 1
    yield transitions.reserve(keys, "one", "r", 20, 60), None
    deadline = client.zscore(keys.reservations, "one")
    pids = [f"p{n}" for n in range(9)]
    # One pid has a record already, so that something stays in the reservation.
    client.set(keys.job("p8"), "taken")
    call = transitions.claim(
        keys, "one", b"%d" % deadline, "r w one", "r", 60, pids, [(9, b'{"reason":"json"}')]
    )
    yield call, [b"claimed", 8]
    yield call, [b"before", *range(8)]
    yield transitions.extend(keys, [("p0", "r w one"), ("p1", "r w other")], 60), [1]
    client.hset(keys.takeovers, mapping={"p0": 1, "p4": 1})
    tokens, why = ["r w one"] * 7, b'{"why":"handler"}'
    settled = ["p0", "p1", "p2", "none", "p5", "p6", "p7"]
    extras = (why, why, 0, *retry_envelope("q", b"1", 1), "")
    yield transitions.settle(keys, settled, tokens, "crlcdyd", 5, extras), b"crlmdyd"
    yield transitions.promote_delayed(keys), [1, -1]
    records = {pid: hashlib.sha1(client.get(keys.job(pid))).hexdigest() for pid in ("p1", "p5")}
    client.rpush(keys.failed, "gone")
    candidates = [
        Candidate("g", b"gone", 0, ""),
        Candidate("p", b"p1", 1, records["p1"], why),
        Candidate("q", b"none", 2, "", b"", b""),
    ]
    yield transitions.sweep(keys, candidates, 5, of_dead=False), b"gpx"
    place = client.lrange(keys.dead, 0, -1)[::-1].index(b"p5")
    head = retry_envelope("q", b"1", 1)
    candidates = [Candidate("q", b"p5", place, records["p5"], *head)]
    yield transitions.sweep(keys, candidates, 5, of_dead=True), b"q"
    client.zadd(keys.liveness, {"p3": 1, "stale": 1})
    client.lpush(keys.processing, "old")
    client.set(keys.job("old"), envelope("old"))
    client.zadd(keys.liveness, {"p4": 1})
    client.hset(keys.takeovers, "p3", 1)
    lost = [(b"p3", None), (b"p4", None), (b"old", 1.0), (b"stale", None)]
    yield transitions.recover_delivery(keys, lost[:1], 60, 3, 5), [1, 0, 0]
    yield transitions.recover_delivery(keys, lost, 60, 2, 5), [1, 0, 1]
    client.hset(keys.fence, "r", "stop")
    yield transitions.reserve(keys, "two", "r", 10, 60), [b"fenced", b"stop"]
    yield transitions.take(keys, envelope("p9"), "p9", "r w two", "r", 60), [b"fenced", b"stop"]
    client.zadd(keys.workers, {"silent": 1})
    yield transitions.beat(keys, "w", 60, b'{"revision":"r"}'), 1
    yield transitions.beat(keys, "w", 0, b""), 0
    yield transitions.read([("TIME",), ("HGET", keys.fence, "r")]), None
    yield transitions.read([("HGET", keys.fence, "r"), ("LINDEX", keys.ready, 99)]), [b"stop", None]


def run_all(site: Site, run: Runner) -> set[str]:
    seen = set()
    for call, expected in _steps(site):
        reply = run(call)
        assert expected is None or reply == expected, call.script.name
        seen.add(call.script.name)
    return seen


def _only_these_keys(client: Any, user: str, keys: list[str | bytes]) -> None:
    patterns = [f"~{key.decode() if isinstance(key, bytes) else key}" for key in keys]
    client.execute_command("ACL", "SETUSER", user, "reset", "on", ">pw", "+@all", *patterns)


def test_under_a_user_who_may_touch_only_the_declared_keys(standalone: Site) -> None:
    port = standalone.client.connection_pool.connection_kwargs["port"]

    def run(call: Call) -> object:
        _only_these_keys(standalone.client, "declared", list(call.keys))
        with redis.Redis(port=port, username="declared", password="pw") as user:
            return user.execute_command(*call.by_source())

    assert run_all(standalone, run) == {script.name for script in scripts.ALL}


def test_the_rule_of_the_test_above_bites(standalone: Site) -> None:
    port = standalone.client.connection_pool.connection_kwargs["port"]
    call = transitions.reserve(standalone.keys, "one", "r", 10, 60)
    push(standalone, envelope("a"))
    _only_these_keys(standalone.client, "fewer", list(call.keys[:-1]))
    with redis.Redis(port=port, username="fewer", password="pw") as user, pytest.raises(redis.ResponseError):
        user.execute_command(*call.by_source())


def test_on_a_cluster_that_checks_declared_keys(on_cluster: Site, redis_cluster: RedisCluster) -> None:
    """From Redis 7 on, a script whose first line is `#!lua` may not touch slots that it did not declare."""
    with redis.Redis(port=redis_cluster.nodes[0].port) as client:
        flagged = int(client.info("server")["redis_version"].split(".")[0]) >= 7

    def run(call: Call) -> object:
        source = "#!lua\n" + call.script.source if flagged else call.script.source
        return on_cluster.client.execute_command("EVAL", source, len(call.keys), *call.keys, *call.args)

    assert run_all(on_cluster, run) == {script.name for script in scripts.ALL}


def test_every_script_has_its_catalogue() -> None:
    for script in scripts.ALL:
        body = (scripts.script_directory() / f"{script.name}.lua").read_text("utf-8")
        assert body.startswith(f"-- {script.name.replace('_', ' ')}: ")
        assert "-- KEYS" in body
        assert "Returns" in body


def test_a_thousand_entries_fit_into_every_call(standalone: Site) -> None:
    keys, client = standalone.keys, standalone.client
    pids = [f"p{n}" for n in range(1000)]
    push(standalone, *(envelope(pid) for pid in pids))
    reply = client.execute_command(*transitions.reserve(keys, "one", "r", 5000, 0).by_source())
    assert len(reply) == 1002
    assert client.execute_command(*transitions.recover_reservation(keys, "one").by_source()) == 1000
    reply = client.execute_command(*transitions.reserve(keys, "one", "r", 5000, 60).by_source())
    claim = transitions.claim(keys, "one", reply[1], "r w one", "r", 60, pids)
    assert client.execute_command(*claim.by_source()) == [b"claimed"]
    owned = [(pid, "r w one") for pid in pids]
    assert client.execute_command(*transitions.extend(keys, owned, 0).by_source()) == []
    taken = transitions.recover_delivery(keys, [(pid.encode(), None) for pid in pids], 60)
    assert client.execute_command(*taken.by_source()) == [1000, 0, 0]
    reply = client.execute_command(*transitions.reserve(keys, "two", "r", 5000, 60).by_source())
    claim = transitions.claim(keys, "two", reply[1], "r w two", "r", 60, pids)
    assert client.execute_command(*claim.by_source()) == [b"claimed"]
    settle = transitions.settle(keys, pids, ["r w two"] * 1000, "l" * 1000, 0)
    assert client.execute_command(*settle.by_source()) == b"l" * 1000
    assert standalone.ready() == [envelope(pid) for pid in pids]
    reply = client.execute_command(*transitions.reserve(keys, "three", "r", 5000, 60).by_source())
    claim = transitions.claim(keys, "three", reply[1], "r w three", "r", 60, pids)
    assert client.execute_command(*claim.by_source()) == [b"claimed"]
    tokens, why = ["r w three"] * 1000, b'{"why":"handler"}'
    settle = transitions.settle(keys, pids, tokens, "r" * 1000, 60, [why] * 1000)
    assert client.execute_command(*settle.by_source()) == b"r" * 1000
    sha1 = [hashlib.sha1(envelope(pid)).hexdigest() for pid in pids]
    sweep = [
        Candidate("q", pid.encode(), n, sha1[n], *retry_envelope("q", b"1", 1)) for n, pid in enumerate(pids)
    ]
    call = transitions.sweep(keys, sweep, 60, of_dead=False)
    assert client.execute_command(*call.by_source()) == b"q" * 1000
    reply = client.execute_command(*transitions.reserve(keys, "four", "r", 5000, 60).by_source())
    fresh = [json.loads(raw)["pid"] for raw in reply[2:]]
    claim = transitions.claim(keys, "four", reply[1], "r w four", "r", 60, fresh)
    assert client.execute_command(*claim.by_source()) == [b"claimed"]
    extras = [part for pid in fresh for part in (0, *retry_envelope("q", b"1", 2))]
    settle = transitions.settle(keys, fresh, ["r w four"] * 1000, "y" * 1000, 60, extras)
    assert client.execute_command(*settle.by_source()) == b"y" * 1000
    assert client.execute_command(*transitions.promote_delayed(keys).by_source()) == [1000, -1]
