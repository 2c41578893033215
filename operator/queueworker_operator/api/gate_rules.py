"""The rules about `spec.rollout.gates`."""

from __future__ import annotations

from queueworker_operator.api.entries import (
    gates_named_before,
    gates_waived_without_a_word,
    gates_with_other_audits,
    gates_with_other_limits,
    none_of,
    prometheus_by_another_path,
    prometheus_by_no_plain_url,
    prometheus_verified_in_vain,
    prometheus_with_other_credentials,
)
from queueworker_operator.api.rule import Rule

GATE_RULES: tuple[Rule, ...] = (
    Rule(
        "gate-fields",
        "spec.rollout",
        "!has(self.gates) || self.gates.all(g, (!has(g.minPercentOfStable) || "
        "(g.type == 'QueueProgress' && !has(g.waiver))) && (!has(g.maxPercentOfStable) || "
        "(g.type in ['CPUEfficiency', 'Latency'] && !has(g.waiver))))",
        "minPercentOfStable is a limit of QueueProgress, maxPercentOfStable one of CPUEfficiency and "
        "Latency, and a gate that is waived has none: remove it",
        "spec.rollout.gates",
        none_of(gates_with_other_limits),
        gates_with_other_limits,
    ),
    Rule(
        "gate-audit",
        "spec.rollout",
        "!has(self.gates) || self.gates.all(g, (!has(g.job) && !has(g.prometheus)) || "
        "(g.type == 'UsageAccounting' && !has(g.waiver) && has(g.job) != has(g.prometheus)))",
        "only UsageAccounting has a job or prometheus, one of them, and none where it is waived: remove it",
        "spec.rollout.gates",
        none_of(gates_with_other_audits),
        gates_with_other_audits,
    ),
    Rule(
        "gate-waiver",
        "spec.rollout",
        r"!has(self.gates) || self.gates.all(g, !has(g.waiver) || g.waiver.matches('(?s)\\S.{8,}\\S'))",
        "a waiver says why, for whoever reads it later: write a reason of 10 characters or more, not blanks",
        "spec.rollout.gates",
        none_of(gates_waived_without_a_word),
        gates_waived_without_a_word,
    ),
    # Not by a pattern of the schema: an API server shows what does not match it, and that may be a password.
    Rule(
        "prometheus-url",
        "spec.rollout",
        r"!has(self.gates) || self.gates.all(g, !has(g.prometheus) || "
        r"g.prometheus.url.matches('^https?://[^?#@\\s]+$'))",
        "prometheus.url begins with http:// or https:// and has no user, no ? and no #: "
        "write it as http://prometheus:9090, and name a Secret by prometheus.credentials",
        "spec.rollout.gates",
        none_of(prometheus_by_no_plain_url),
        prometheus_by_no_plain_url,
    ),
    Rule(
        "prometheus-path",
        "spec.rollout",
        "!has(self.gates) || self.gates.all(g, !has(g.prometheus) || "
        "!g.prometheus.url.matches('/api/v1(/query[a-z_]*)?/*$'))",
        "prometheus.url is without the path of the API: take /api/v1 and what follows off its end",
        "spec.rollout.gates",
        none_of(prometheus_by_another_path),
        prometheus_by_another_path,
    ),
    Rule(
        "one-prometheus-credential",
        "spec.rollout",
        "!has(self.gates) || self.gates.all(g, !has(g.prometheus) || !has(g.prometheus.credentials) || "
        "has(g.prometheus.credentials.token) != has(g.prometheus.credentials.login))",
        "set exactly one of token and login in prometheus.credentials",
        "spec.rollout.gates",
        none_of(prometheus_with_other_credentials),
        prometheus_with_other_credentials,
    ),
    Rule(
        "prometheus-tls",
        "spec.rollout",
        "!has(self.gates) || self.gates.all(g, !has(g.prometheus) || !has(g.prometheus.tls) || "
        "g.prometheus.url.startsWith('https://'))",
        "prometheus.tls says how an encrypted connection is verified: write prometheus.url with https://, or "
        "remove tls",
        "spec.rollout.gates",
        none_of(prometheus_verified_in_vain),
        prometheus_verified_in_vain,
    ),
    Rule(
        "one-of-each-gate",
        "spec.rollout",
        "!has(self.gates) || self.gates.all(g, self.gates.exists_one(h, h.type == g.type))",
        "each gate has one entry: merge those of the same type",
        "spec.rollout.gates",
        none_of(gates_named_before),
        gates_named_before,
    ),
)
