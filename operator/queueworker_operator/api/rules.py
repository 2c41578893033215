"""The rules that a type alone cannot say: one table for the CRD (as CEL) and for Python, same messages.

CEL messages are static: building one with string() costs more than the API server's budget allows.
"""

from __future__ import annotations

import re

from queueworker_operator.api.entries import (
    below_coroutines,
    none_of,
    revisions_among_versions,
    without_one_scale,
    without_one_verb,
)
from queueworker_operator.api.gate_rules import GATE_RULES
from queueworker_operator.api.redis import Topology
from queueworker_operator.api.request import RequestAction
from queueworker_operator.api.rollout import Strategy
from queueworker_operator.api.rule import Rule, Transition
from queueworker_operator.api.types import Problem, QueueWorkerSpec

#: 32 and `-77ab01c3` and `-p1000` make 47: room for the 10 and 5 characters that a ReplicaSet and a pod add.
NAME_LENGTH = 32
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SENTINEL_URL = re.compile(r"rediss?[+]sentinel://")
_NATS_URL = re.compile(r"(nats|tls)://[^?]*")
_ONE_HASH_TAG = re.compile(r"[^{}]*\{[^{}]+\}[^{}]*")


def _one_source(name: str, spec: QueueWorkerSpec) -> bool:
    redis = spec.broker.redis
    return redis is None or (redis.url is None) != (redis.secret_ref is None)


def _hash_tag(name: str, spec: QueueWorkerSpec) -> bool:
    redis = spec.broker.redis
    if redis is None or redis.topology is not Topology.CLUSTER:
        return True
    return _ONE_HASH_TAG.fullmatch(redis.key_namespace) is not None


def _sentinel_url(name: str, spec: QueueWorkerSpec) -> bool:
    redis = spec.broker.redis
    if redis is None or redis.url is None:
        return True
    return (_SENTINEL_URL.match(redis.url) is not None) == (redis.topology is Topology.SENTINEL)


def _one_nats_source(name: str, spec: QueueWorkerSpec) -> bool:
    nats = spec.broker.nats
    return nats is None or (nats.url is None) != (nats.secret_ref is None)


def _nats_url(name: str, spec: QueueWorkerSpec) -> bool:
    nats = spec.broker.nats
    return nats is None or nats.url is None or _NATS_URL.fullmatch(nats.url) is not None


def _signs_in_once(name: str, spec: QueueWorkerSpec) -> bool:
    nats = spec.broker.nats
    return nats is None or nats.url is None or nats.credentials is None or "@" not in nats.url


def _one_credential(name: str, spec: QueueWorkerSpec) -> bool:
    nats = spec.broker.nats
    if nats is None or nats.credentials is None:
        return True
    given = nats.credentials
    return sum(one is not None for one in (given.token, given.login, given.creds, given.nkey)) == 1


def _some_tls(name: str, spec: QueueWorkerSpec) -> bool:
    nats = spec.broker.nats
    return nats is None or nats.tls is None or bool(nats.tls.ca or nats.tls.certificate)


def _grace(name: str, spec: QueueWorkerSpec) -> bool:
    given = spec.template["spec"].get("terminationGracePeriodSeconds")
    return given is None or given > spec.shutdown_seconds


def _begins_with_a_scale(name: str, spec: QueueWorkerSpec) -> bool:
    return spec.strategy is not Strategy.CANARY or (
        bool(spec.steps) and spec.steps[0].set_canary_scale is not None
    )


def _measures_what_is_promoted(name: str, spec: QueueWorkerSpec) -> bool:
    arms = {step.set_prefetch for step in spec.steps} - {None}
    return not arms or spec.effective_prefetch in arms


def _same_namespace(old: QueueWorkerSpec, new: QueueWorkerSpec) -> bool:
    before, after = old.broker.redis, new.broker.redis
    return before is None or after is None or before.key_namespace == after.key_namespace


def _same_nats_namespace(old: QueueWorkerSpec, new: QueueWorkerSpec) -> bool:
    before, after = old.broker.nats, new.broker.nats
    return before is None or after is None or before.queue_namespace == after.queue_namespace


