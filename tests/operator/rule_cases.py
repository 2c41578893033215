"""For each rule one object that it accepts and one that it refuses: for Python here, for an API server in
tests/cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.operator.resources import body, template

CLUSTER = {"url": "redis://redis:6379", "topology": "Cluster"}
NATS = {"url": "nats://nats:4222"}
SENTINEL = {"url": "rediss+sentinel://a:26379,b:26379/main", "topology": "Sentinel"}

SCALE = {"setCanaryScale": {"replicas": 1}}
MEASURE = {"analysis": {"durationSeconds": 60}}
AUDITED = {"type": "UsageAccounting", "job": {"template": template("demo:audit")}}
PROMETHEUS = {"url": "http://prometheus:9090", "query": "usage_lost"}
ASKED = {"type": "UsageAccounting", "prometheus": PROMETHEUS}


@dataclass(frozen=True)
class Case:
    rule: str
    accepted: dict[str, Any]
    refused: dict[str, Any]
    #: Of a rule about the entries of a list: the one that is refused.
    entry: int | None = None


@dataclass(frozen=True)
class Change:
    """`before` may become `accepted` but not `refused`."""

    rule: str
    before: dict[str, Any]
    accepted: dict[str, Any]
    refused: dict[str, Any]


def on_nats(**more: Any) -> dict[str, Any]:
    return body(spec__broker={"nats": NATS | more})


def tagged(namespace: str) -> dict[str, Any]:
    return body(spec__broker__redis=CLUSTER | {"keyNamespace": namespace})


def in_steps(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A canary whose first step is as it should be."""
    return body(spec__rollout={"strategy": "Canary", "steps": [SCALE, *steps]}, **more)


def asked(url: str, **more: Any) -> dict[str, Any]:
    """A canary for which a Prometheus is asked there."""
    return gated(ASKED | {"prometheus": PROMETHEUS | {"url": url, **more}})


def gated(*gates: dict[str, Any]) -> dict[str, Any]:
    return body(spec__rollout={"strategy": "Canary", "steps": [SCALE, MEASURE], "gates": list(gates)})


CASES = (
    Case("name-length", body("a" * 32), body("a" * 33)),
    Case("name-label", body("0-a"), body("a.b")),
    Case("one-broker", body(), body(spec__broker={})),
    Case("one-broker", on_nats(), body(spec__broker__nats=NATS)),
    Case("one-nats-url-source", on_nats(), body(spec__broker={"nats": {}})),
    Case(
        "one-nats-url-source",
        body(spec__broker={"nats": {"secretRef": {"name": "mails-nats"}}}),
        on_nats(secretRef={"name": "mails-nats"}),
    ),
    Case(
        "request-revision",
        body(spec__request={"id": "1", "action": "Rollback", "revision": "h1-0-p1"}),
        body(spec__request={"id": "1", "action": "Abort", "revision": "h1-0-p1"}),
    ),
    Case("nats-url", on_nats(url="tls://a:1,b:2"), on_nats(url="redis://nats:4222")),
    Case("nats-url", on_nats(url="nats://me:secret@a"), on_nats(url="nats://a?creds=/user.creds")),
    Case(
        "nats-signs-in-once",
        on_nats(credentials={"token": {"name": "s"}}),
        on_nats(url="nats://me@a", credentials={"token": {"name": "s"}}),
    ),
    Case("one-nats-credential", on_nats(credentials={"login": {"name": "s"}}), on_nats(credentials={})),
    Case(
        "one-nats-credential",
        on_nats(credentials={"creds": {"name": "s", "key": "mails.creds"}}),
        on_nats(credentials={"creds": {"name": "s"}, "nkey": {"name": "s"}}),
    ),
    Case("nats-tls", on_nats(tls={"ca": {"name": "s"}, "certificate": {"name": "s"}}), on_nats(tls={})),
    Case(
        "one-url-source",
        body(spec__broker__redis={"secretRef": {"name": "usage-redis"}}),
        body(spec__broker__redis={"url": "redis://redis:6379", "secretRef": {"name": "usage-redis"}}),
    ),
    Case("one-url-source", body(), body(spec__broker__redis={})),
    Case("hash-tag", tagged("{utopia-queue}"), body(spec__broker__redis=CLUSTER)),
    Case("hash-tag", tagged("app.{q}.x"), tagged("{a}{b}")),
    Case("hash-tag", tagged("{a b}"), tagged("{}x")),
    Case(
        "hash-tag", body(spec__broker__redis__keyNamespace="{}x"), tagged("a}{b")
    ),  # Standalone takes any name
    Case("sentinel-url", body(spec__broker__redis=SENTINEL), body(spec__broker__redis__topology="Sentinel")),
    Case(
        "sentinel-url",
        body(spec__broker__redis={"secretRef": {"name": "usage-redis"}, "topology": "Sentinel"}),
        body(spec__broker__redis=SENTINEL | {"topology": "Standalone"}),
    ),
    Case("prefetch", body(spec__prefetch=4), body(spec__prefetch=3)),
    Case("prefetch", body(spec__prefetch=None), body(spec__coroutines=101)),
    Case(
        "min-ready",
        body(spec__minReadySeconds=59, spec__progressDeadlineSeconds=60),
        body(spec__minReadySeconds=60, spec__progressDeadlineSeconds=60),
    ),
    Case(
        "grace",
        body(spec__template=template("i", terminationGracePeriodSeconds=31)),
        body(spec__template=template("i", terminationGracePeriodSeconds=30)),
    ),
    Case(
        "grace",
        body(spec__shutdownSeconds=3600),
        body(spec__shutdownSeconds=31, spec__template=template("i", terminationGracePeriodSeconds=31)),
    ),
    Case(
        "revoked-versions",
        body(spec__revokedVersions=["h1-5d0c1f9a", "h1-77ab01c3"]),
        body(spec__revokedVersions=["h1-5d0c1f9a", "h1-77ab01c3-p8"]),
        1,
    ),
    Case("canary-steps", in_steps(), body(spec__rollout={"strategy": "Canary"})),
    Case(
        "canary-steps",
        body(spec__rollout={}),
        body(spec__rollout={"strategy": "Canary", "steps": [{"setPrefetch": 100}, SCALE]}),
    ),
    Case(
        "steps-need-canary",
        body(spec__rollout={"strategy": "Manual"}),
        body(spec__rollout={"strategy": "Manual", "steps": [SCALE]}),
    ),
    Case("one-verb", in_steps({"pause": {}}), in_steps({}), 1),
    Case("one-verb", in_steps({"setPrefetch": 100}), in_steps({"setPrefetch": 100, "pause": {}}), 1),
    Case("one-verb", in_steps(MEASURE), in_steps(MEASURE | {"pause": {}}), 1),
    Case(
        "gate-fields",
        gated({"type": "QueueProgress", "minPercentOfStable": 95}),
        gated({"type": "UsageAccounting", "minPercentOfStable": 95}),
        0,
    ),
    Case(
        "gate-fields",
        gated({"type": "QueueProgress", "waiver": "load comes in bursts"}),
        gated({"type": "QueueProgress", "waiver": "load comes in bursts", "minPercentOfStable": 95}),
        0,
    ),
    Case("gate-audit", gated(AUDITED), gated(AUDITED | {"type": "Latency"}), 0),
    Case("gate-audit", gated(AUDITED), gated(AUDITED | {"waiver": "counted by somebody else"}), 0),
    Case("gate-audit", gated(ASKED), gated(ASKED | {"type": "QueueProgress"}), 0),
    Case("gate-audit", gated(ASKED), gated(ASKED | AUDITED), 0),
    Case(
        "gate-waiver",
        gated({"type": "Latency", "waiver": "no handler"}),
        gated({"type": "Latency", "waiver": " " * 12}),
        0,
    ),
    Case(
        "gate-waiver",
        gated({"type": "Latency", "waiver": "why:\nbursts\n"}),
        gated({"type": "Latency", "waiver": "  bursts\n   "}),
        0,
    ),
    Case("prometheus-url", asked("https://a.example/prometheus/"), asked("http://me:secret@prometheus"), 0),
    Case("prometheus-url", asked("http://[::1]:9090"), asked("prometheus:9090"), 0),
    Case("prometheus-url", asked("http://p"), asked("http://p?tenant=a"), 0),
    Case(
        "prometheus-path",
        asked("https://k/api/v1/namespaces/m/services/p:9090/proxy"),
        asked("http://p:9090/api/v1"),
        0,
    ),
    Case("prometheus-path", asked("http://p/api/v1x"), asked("http://p/prometheus/api/v1/query/"), 0),
    Case("prometheus-path", asked("http://p/api"), asked("http://p/api/v1/"), 0),
    Case(
        "one-prometheus-credential",
        asked("http://p", credentials={"login": {"name": "p"}}),
        asked("http://p", credentials={}),
        0,
    ),
    Case(
        "one-prometheus-credential",
        asked("https://p", credentials={"token": {"name": "p", "key": "k"}}, tls={"ca": {"name": "p"}}),
        asked("https://p", credentials={"token": {"name": "p"}, "login": {"name": "p"}}),
        0,
    ),
    Case("prometheus-tls", asked("http://p"), asked("http://p", tls={"ca": {"name": "p"}}), 0),
    Case(
        "prometheus-tls",
        asked("https://p", tls={"certificate": {"name": "p"}}),
        asked("http://p", tls={"certificate": {"name": "p"}}),
        0,
    ),
    Case(
        "one-of-each-gate",
        gated({"type": "QueueProgress"}, {"type": "UsageAccounting"}),
        gated({"type": "QueueProgress"}, {"type": "QueueProgress", "minSamples": 5}),
        1,
    ),
    Case("one-scale", in_steps({"setCanaryScale": {"percent": 50}}), in_steps({"setCanaryScale": {}}), 1),
    Case("one-scale", in_steps(), in_steps({"setCanaryScale": {"percent": 50, "replicas": 1}}), 1),
    Case(
        "arm-prefetch",
        in_steps({"setPrefetch": 4}, {"setPrefetch": 100}),
        in_steps({"setPrefetch": 3}, {"setPrefetch": 100}),
        1,
    ),
    Case("promoted-prefetch", in_steps({"setPrefetch": 100}), in_steps({"setPrefetch": 99})),
    Case(
        "promoted-prefetch",
        in_steps({"setPrefetch": 4}, spec__prefetch=None),
        in_steps({"setPrefetch": 8}, spec__prefetch=None),
    ),
)