RULES: tuple[Rule, ...] = (
    Rule(
        "name-length",
        "",
        f"size(self.metadata.name) <= {NAME_LENGTH}",
        f"metadata.name begins the name of every Deployment: use {NAME_LENGTH} characters at most",
        "metadata.name",
        lambda name, spec: len(name) <= NAME_LENGTH,
    ),
    Rule(
        "name-label",
        "",
        r"self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name becomes a label: use lower case letters, digits and '-', "
        "with a letter or digit at both ends",
        "metadata.name",
        lambda name, spec: _NAME.fullmatch(name) is not None,
    ),
    Rule(
        "one-broker",
        "spec.broker",
        "has(self.redis) != has(self.nats)",
        "set exactly one broker: broker.redis or broker.nats",
        "spec.broker",
        lambda name, spec: (spec.broker.redis is None) != (spec.broker.nats is None),
    ),
    Rule(
        "one-url-source",
        "spec.broker.redis",
        "has(self.url) != has(self.secretRef)",
        "set exactly one of url and secretRef",
        "spec.broker.redis",
        _one_source,
    ),
    Rule(
        "hash-tag",
        "spec.broker.redis",
        r"self.topology != 'Cluster' || self.keyNamespace.matches('^[^{}]*[{][^{}]+[}][^{}]*$')",
        "topology Cluster needs a keyNamespace with exactly one non-empty hash tag, such as {utopia-queue}, "
        "so that all keys share one slot",
        "spec.broker.redis.keyNamespace",
        _hash_tag,
    ),
    Rule(
        "sentinel-url",
        "spec.broker.redis",
        "!has(self.url) || self.url.matches('^rediss?[+]sentinel://') == (self.topology == 'Sentinel')",
        "topology Sentinel and a URL that begins with redis+sentinel:// or rediss+sentinel:// go together: "
        "correct one of them",
        "spec.broker.redis.topology",
        _sentinel_url,
    ),
    Rule(
        "one-nats-url-source",
        "spec.broker.nats",
        "has(self.url) != has(self.secretRef)",
        "set exactly one of url and secretRef",
        "spec.broker.nats",
        _one_nats_source,
    ),
    Rule(
        "nats-url",
        "spec.broker.nats",
        "!has(self.url) || self.url.matches('^(nats|tls)://[^?]*$')",
        "the URL begins with nats:// or tls:// and has no ? with options: name files by credentials and tls",
        "spec.broker.nats.url",
        _nats_url,
    ),
    Rule(
        "nats-signs-in-once",
        "spec.broker.nats",
        "!has(self.url) || !has(self.credentials) || !self.url.contains('@')",
        "the URL and credentials both say as whom to sign in: take what is before the @ out of the URL",
        "spec.broker.nats.credentials",
        _signs_in_once,
    ),
    Rule(
        "one-nats-credential",
        "spec.broker.nats",
        "!has(self.credentials) || [has(self.credentials.token), has(self.credentials.login), "
        "has(self.credentials.creds), has(self.credentials.nkey)].filter(x, x).size() == 1",
        "set exactly one of token, login, creds and nkey",
        "spec.broker.nats.credentials",
        _one_credential,
    ),
    Rule(
        "nats-tls",
        "spec.broker.nats",
        "!has(self.tls) || has(self.tls.ca) || has(self.tls.certificate)",
        "set ca, certificate or both; to encrypt with what the image trusts, leave tls out and write tls://",
        "spec.broker.nats.tls",
        _some_tls,
    ),
    Rule(
        "prefetch",
        "spec",
        "!has(self.prefetch) || self.prefetch >= self.coroutines",
        "prefetch must be at least coroutines: raise prefetch, lower coroutines, or leave prefetch out",
        "spec.prefetch",
        lambda name, spec: spec.prefetch is None or spec.prefetch >= spec.coroutines,
    ),
    Rule(
        "min-ready",
        "spec",
        "self.minReadySeconds < self.progressDeadlineSeconds",
        "minReadySeconds must be less than progressDeadlineSeconds: nothing else would ever be in time",
        "spec.minReadySeconds",
        lambda name, spec: spec.min_ready_seconds < spec.progress_deadline_seconds,
    ),
    Rule(
        "grace",
        "spec",
        "!has(self.template.spec.terminationGracePeriodSeconds) || "
        "self.template.spec.terminationGracePeriodSeconds > self.shutdownSeconds",
        "the pod must outlive the worker's own deadline: set terminationGracePeriodSeconds above "
        "shutdownSeconds, or leave it out",
        "spec.template.spec.terminationGracePeriodSeconds",
        _grace,
    ),
    Rule(
        "request-revision",
        "spec",
        "!has(self.request) || !has(self.request.revision) || self.request.action == 'Rollback'",
        "only the request Rollback names a revision: remove it",
        "spec.request.revision",
        lambda name, spec: (
            spec.request is None
            or spec.request.revision is None
            or spec.request.action is RequestAction.ROLLBACK
        ),
    ),
    Rule(
        "revoked-versions",
        "spec",
        "!has(self.revokedVersions) || self.revokedVersions.all(v, !v.matches('-p[0-9]+$'))",
        "a version is revoked with every prefetch: write h1-5d0c1f9a where a revision is h1-5d0c1f9a-p8",
        "spec.revokedVersions",
        none_of(revisions_among_versions),
        revisions_among_versions,
    ),
    Rule(
        "canary-steps",
        "spec.rollout",
        "self.strategy != 'Canary' || (has(self.steps) && has(self.steps[0].setCanaryScale))",
        "strategy Canary needs steps, and the first of them is setCanaryScale",
        "spec.rollout.steps",
        _begins_with_a_scale,
    ),
    Rule(
        "steps-need-canary",
        "spec.rollout",
        "self.strategy == 'Canary' || !has(self.steps)",
        "only strategy Canary has steps: set it, or remove the steps",
        "spec.rollout.strategy",
        lambda name, spec: spec.strategy is Strategy.CANARY or not spec.steps,
    ),
    Rule(
        "one-verb",
        "spec.rollout",
        "!has(self.steps) || self.steps.all(s, [has(s.setCanaryScale), has(s.setPrefetch), has(s.pause), "
        "has(s.analysis)].filter(x, x).size() == 1)",
        "a step has exactly one of setCanaryScale, setPrefetch, pause and analysis",
        "spec.rollout.steps",
        none_of(without_one_verb),
        without_one_verb,
    ),
    Rule(
        "one-scale",
        "spec.rollout",
        "!has(self.steps) || self.steps.all(s, !has(s.setCanaryScale) || "
        "has(s.setCanaryScale.replicas) != has(s.setCanaryScale.percent))",
        "setCanaryScale has exactly one of replicas and percent",
        "spec.rollout.steps",
        none_of(without_one_scale),
        without_one_scale,
    ),
    *GATE_RULES,
    Rule(
        "arm-prefetch",
        "spec",
        "!has(self.rollout) || !has(self.rollout.steps) || self.rollout.steps.all(s, "
        "!has(s.setPrefetch) || s.setPrefetch >= self.coroutines)",
        "no step may set a prefetch below coroutines: raise it, or lower coroutines",
        "spec.rollout.steps",
        none_of(below_coroutines),
        below_coroutines,
    ),
    Rule(
        "promoted-prefetch",
        "spec",
        "!has(self.rollout) || !has(self.rollout.steps) || "
        "!self.rollout.steps.exists(s, has(s.setPrefetch)) || self.rollout.steps.exists(s, "
        "has(s.setPrefetch) && s.setPrefetch == (has(self.prefetch) ? self.prefetch : self.coroutines))",
        "the prefetch to promote (prefetch, or coroutines where it is left out) must be one that a step sets",
        "spec.rollout.steps",
        _measures_what_is_promoted,
    ),
)