CHANGES = (
    Change(
        "request-id",
        body(spec__request={"id": "1", "action": "Abort"}),
        body(spec__request={"id": "2", "action": "Retry"}),
        body(spec__request={"id": "1", "action": "Retry"}),
    ),
    Change("queue-immutable", body(), body(spec__replicas=3), body(spec__queue__name="other")),
    Change("broker-immutable", body(), body(spec__replicas=0), on_nats()),
    Change("broker-immutable", on_nats(), on_nats(url="tls://other"), body()),
    Change(
        "nats-namespace-immutable",
        on_nats(),
        on_nats(stream={"replicas": 3}, credentials={"token": {"name": "s"}}),
        on_nats(queueNamespace="other"),
    ),
    Change(
        "key-namespace-immutable",
        body(),
        body(spec__broker__redis__url="redis://other:6379"),
        body(spec__broker__redis__keyNamespace="other"),
    ),
)

#: What a type says: the refused value and the path that must be named.
MALFORMED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("spec.queue", body(spec__queue=None)),
    ("spec.queue.name", body(spec__queue__name="-x")),
    ("spec.queue.name", body(spec__queue__name="a" * 64)),
    ("spec.broker", body(spec__broker=None)),
    ("spec.template", body(spec__template=None)),
    ("spec.template", body(spec__template={"spec": {"containers": []}})),
    ("spec.template", body(spec__template={"spec": {"containers": [{"name": "worker"}]}})),
    ("spec.template", body(spec__template={"spec": {"containers": [{"name": "w", "image": "i"}] * 2}})),
    ("spec.coroutines", body(spec__coroutines=0)),
    ("spec.coroutines", body(spec__coroutines="4")),
    ("spec.prefetch", body(spec__prefetch=1001)),
    ("spec.replicas", body(spec__replicas=-1)),
    ("spec.replicas", body(spec__replicas=10001)),
    ("spec.shutdownSeconds", body(spec__shutdownSeconds=0)),
    ("spec.progressDeadlineSeconds", body(spec__progressDeadlineSeconds=29)),
    ("spec.minReadySeconds", body(spec__minReadySeconds=-1)),
    ("spec.rollout.strategy", body(spec__rollout={"strategy": "AllAtOnce"})),
    ("spec.rollout.steps", body(spec__rollout={"strategy": "Canary", "steps": []})),
    ("spec.rollout.steps", in_steps(*[{"pause": {}}] * 20)),
    ("spec.rollout.steps[1].setPrefetch", in_steps({"setPrefetch": 0})),
    ("spec.rollout.steps[1].setCanaryScale.percent", in_steps({"setCanaryScale": {"percent": 101}})),
    ("spec.rollout.steps[1].setCanaryScale.replicas", in_steps({"setCanaryScale": {"replicas": 0}})),
    ("spec.rollout.steps[1].pause.durationSeconds", in_steps({"pause": {"durationSeconds": 0}})),
    ("spec.hold.reason", body(spec__hold={})),
    ("spec.revokedVersions", body(spec__revokedVersions=["h1-00000000"] * 51)),
    ("spec.request.action", body(spec__request={"id": "1", "action": "Undo"})),
    ("spec.broker.redis.topology", body(spec__broker__redis__topology="Dragonfly")),
    ("spec.broker.redis.url", body(spec__broker__redis__url="")),
    ("spec.broker.nats.url", on_nats(url="")),
    ("spec.broker.nats.queueNamespace", on_nats(queueNamespace="")),
    ("spec.broker.nats.credentials.login.name", on_nats(credentials={"login": {}})),
    ("spec.broker.nats.stream.replicas", on_nats(stream={"replicas": 6})),
    ("spec.broker.nats.stream.storage", on_nats(stream={"storage": "disk"})),
    ("spec.broker.nats.stream.ackWaitSeconds", on_nats(stream={"ackWaitSeconds": 0})),
    ("spec.broker.nats.stream.maxDeliver", on_nats(stream={"maxDeliver": -2})),
    ("spec.broker.redis.secretRef.name", body(spec__broker__redis={"secretRef": {}})),
)