TRANSITIONS: tuple[Transition, ...] = (
    Transition(
        "queue-immutable",
        "spec.queue",
        "self == oldSelf",
        "the queue is immutable: create another QueueWorker for the other queue, then delete this one",
        "spec.queue",
        lambda old, new: old.queue == new.queue,
    ),
    Transition(
        "broker-immutable",
        "spec.broker",
        "has(self.redis) == has(oldSelf.redis) && has(self.nats) == has(oldSelf.nats)",
        "messages do not move between kinds of brokers: create another QueueWorker on the other broker, "
        "then delete this one",
        "spec.broker",
        lambda old, new: old.broker.type == new.broker.type,
    ),
    Transition(
        "nats-namespace-immutable",
        "spec.broker.nats",
        "self.queueNamespace == oldSelf.queueNamespace",
        "streams keep their owner: create another QueueWorker with the other queueNamespace, "
        "then delete this one",
        "spec.broker.nats.queueNamespace",
        _same_nats_namespace,
    ),
    Transition(
        "request-id",
        "spec",
        "!has(oldSelf.request) || !has(self.request) || self.request == oldSelf.request || "
        "self.request.id != oldSelf.request.id",
        "another request needs another id: each id is answered once",
        "spec.request",
        lambda old, new: (
            old.request is None
            or new.request is None
            or old.request == new.request
            or old.request.id != new.request.id
        ),
    ),
    Transition(
        "key-namespace-immutable",
        "spec.broker.redis",
        "self.keyNamespace == oldSelf.keyNamespace",
        "keys are never renamed: create another QueueWorker with the other keyNamespace, "
        "then delete this one",
        "spec.broker.redis.keyNamespace",
        _same_namespace,
    ),
)


def broken_rules(name: str, spec: QueueWorkerSpec) -> tuple[Problem, ...]:
    """Each rule that a resource breaks, and each entry of a list that does, in the order of the table."""
    return tuple(Problem(path, rule.message) for rule in RULES for path in rule.broken_at(name, spec))


def broken_transitions(old: QueueWorkerSpec, new: QueueWorkerSpec) -> tuple[Problem, ...]:
    """Each rule that a change breaks."""
    return tuple(Problem(rule.blames, rule.message) for rule in TRANSITIONS if not rule.holds(old, new))
